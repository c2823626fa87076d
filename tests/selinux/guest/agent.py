# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for NVIDIA's agents on a node: each does what the real one does with kubelet, the host's files and NVML.

    agent.py plugin         registers nvidia.com/gpu, serves it, registers again when kubelet has started again
    agent.py exporter       lists the GPUs of pods
    agent.py discovery      writes features for Node Feature Discovery, in a folder beside and renamed

Prints NAME=RESULT; where kubelet is not there, or does not come back, it says so and ends.
Runs in the container, without the hook's sources.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import select
import sys
import threading
from typing import Any

PLUGINS = "/var/lib/kubelet/device-plugins"
RESOURCES = "/var/lib/kubelet/pod-resources"
FEATURES = "/etc/kubernetes/node-feature-discovery/features.d"
RESOURCE = "nvidia.com/gpu"
ENDPOINT = "nvidia-gpu.sock"
SECONDS = 60
_IN_CREATE = 0x100


def tell(name: str, result: object) -> None:
    """One line of what was seen."""
    print(f"{name}={result}", flush=True)


def gpus() -> list[str]:
    """The UUIDs that NVML has."""
    nvml: Any = importlib.import_module("pynvml")
    nvml.nvmlInit()
    found = [
        str(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(number)))
        for number in range(nvml.nvmlDeviceGetCount())
    ]
    tell("nvml", len(found))
    return found


def is_there(socket: str) -> bool:
    """Whether kubelet's socket is."""
    if not os.path.exists(socket):
        tell("kubelet", "gone")
        return False
    return True


class Plugin:
    """What a device plugin serves."""

    def __init__(self, api: Any, devices: list[str]) -> None:
        self.api = api
        self.devices = devices
        self.allocated = threading.Event()
        self.server: Any = None

    def ListAndWatch(self, _: Any, __: Any) -> Any:
        device = self.api.message("v1beta1.Device")
        yield self.api.message("v1beta1.ListAndWatchResponse")(
            devices=[device(ID=uuid, health="Healthy") for uuid in self.devices]
        )
        self.allocated.wait(SECONDS)

    def Allocate(self, request: Any, context: Any) -> Any:
        answer = self.api.message("v1beta1.ContainerAllocateResponse")
        answers = [
            answer(envs={"NVIDIA_VISIBLE_DEVICES": ",".join(one.devices_ids)}) for one in request.container_requests
        ]
        context.add_callback(self.allocated.set)
        return self.api.message("v1beta1.AllocateResponse")(container_responses=answers)

    def register(self, name: str) -> None:
        """Serve, and tell kubelet: it has emptied the folder if it has started again."""
        if self.server:
            self.server.stop(None).wait()
        self.server = self.api.serve(f"{PLUGINS}/{ENDPOINT}", "v1beta1.DevicePlugin", self)
        fields = {"version": "v1beta1", "endpoint": ENDPOINT, "resource_name": RESOURCE}
        socket = f"{PLUGINS}/kubelet.sock"
        self.api.call(socket, "v1beta1.Registration", "Register", SECONDS, **fields)
        tell(name, "ok")


def plugin() -> None:
    """Registers, waits for kubelet's new socket, registers again, until a device was taken."""
    devices = gpus()
    libc = ctypes.CDLL(None, use_errno=True)
    watched = libc.inotify_init1(0)
    if libc.inotify_add_watch(watched, PLUGINS.encode(), _IN_CREATE) < 0:
        raise SystemExit(f"{PLUGINS} cannot be watched: {os.strerror(ctypes.get_errno())}")
    tell("watch", "ok")
    if not is_there(f"{PLUGINS}/kubelet.sock"):
        return
    served = Plugin(importlib.import_module("kubeletapi"), devices)
    served.register("register")
    made = b""
    while b"kubelet.sock" not in made:
        if not select.select([watched], [], [], SECONDS)[0]:
            tell("again", "no")
            return
        made = os.read(watched, 4096)
    served.register("again")
    tell("allocated", "ok" if served.allocated.wait(SECONDS) else "no")


def exporter() -> None:
    """Asks once, as at a scrape."""
    gpus()
    if not is_there(f"{RESOURCES}/kubelet.sock"):
        return
    api: Any = importlib.import_module("kubeletapi")
    listed = api.call(f"{RESOURCES}/kubelet.sock", "v1.PodResourcesLister", "List", SECONDS)
    for pod in listed.pod_resources:
        for container in pod.containers:
            names = [f"{it.resource_name}:{','.join(it.device_ids)}" for it in container.devices]
            tell("pods", f"{pod.namespace}/{pod.name}/{container.name} {' '.join(names)}")


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
    # Its socket stays, as that of an agent that was killed does.
    os._exit(0)
