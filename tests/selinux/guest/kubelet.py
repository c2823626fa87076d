# SPDX-License-Identifier: Apache-2.0
"""A stand-in for kubelet: its two sockets in its folders, with the labels that a node has, by kubelet's own protocols.

`python3 -m tests.selinux.guest.kubelet` is the process, in kubelet's domain: it serves until its stdin ends, and for
each line of it tells what it has seen since, as JSON.  `Kubelet` is who starts it.
Must not judge.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from typing import Any

from .mounting import label, set_label

ROOT = "/var/lib/kubelet"
PLUGINS = f"{ROOT}/device-plugins"
RESOURCES = f"{ROOT}/pod-resources"
STATE = f"{ROOT}/cpu_manager_state"
FEATURES = "/etc/kubernetes/node-feature-discovery/features.d"
# Of an engine that serves kubelet on the same node.
ENGINE = "/run/docker.sock"
RESOURCE = "nvidia.com/gpu"
CONTEXT = "system_u:system_r:kubelet_t:s0"
# What kubelet gives the folder of its plugins, at each start.
PLUGINS_CONTEXT = "system_u:object_r:container_file_t:s0"
SECONDS = 60


class Kubelet:
    """The process, there or not."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def want(self, there: bool) -> None:
        """Start it or end it; a killed one leaves no socket, as kubelet's own end does not."""
        if there and self.process is None:
            os.makedirs(ROOT, exist_ok=True)
            os.makedirs(FEATURES, exist_ok=True)
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(ENGINE)
            subprocess.run(["restorecon", ROOT, ENGINE, FEATURES], check=True)
            self.process = subprocess.Popen(
                ["runcon", CONTEXT, sys.executable, "-B", "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            self._read()
        elif not there and self.process is not None:
            assert self.process.stdin is not None
            self.process.stdin.close()
            self.process.wait()
            self.process = None
            for path in (f"{PLUGINS}/kubelet.sock", f"{RESOURCES}/kubelet.sock", ENGINE):
                if os.path.lexists(path):
                    os.unlink(path)

    def told(self) -> dict[str, str]:
        """What it has seen since it was asked last; and what an agent has written."""
        if self.process is None:
            return {}
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        seen: dict[str, str] = json.loads(self._read())
        path = f"{FEATURES}/gfd"
        if os.path.exists(path):
            seen["feature label"] = label(path)
        return seen

    def _read(self) -> str:
        assert self.process is not None
        assert self.process.stdout is not None
        return self.process.stdout.readline()


class Server:
    """What kubelet serves, and what it does with a device plugin that registers."""

    def __init__(self, api: Any) -> None:
        self.api = api
        self.seen: dict[str, str] = {}
        self.registered = 0
        self.server: Any = None
        self.using: threading.Thread | None = None

    def start(self) -> None:
        """As kubelet: the folder's label, nothing left in it, the socket."""
        os.makedirs(PLUGINS, mode=0o750, exist_ok=True)
        set_label(PLUGINS, PLUGINS_CONTEXT)
        for name in os.listdir(PLUGINS):
            os.unlink(f"{PLUGINS}/{name}")
        self.server = self.api.serve(f"{PLUGINS}/kubelet.sock", "v1beta1.Registration", self)

    def restart(self) -> None:
        # What is being answered is not cut off.
        self.server.stop(SECONDS).wait()
        self.start()

    def Register(self, request: Any, _: Any) -> Any:
        self.registered += 1
        self.using = threading.Thread(target=self.use, args=(request, self.registered))
        self.using.start()
        return self.api.message("v1beta1.Empty")()

    def use(self, request: Any, number: int) -> None:
        """After the first registration kubelet starts again; after the second it takes a device."""
        try:
            path = f"{PLUGINS}/{request.endpoint}"
            service = "v1beta1.DevicePlugin"
            listed = self.api.call(path, service, "ListAndWatch", SECONDS).devices
            self.seen["registered"] = f"{request.resource_name} {request.version} {number}"
            self.seen["plugin label"] = label(path)
            healthy = sorted(device.ID for device in listed if device.health == "Healthy")
            self.seen["healthy"] = str(len(healthy))
            if number == 1:
                self.restart()
                return
            asked = self.api.message("v1beta1.ContainerAllocateRequest")(devices_ids=healthy[:1])
            given = self.api.call(path, service, "Allocate", SECONDS, container_requests=[asked])
            self.seen["given"] = str(given.container_responses[0].envs["NVIDIA_VISIBLE_DEVICES"] == healthy[0])
        except self.api.grpc.RpcError as error:
            self.seen["kubelet"] = f"{error.code()}: {error.details()}"

    def told(self) -> dict[str, str]:
        """What was seen, once the last registration has been used."""
        if self.using:
            self.using.join(SECONDS)
        seen, self.seen = self.seen, {}
        return seen

    def List(self, _: Any, __: Any) -> Any:
        """One pod with one GPU."""
        devices = self.api.message("v1.ContainerDevices")(resource_name=RESOURCE, device_ids=["GPU-0"])
        container = self.api.message("v1.ContainerResources")(name="main", devices=[devices])
        pod = self.api.message("v1.PodResources")(name="train-0", namespace="team", containers=[container])
        return self.api.message("v1.ListPodResourcesResponse")(pod_resources=[pod])


def main() -> int:
    """Serve."""
    from . import kubeletapi

    shutil.rmtree(PLUGINS, ignore_errors=True)
    os.makedirs(RESOURCES, mode=0o750, exist_ok=True)
    with open(STATE, "w", encoding="ascii") as file:
        file.write("{}\n")
    server = Server(kubeletapi)
    server.start()
    # Held: a server that is not held ends, and takes its socket with it.
    resources = kubeletapi.serve(f"{RESOURCES}/kubelet.sock", "v1.PodResourcesLister", server)
    print("ready", flush=True)
    for _ in sys.stdin:
        print(json.dumps(server.told()), flush=True)
    resources.stop(None)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
