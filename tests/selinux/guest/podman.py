# SPDX-License-Identifier: Apache-2.0
"""Real podman, in the domain that the policy has for it: pods as people paste them, by `podman kube play`.

The pods are packaging/openshift/pods/nvidia-smi*.yaml; what they show is of `tests.pods.LOOK` from inside, and of
`_labelled` from the host.

A pod's container stays until it has been looked at; then it is killed together with its monitor, which would start
podman again to clean up after it.
Must not start podman in another domain than systemd would, or a container in any other way than by podman.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping

from tests.gpunode.description import load

from ..files import read
from . import host, policy
from .commands import Answer
from .mounting import label

CONTEXT = f"system_u:system_r:{policy.HERE.podman}:s0"
PODS = "/usr/lib/e2e/pods"
STATE = "/run/containers/storage/overlay-containers/*/userdata"
LOGS = "/var/lib/containers/storage/overlay-containers/*/userdata/ctr.log"
ROOT_CGROUP = "/sys/fs/cgroup"
LOCK = "/dev/shm/libpod_lock"
PODS_CGROUPS = f"{ROOT_CGROUP}/libpod_parent"
SECONDS = 300
# The GPU without MIG.
_GPU = next(gpu for gpu in load(host.DESCRIPTION).gpus if not gpu.mig)
_NODE = f"/dev/nvidia{_GPU.minor}"
_CONFINED = {
    **dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), "0" * 16),
    "NoNewPrivs": "1",
    "user": "1000",
    "shm": "",
    "labels": "own",
    "root": r".*: Read-only file system",
    "smi": rf"GPU 0: .* \(UUID: {_GPU.uuid}\)",
    _NODE: ".*: No such device or address",
    "nodes": "4",
}
_OTHER_LEVEL = {
    "shm": ".*: Permission denied",
    "labels": r"\S+/dev/shm:system_u:object_r:container_file_t:s0:c\d+,c\d+",
}
_BY_HOOK = frozenset({(policy.HERE.podman, "oci_gpu_hook_entry_t"), ("oci_gpu_hook_entry_t", "oci_gpu_hook_t")})


def _turn_on_controllers() -> None:
    """For the cgroups below the root, as systemd has done where engines run.

    podman would do it, which moves every process of the machine, and SELinux forbids it that.
    """
    for name in read(f"{ROOT_CGROUP}/cgroup.controllers").split():
        with open(f"{ROOT_CGROUP}/cgroup.subtree_control", "w", encoding="ascii") as file:
            file.write(f"+{name}")


def _podman(runtime: str, *words: str) -> str:
    """Run podman; what it says where it fails."""
    line = ["runcon", CONTEXT, "/usr/bin/podman", "--runtime", runtime, *words]
    done = subprocess.run(line, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS)
    return f"podman {words[0]} {words[1]}: {done.stderr}" if done.returncode else ""


def _create(runtime: str, name: str) -> str:
    """A pod that people paste, not started yet."""
    options = ("--network", "none", "--start=false")
    # systemd turns controllers off that none of its units needs, as when the scope of an earlier row has gone.
    for _ in range(3):
        _turn_on_controllers()
        failed = _podman(runtime, "kube", "play", *options, f"{PODS}/{name}.yaml")
        if "cgroup.subtree_control" not in failed:
            break
    # podman 4.3 denies its pods' cgroups every device where no systemd makes them.  They are empty yet, and made again.
    for folder in glob.glob(f"{PODS_CGROUPS}/*/"):
        with contextlib.suppress(OSError):  # an earlier pod's
            os.rmdir(folder)
    return failed


def _start(runtime: str, name: str, expected: Mapping[str, str]) -> Answer:
    """What the pod's container has."""
    failed = _podman(runtime, "pod", "start", name)
    seen = {} if failed else {**_told(), **_labelled(_pids()[-1])}
    wrong = [
        f"{check} is {seen.get(check, 'nothing')}, not {pattern}"
        for check, pattern in expected.items()
        if not re.fullmatch(pattern, seen.get(check, "nothing"))
    ]
    return Answer([failed] if failed else wrong, _BY_HOOK)


def _labelled(pid: int) -> dict[str, str]:
    """The domain of a container by its first process, and what the hook made there that has not its own label."""
    _, _, domain, level = read(f"/proc/{pid}/attr/current").rstrip("\0\n").split(":", 3)
    # A mount's files keep the host's labels; a node and /dev/shm have the container's own.
    paths = [path for name in ("nvidia*", "shm") for path in glob.glob(f"/proc/{pid}/root/dev/{name}")]
    wrong = [f"{path}:{label(path)}" for path in paths if label(path) != f"system_u:object_r:container_file_t:{level}"]
    return {"domain": domain, "labels": " ".join(wrong) or "own"}


def plain() -> Answer:
    """The pod's containers have one level, and so has its /dev/shm."""
    try:
        failed = _create("crun", "nvidia-smi")
        answer = _start("crun", "nvidia-smi", {**_CONFINED, "domain": "container_t"})
    finally:
        _end()
    return answer._replace(wrong=[*filter(None, [failed]), *answer.wrong])


def typed() -> Answer:
    """A container with a type of its own: podman gives it a level of its own, and mounts /dev/shm with the pod's.

    By `context=`, which cannot be changed: so it is refused, or started without the use of /dev/shm.
    """
    name = "nvidia-smi-selinux"
    expected = {**_CONFINED, "domain": "nvidia_container_t", **_OTHER_LEVEL}
    try:
        failed = _create("runc", name)
        refused = _podman("runc", "pod", "start", name)
        host.administer("ipc-context-mismatch = warn\n", "")
        answer = _start("runc", name, expected)
    finally:
        host.administer("", "")
        _end()
    told = re.search(r"exit status 3, stdout: , stderr: oci-gpu-hook: /dev/shm is mounted", refused)
    wrong = [failed, "" if told else f"podman says {refused}"]
    return answer._replace(wrong=[*filter(None, wrong), *answer.wrong])


def _told() -> dict[str, str]:
    """What the pod's container has said of itself, once it has said all; the other one says nothing."""
    end = time.monotonic() + SECONDS
    while True:
        lines = [line for path in glob.glob(LOGS) for line in read(path).splitlines()]
        # TIME STREAM TAG TEXT
        told = dict(line.split(" ", 3)[3].split("=", 1) for line in lines if "=" in line)
        if "looked" in told or time.monotonic() > end:
            return told
        time.sleep(0.1)


def _pids() -> list[int]:
    """The first processes of podman's containers, in the order of their starts."""
    paths = sorted(glob.glob(f"{STATE}/pidfile"), key=os.path.getmtime)
    return [int(read(path)) for path in paths]


def _end() -> None:
    for name in ("conmon.pid", "pidfile"):
        for path in glob.glob(f"{STATE}/{name}"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(read(path)), signal.SIGKILL)
            os.unlink(path)
    for path in [*glob.glob(LOGS), *glob.glob(LOCK)]:
        os.unlink(path)


CASES: dict[str, Callable[[], Answer]] = {
    "podman kube play, container_t, crun": plain,
    "podman kube play, nvidia_container_t, runc": typed,
}
