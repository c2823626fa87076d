# SPDX-License-Identifier: Apache-2.0
"""Real dockerd, in the domain that the policy has for it: containers with GPUs by --gpus, and by oci-gpu-runtime.

Each case is a container, and two that share IPC: the story of a pod whose /dev/shm had another label than its
containers.  Asks the daemon by its socket, as the command line does, whose every start costs seconds here.
Must not start the daemon in another domain than systemd would, or a container in any other way than by the daemon.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ..files import read
from . import policy
from .commands import Answer
from .mounting import label

# In a folder of the daemon's: to make its socket in /run is systemd's part.
FOLDER = "/run/docker"
SOCKET = f"{FOLDER}/docker.sock"
LOG = f"{FOLDER}/log"
DAEMON = (
    "/usr/sbin/dockerd",
    "--selinux-enabled",
    f"--host=unix://{SOCKET}",
    "--bridge=none",
    "--iptables=false",
    "--exec-opt=native.cgroupdriver=cgroupfs",
    "--add-runtime=gpus=/usr/lib/e2e/bin/simulated-runc",
    "--add-runtime=ours=/usr/lib/e2e/bin/simulated-oci-gpu-runtime",
)
SECONDS = 900
# A queue of Debian's plain container_t is denied to itself, whatever its label: see `cases`.
CHECKS = {
    "container_t": ("lib", "smi", "sem", "shm", "stay"),
    "nvidia_container_t": ("lib", "smi", "sem", "shm", "mq", "stay"),
}
# What the second one does: the first one's segment, and the semaphores that dask needs.
BESIDE = ("read:/dev/shm/secret", "sem")

_GPUS = [{"Count": -1, "Capabilities": [["gpu", "compute", "utility"]]}]
_ENVIRONMENT = ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility")
_DOCKERD = policy.HERE.dockerd
_BY_HOOK = {(_DOCKERD, "oci_gpu_hook_entry_t"), ("oci_gpu_hook_entry_t", "oci_gpu_hook_t")}
_BY_RUNTIME = {(_DOCKERD, "oci_gpu_runtime_t"), ("oci_gpu_runtime_t", _DOCKERD), (_DOCKERD, "oci_gpu_hook_t")}


class Way(NamedTuple):
    """How a container asks for its GPUs, and which changes of domain that means."""

    host: Mapping[str, Any]
    environment: tuple[str, ...]
    entered: set[tuple[str, str]]


GPUS = Way({"Runtime": "gpus", "DeviceRequests": _GPUS}, (), _BY_HOOK)
RUNTIME = Way({"Runtime": "ours"}, _ENVIRONMENT, _BY_RUNTIME)


class _Connection(http.client.HTTPConnection):
    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(SECONDS)
        self.sock.connect(SOCKET)


class Refused(Exception):
    """What the daemon says of a request that it does not carry out."""


def ask(method: str, path: str, body: object = None) -> Any:
    """The daemon's answer, read as JSON where it is."""
    with contextlib.closing(_Connection("docker")) as connection:
        headers = {"Content-Type": "application/json"}
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        answer = connection.getresponse()
        data = answer.read()
    if answer.status >= 400:
        raise Refused(json.loads(data)["message"])
    return json.loads(data) if answer.headers.get("Content-Type") == "application/json" else data


