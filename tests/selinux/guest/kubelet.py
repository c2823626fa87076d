# SPDX-License-Identifier: Apache-2.0
"""A stand-in for kubelet: its two sockets in its folders, with the labels that a node has; `agent` speaks to it.

`python3 -m tests.selinux.guest.kubelet` is the process, in kubelet's domain: it serves until its stdin ends, and for
each line of it tells what it has seen since, as JSON.  `Kubelet` is who starts it.
Must not judge.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading

from ..files import write
from .mounting import label, set_label

ROOT = "/var/lib/kubelet"
PLUGINS = f"{ROOT}/device-plugins"
RESOURCES = f"{ROOT}/pod-resources"
STATE = f"{ROOT}/cpu_manager_state"
FEATURES = "/etc/kubernetes/node-feature-discovery/features.d"
# Of an engine that serves kubelet on the same node.
ENGINE = "/run/docker.sock"
CONTEXT = "system_u:system_r:kubelet_t:s0"
# What kubelet gives the folder of its plugins.
PLUGINS_CONTEXT = "system_u:object_r:container_file_t:s0"
PODS = "team/train-0/main nvidia.com/gpu:GPU-0"


class Kubelet:
    """The process, once it is wanted: it stays."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        if self.process is not None:
            return
        os.makedirs(ROOT, exist_ok=True)
        os.makedirs(FEATURES, exist_ok=True)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(ENGINE)
        subprocess.run(["restorecon", ROOT, ENGINE, FEATURES], check=True)
        words = ["runcon", CONTEXT, sys.executable, "-B", "-m", __name__]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._read()

    def told(self) -> dict[str, str]:
        """What it has seen since it was asked last; and what an agent has written."""
        if self.process is None:
            return {}
        assert self.process.stdin
        print(file=self.process.stdin, flush=True)
        seen: dict[str, str] = json.loads(self._read())
        path = f"{FEATURES}/gfd"
        if os.path.exists(path):
            seen["feature label"] = label(path)
        return seen

    def _read(self) -> str:
        assert self.process and self.process.stdout
        return self.process.stdout.readline()


def _listen(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    return listener


def list_pods(listener: socket.socket) -> None:
    """One pod with one GPU, for whoever asks."""
    while True:
        with listener.accept()[0] as asker:
            # Who asks has said all, or is gone.
            asker.recv(1)
            with contextlib.suppress(BrokenPipeError):
                asker.sendall(PODS.encode())


def register(listener: socket.socket, seen: dict[str, str]) -> None:
    """Ask each device plugin that registers for its devices."""
    while True:
        with listener.accept()[0] as plugin:
            endpoint = plugin.recv(100).decode()
        if not endpoint:
            continue
        path = f"{PLUGINS}/{endpoint}"
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            with connection.makefile() as told:
                seen["devices"] = str(len(told.read().split()))
            seen["plugin label"] = label(path)


def main() -> int:
    for folder in (PLUGINS, RESOURCES):
        os.makedirs(folder, mode=0o750, exist_ok=True)
    set_label(PLUGINS, PLUGINS_CONTEXT)
    write(STATE, "{}\n")
    seen: dict[str, str] = {}
    resources, plugins = _listen(f"{RESOURCES}/kubelet.sock"), _listen(f"{PLUGINS}/kubelet.sock")
    threading.Thread(target=list_pods, args=(resources,), daemon=True).start()
    threading.Thread(target=register, args=(plugins, seen), daemon=True).start()
    print("ready", flush=True)
    for _ in sys.stdin:
        print(json.dumps(seen), flush=True)
        seen.clear()
    return 0


if __name__ == "__main__":
    sys.exit(main())
