# SPDX-License-Identifier: Apache-2.0
"""Whose a container's /dev/shm is, and who shares it: by what the engine wrote, never guessed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

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
    def read(self, name):
        return procfile.read(f"/proc/self/{{name}}")
root = Rootfs(os.open({root!r}, os.O_PATH), ())
found = ipc.mounts(bundle, {id!r}, root, Self(), HostRoot())
print(json.dumps([mount._asdict() for mount in found]))
"""


def bundle(folder: Path, name: str, source: str | None, level: str, sandbox: str = "") -> Path:
    """One container's bundle, where an engine would keep it."""
    path = folder / "overlay-containers" / name / "userdata"
    path.mkdir(parents=True)
    mount: dict[str, Any] = {"destination": "/dev/shm", "type": "tmpfs", "source": "shm"}
    if source is not None:
        mount |= {"type": "bind", "source": source, "options": ["rbind", "rw"]}
    config = {
        "process": {"selinuxLabel": LABEL + level},
        "mounts": [mount],
        "annotations": {"io.kubernetes.cri-o.SandboxID": sandbox} if sandbox else {},
    }
    (path / "config.json").write_text(json.dumps(config))
    return path


def ask(
    tmp_path: Path, ours: Path, prepare: str, *, pid: str = str(os.getpid())
) -> list[dict[str, Any]]:
    """What is found of the container's mounts once `prepare` has made them."""
    root = tmp_path / "root"
    (root / "dev/shm").mkdir(parents=True)
    code = ASK.format(prepare=prepare, bundle=str(ours), root=str(root), id=OURS, pid=pid)
    found: list[dict[str, Any]] = json.loads(run_unshared(code, "--ipc"))
    return found


OWN = "mount -t tmpfs shm shm"


def test_a_fresh_tmpfs_is_the_containers_own(tmp_path: Path) -> None:
    (found,) = ask(tmp_path, bundle(tmp_path, OURS, None, "c1,c2"), OWN)
    assert (found["owner"], found["members"], found["fixed"]) == ("container", [], False)


def test_the_hosts_own_is_known_by_its_device(tmp_path: Path) -> None:
    ours = bundle(tmp_path, OURS, "/dev/shm", "c1,c2")
    (found,) = ask(tmp_path, ours, "mount --bind /dev/shm shm")
    assert found["owner"] == "host"


def test_without_an_ipc_namespace_of_its_own_it_is_the_hosts(tmp_path: Path) -> None:
    (found,) = ask(tmp_path, bundle(tmp_path, OURS, None, "c1,c2"), OWN, pid="self")
    assert found["owner"] == "host"


def test_what_no_engine_keeps_is_a_volume(tmp_path: Path) -> None:
    (found,) = ask(tmp_path, bundle(tmp_path, OURS, "/srv/memory", "c1,c2"), OWN)
    assert found["owner"] == "volume"


def test_a_link_is_seen_as_one(tmp_path: Path) -> None:
    (found,) = ask(tmp_path, bundle(tmp_path, OURS, None, "c1,c2"), "rmdir shm; ln -s /dev/shm shm")
    assert found["owner"] == "link"


def test_a_pods_members_are_those_of_the_sandbox(tmp_path: Path) -> None:
    source = f"/run/containers/overlay-containers/{SANDBOX}/userdata/shm"
    ours = bundle(tmp_path, OURS, source, "c1,c2", SANDBOX)
    bundle(tmp_path, SIBLING, source, "c1,c3", SANDBOX)
    bundle(tmp_path, SANDBOX, None, "c1", SANDBOX)
    bundle(tmp_path, STRANGER, "/elsewhere", "c7", "another")
    (tmp_path / "overlay-containers/broken/userdata").mkdir(parents=True)
    (tmp_path / "overlay-containers/broken/userdata/config.json").write_text("{")
    (found,) = ask(tmp_path, ours, OWN)
    assert found["owner"] == "pod"
    assert sorted(found["members"]) == [LABEL + "c1", LABEL + "c1,c3"]


def test_podmans_containers_share_by_the_same_source(tmp_path: Path) -> None:
    source = str(tmp_path / f"overlay-containers/{SIBLING}/userdata/shm")
    ours = bundle(tmp_path, OURS, source, "c1,c2")
    bundle(tmp_path, SIBLING, source, "c1,c5")
    bundle(tmp_path, STRANGER, None, "c7")
    (found,) = ask(tmp_path, ours, OWN)
    assert (found["owner"], found["members"]) == ("pod", [LABEL + "c1,c5"])
