# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for NVIDIA's agents on a node: each does what the real one does with kubelet, the host's files and NVML.

    agent.py plugin         watches kubelet's folder, registers, is asked for its devices
    agent.py exporter       asks for the GPUs of pods
    agent.py discovery      writes features for Node Feature Discovery, in a folder beside and renamed

Of kubelet's protocols there are the sockets, and who connects to whom: SELinux asks for no more.
Prints NAME=RESULT.  Runs in the container, without the hook's sources.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import socket
import sys
from typing import Any

PLUGINS = "/var/lib/kubelet/device-plugins"
RESOURCES = "/var/lib/kubelet/pod-resources"
FEATURES = "/etc/kubernetes/node-feature-discovery/features.d"
ENDPOINT = "nvidia-gpu.sock"
SECONDS = 60
_IN_CREATE = 0x100


def tell(name: str, result: object) -> None:
    print(f"{name}={result}", flush=True)


def gpus() -> list[str]:
    """The UUIDs that NVML has."""
    nvml: Any = importlib.import_module("pynvml")
    nvml.nvmlInit()
    handles = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
    found = [str(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    tell("nvml", len(found))
    return found


def ask(path: str, words: str) -> str:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(words.encode())
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile() as answer:
            return answer.read()


def plugin() -> None:
    """Watches for kubelet's next start, listens, tells kubelet where, and answers until it hangs up."""
    devices = gpus()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.inotify_add_watch(libc.inotify_init1(0), PLUGINS.encode(), _IN_CREATE) < 0:
        raise SystemExit(f"{PLUGINS} cannot be watched: {os.strerror(ctypes.get_errno())}")
    tell("watch", "ok")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.settimeout(SECONDS)
        listener.bind(f"{PLUGINS}/{ENDPOINT}")
        listener.listen()
        ask(f"{PLUGINS}/kubelet.sock", ENDPOINT)
        with listener.accept()[0] as asked:
            asked.sendall(" ".join(devices).encode())
            asked.shutdown(socket.SHUT_WR)
            asked.recv(1)
    tell("register", "ok")


def exporter() -> None:
    """Asks once, as at a scrape."""
    gpus()
    tell("pods", ask(f"{RESOURCES}/kubelet.sock", ""))


def discovery() -> None:
    """Writes a feature file so that no program sees half of it."""
    count = len(gpus())
    beside = f"{FEATURES}/gfd-tmp"
    os.makedirs(beside)
    with open(f"{beside}/gfd", "w", encoding="ascii") as file:
        file.write(f"nvidia.com/gpu.count={count}\n")
    os.chmod(f"{beside}/gfd", 0o644)
    os.rename(f"{beside}/gfd", f"{FEATURES}/gfd")
    os.rmdir(beside)
    tell("features", " ".join(os.listdir(FEATURES)))


if __name__ == "__main__":
    {"plugin": plugin, "exporter": exporter, "discovery": discovery}[sys.argv[1]]()
