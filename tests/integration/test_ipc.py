# SPDX-License-Identifier: Apache-2.0
"""Whose a container's /dev/shm is, and who shares it: by what the engine wrote, never guessed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.integration.engines import run_unshared

LABEL = "system_u:system_r:container_t:s0:"
SANDBOX, OURS, SIBLING, STRANGER = "5" * 64, "a" * 64, "b" * 64, "c" * 64

# In a mount and an IPC namespace of its own, so that this test's process stands for one in another IPC namespace.
ASK = """
import json, os, subprocess
from oci_gpu_hook.container import ipc
from oci_gpu_hook.container.rootfs import Rootfs
from oci_gpu_hook.kernel import procfile
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.request.bundle import read_bundle
subprocess.run(["sh", "-eu", "-c", {prepare!r}], check=True, cwd={root!r} + "/dev")
bundle = read_bundle({bundle!r})
class Self:
    def namespace(self, kind):
        return os.stat(f"/proc/{pid}/ns/{{kind}}").st_ino
    def pieces(self, name):
        return procfile.pieces(f"/proc/self/{{name}}")
root = Rootfs(os.open({root!r}, os.O_PATH), (), "/")
found = ipc.mounts(bundle, {id!r}, root, Self(), HostRoot())
print(json.dumps([mount._asdict() for mount in found]))
"""

STORAGE = "overlay-containers/{}/userdata"
TASKS = "containerd/io.containerd.runtime.v2.task"


def bundle(folder: Path, name: str, source: str | None, level: str, place: str = STORAGE, **annotations: str) -> Path:
    """One container's bundle, where its engine keeps it: podman's and CRI-O's place, if nothing else is said."""
    path = folder / place.format(name)
    path.mkdir(parents=True)
    mount: dict[str, Any] = {"destination": "/dev/shm", "type": "tmpfs", "source": "shm"}
    if source is not None:
        mount |= {"type": "bind", "source": source, "options": ["rbind", "rw"]}
    config = {"process": {"selinuxLabel": LABEL + level}, "mounts": [mount], "annotations": annotations}
    (path / "config.json").write_text(json.dumps(config))
    return path


def ask(tmp_path: Path, ours: Path, prepare: str, *, pid: str = str(os.getpid())) -> list[dict[str, Any]]:
    """What is found of the container's mounts once `prepare` has made them."""
    root = tmp_path / "root"
    (root / "dev/shm").mkdir(parents=True)
    code = ASK.format(prepare=prepare, bundle=str(ours), root=str(root), id=OURS, pid=pid)
    found: list[dict[str, Any]] = json.loads(run_unshared(code, "--ipc"))
    return found


OWN = "mount -t tmpfs shm shm"
# The memory's source by config.json, what makes it, the process's IPC namespace, and the owner.
OWNERS = {
    "a fresh tmpfs": (None, OWN, str(os.getpid()), "container"),
    "the host's, known by its device": ("/dev/shm", "mount --bind /dev/shm shm", str(os.getpid()), "host"),
    "no IPC namespace of its own": (None, OWN, "self", "host"),
    "a link": (None, "rmdir shm; ln -s /dev/shm shm", str(os.getpid()), "link"),
}


@pytest.mark.parametrize(("source", "prepare", "pid", "owner"), OWNERS.values(), ids=OWNERS)
def test_whose_it_is_outside_of_pods(tmp_path: Path, source: str | None, prepare: str, pid: str, owner: str) -> None:
    (found,) = ask(tmp_path, bundle(tmp_path, OURS, source, "c1,c2"), prepare, pid=pid)
    assert (found["owner"], found["members"], found["fixed"]) == (owner, [], False)


def bound(source: str) -> str:
    return f"mkdir -p {source} && mount -t tmpfs shm {source} && mount --bind {source} shm"