@contextlib.contextmanager
def daemon() -> Iterator[None]:
    """dockerd, which starts its containerd, while the cases run: if it does not answer, they say so."""
    os.makedirs(FOLDER, exist_ok=True)
    with open(LOG, "wb") as log:
        subprocess.run(["restorecon", "-R", FOLDER], check=True)
        process = subprocess.Popen(DAEMON, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    end = time.monotonic() + SECONDS
    try:
        while process.poll() is None and time.monotonic() < end:
            with contextlib.suppress(OSError):
                ask("GET", "/_ping")
                break
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait()


class Started:
    """A container of the daemon's."""

    def __init__(self, way: Way, command: tuple[str, ...], ipc: str, options: list[str]) -> None:
        host = {**way.host, "NetworkMode": "none", "IpcMode": ipc, "SecurityOpt": options}
        asked = {"Image": "image", "Cmd": command, "Env": way.environment, "HostConfig": host}
        self.id = ask("POST", "/containers/create", asked)["Id"]
        try:
            ask("POST", f"/containers/{self.id}/start")
        except Refused:
            self.close()
            raise

    def printed(self) -> str:
        """What it has written so far: frames, each with a header of eight bytes."""
        data = ask("GET", f"/containers/{self.id}/logs?stdout=1&stderr=1")
        text = b""
        while data:
            size = int.from_bytes(data[4:8], "big")
            text += data[8 : 8 + size]
            data = data[8 + size :]
        return text.decode(errors="replace")

    def lacks(self, *checks: str) -> list[str]:
        """Which of its checks has not succeeded."""
        seen = dict(line.split("=", 1) for line in self.printed().splitlines() if "=" in line)
        expected = {check: "ENXIO" if check == "nodes" else "ok" for check in checks}
        return [f"{it} is {seen.get(it, 'nothing')}, not {ok}" for it, ok in expected.items() if seen.get(it) != ok]

    def state(self) -> Any:
        """What the daemon knows of it: whether it is running, and as which process."""
        return ask("GET", f"/containers/{self.id}/json")["State"]

    def wait_for(self, word: str) -> None:
        """Until it has said so, or has ended."""
        end = time.monotonic() + SECONDS
        while word not in self.printed() and self.state()["Running"] and time.monotonic() < end:
            time.sleep(0.2)

    def close(self) -> None:
        ask("DELETE", f"/containers/{self.id}?force=1")


def served(way: Way, type_: str) -> Answer:
    """A container that holds what it made, and one beside it, which has the label of the first."""
    # Docker gives the second the first one's whole label where no option of its own says otherwise.
    options = [f"label=type:{type_}"] if type_ != "container_t" else []
    checks = ("nodes", *CHECKS[type_])
    with contextlib.closing(Started(way, ("/app/probe", *checks), "shareable", options)) as first:
        first.wait_for("stay=")
        wrong = [*first.lacks(*checks), *_labels(first, type_)]
        with contextlib.closing(Started(way, ("/app/probe", *BESIDE), f"container:{first.id}", [])) as second:
            code = ask("POST", f"/containers/{second.id}/wait")["StatusCode"]
            wrong += second.lacks(*BESIDE) + ([f"the second: {second.printed()[-1500:]}"] if code else [])
    return Answer(wrong, frozenset(way.entered))


def inconsistent(way: Way) -> Answer:
    """The same, but the option is given to both: the second then gets a level of its own, and /dev/shm has the first's.

    Docker mounts it with `context=`, which cannot be changed.
    """
    options = ["label=type:nvidia_container_t"]
    with contextlib.closing(Started(way, ("/app/probe", "stay"), "shareable", options)) as first:
        try:
            Started(way, ("/app/probe", "sem"), f"container:{first.id}", options).close()
            said = "started"
        except Refused as error:
            said = str(error)
    wrong = [] if re.search(r"oci-gpu-hook: .*/dev/shm", said) else [f"the daemon says {said}"]
    return Answer(wrong, frozenset(way.entered))


def _labels(container: Started, type_: str) -> list[str]:
    """What is wrong with the labels of a container's process, and of what it shares."""
    pid = container.state()["Pid"]
    _, _, domain, level = read(f"/proc/{pid}/attr/current").rstrip("\0\n").split(":", 3)
    expected = f"system_u:object_r:container_file_t:{level}"
    got = {path: label(f"/proc/{pid}/root/dev/{path}") for path in ("shm", "mqueue", "nvidia0", "nvidiactl")}
    wrong = [f"/dev/{path} is {it}, not {expected}" for path, it in got.items() if it != expected]
    return wrong + ([] if domain == type_ else [f"the container is {domain}"])


def log() -> list[str]:
    """The end of the daemon's own log, for those who look why a case failed."""
    return [line for line in read(LOG).splitlines() if "level=error" in line][-5:]


# Each by the name of its line in the table.
CASES: dict[str, Callable[[], Answer]] = {
    f"docker, {name}, {type_}": functools.partial(served, way, type_)
    for name, way in (("--gpus", GPUS), ("oci-gpu-runtime", RUNTIME))
    for type_ in CHECKS
}
CASES["docker, a second container of another level"] = functools.partial(inconsistent, RUNTIME)