def test_a_pods_members_are_those_that_have_its_memory(tmp_path: Path) -> None:
    source = f"{tmp_path}/{STORAGE.format(SANDBOX)}/shm"
    ours = bundle(tmp_path, OURS, source, "c1,c2")
    bundle(tmp_path, SIBLING, source, "c1,c3")
    bundle(tmp_path, SANDBOX, None, "c1")
    bundle(tmp_path, STRANGER, "/elsewhere", "c7")
    (tmp_path / "overlay-containers/broken/userdata").mkdir(parents=True)
    (tmp_path / "overlay-containers/broken/userdata/config.json").write_text("{")
    (found,) = ask(tmp_path, ours, bound(source))
    assert found["owner"] == "pod"
    assert sorted(found["members"]) == [LABEL + "c1", LABEL + "c1,c3"]


CRI_SHM = f"containerd/io.containerd.grpc.v1.cri/sandboxes/{SANDBOX}/shm"
DOCKER_SHM = f"docker/containers/{SIBLING}/mounts/shm"
# Where an engine keeps bundles and memory, and who else has that memory.
KEPT = {
    "containerd's, beside its tasks": (f"{TASKS}/k8s.io/{{}}", CRI_SHM, {SANDBOX: "c1"}),
    "Docker's, beside its records": (f"{TASKS}/moby/{{}}", DOCKER_SHM, {SIBLING: "c1,c5"}),
}


@pytest.mark.parametrize(("place", "path", "others"), KEPT.values(), ids=KEPT)
def test_each_engine_keeps_it_in_its_own_place(tmp_path: Path, place: str, path: str, others: dict[str, str]) -> None:
    source = f"{tmp_path}/{path}"
    ours = bundle(tmp_path, OURS, source, "c1,c2", place=place)
    bundle(tmp_path, STRANGER, None, "c7", place=place)
    for name, level in others.items():
        bundle(tmp_path, name, source, level, place=place)
    (found,) = ask(tmp_path, ours, bound(source))
    assert (found["owner"], found["members"]) == ("pod", [LABEL + level for level in others.values()])


# What an image, under podman before 4.6, and a pod's author can say: it makes no volume the pod's.
CLAIMED = {
    f"io.kubernetes.{key}": value for key in ("cri-o.SandboxID", "cri.sandbox-id") for value in ("memory", SANDBOX)
}
VOLUMES = (
    "srv/memory",
    f"srv/{SANDBOX}",
    f"srv/{OURS}/userdata/shm",
    f"srv/overlay-containers/{OURS}/userdata/shm",
    f"overlay-containers/{OURS}/userdata/memory",
    f"overlay-containers/{OURS}/shm",
    f"containers/{OURS}/mounts/shm",
)

PLACES = (STORAGE, f"{TASKS}/k8s.io/{{}}", f"{TASKS}/moby/{{}}", "{}")
CASES = [(place, volume) for place in PLACES for volume in VOLUMES]
# Docker's data may lie anywhere.
CASES.remove((PLACES[2], VOLUMES[-1]))


@pytest.mark.parametrize(("place", "volume"), CASES)
def test_no_part_of_a_path_makes_a_volume_the_pods(tmp_path: Path, place: str, volume: str) -> None:
    source = str(tmp_path / volume)
    ours = bundle(tmp_path, OURS, source, "c1,c2", place=place, **CLAIMED)
    bundle(tmp_path, SANDBOX, None, "c1", place=place)
    (found,) = ask(tmp_path, ours, bound(source))
    assert found["owner"] == "volume"


def test_what_lies_elsewhere_is_not_what_the_engine_keeps(tmp_path: Path) -> None:
    """The path is the engine's, and another filesystem is mounted in the container."""
    source = f"{tmp_path}/{STORAGE.format(OURS)}/shm"
    ours = bundle(tmp_path, OURS, source, "c1,c2")
    (found,) = ask(tmp_path, ours, f"{bound(source)} && {OWN}")
    assert found["owner"] == "volume"
