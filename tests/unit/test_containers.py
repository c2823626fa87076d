# SPDX-License-Identifier: Apache-2.0
"""Running containers as their runtimes' states tell of them; another user's states, which say what he likes, do not."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from oci_gpu_hook.cli import containerreport
from oci_gpu_hook.container import devicecgroup
from oci_gpu_hook.errors import UsageError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.engines import containers
from oci_gpu_hook.node.machine import processes
from oci_gpu_hook.node.machine.foreignfile import ContainerRoot
from tests.unit import hosts

RUNC = '{"id": "abc0", "init_process_pid": 7, "config": {"labels": ["bundle=/b/runc"]}}'
CRUN = '{"pid": 8, "bundle": "/b/crun"}'
POD = "0123456789abcdef" * 4
# A user whose files a test can make: this one, or as root any other.
USER = os.getuid() or 1000


def owned(tree: Path, *folders: str) -> None:
    """Give these folders and what is in them to USER."""
    for folder in folders:
        top = tree / folder.lstrip("/")
        for path in (top, *top.rglob("*")):
            os.lchown(path, USER, -1)


def plant_cgroup(tree: Path, pid: int, path: str) -> None:
    """The cgroups of a process: root's folders, as those of the tree are."""
    hosts.plant(tree, "sys/fs/cgroup/devices/devices.list", "")
    (tree / f"sys/fs/cgroup/devices{path}").mkdir(parents=True, exist_ok=True)
    hosts.plant(tree, f"proc/{pid}/cgroup", f"5:devices:{path}\n0::/x\n")


def stat(pid: int, *, start: int = 77, state: str = "S", parent: int = 1, threads: int = 1) -> str:
    """/proc/PID/stat of a process with a misleading name."""
    fields = [state, str(parent), *["0"] * 15, str(threads), "0", str(start), "0"]
    return f"{pid} (x) R 1) {' '.join(fields)}\n"


@pytest.fixture()
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostRoot:
    """A host on which a few containers run, as its files have them; the caller is root."""
    monkeypatch.setattr("posix.geteuid", lambda: 0)
    hosts.plant(tmp_path, "run/runc/abc0/state.json", RUNC)
    hosts.plant(tmp_path, "run/crun/abd0/status", CRUN)
    hosts.plant(tmp_path, f"run/user/{USER}/crun/{POD}/status", CRUN.replace("8", "9"))
    # Of root's containers he can say what he likes.
    hosts.plant(tmp_path, f"run/user/{USER}/crun/abc0/status", CRUN.replace("8", "9"))
    hosts.plant(tmp_path, f"run/user/{USER}/crun/roots/status", CRUN)
    owned(tmp_path, f"run/user/{USER}")
    makers = {9: USER, 12: USER}
    monkeypatch.setattr(processes, "maker", lambda root, pid: makers.get(pid, 0))
    hosts.plant(tmp_path, "run/runc/broken/state.json", "{")
    hosts.plant(tmp_path, "run/crun/odd/status", '{"pid": "8"}')
    names = '[{"id": "abc0", "names": ["web"]}, null, {"names": null}]'
    hosts.plant(tmp_path, "var/lib/containers/storage/overlay-containers/containers.json", names)
    for pid in (7, 8, 9, 12, 13):
        hosts.plant(tmp_path, f"proc/{pid}/stat", stat(pid))
    plant_cgroup(tmp_path, 8, "/x/abd0")
    plant_cgroup(tmp_path, 12, f"/machine.slice/libpod-{POD}.scope")
    hosts.plant(tmp_path, "proc/13/cgroup", "0::/user.slice\n")
    return HostRoot(str(tmp_path))


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("abc0", ("abc0", 7, "/b/runc", "runc")),
        ("abc", ("abc0", 7, "/b/runc", "runc")),
        ("web", ("abc0", 7, "/b/runc", "runc")),
        ("abd0", ("abd0", 8, "/b/crun", "crun")),
        ("8", ("abd0", 8, "/b/crun", "crun")),
        ("9", ("", 9, "", "")),
        ("12", (POD, 12, "", "")),
        ("13", ("", 13, "", "")),
    ],
)
def test_a_container_is_found(runs: HostRoot, word: str, found: tuple[str, int, str, str]) -> None:
    assert tuple(containers.find(runs, word))[:4] == found


@pytest.mark.parametrize(
    ("word", "why"),
    [("ab", "several"), ("zz", "no running"), ("broken", "no running"), ("roots", "no running"), ("99", "no")],
)
def test_a_container_that_is_not_found(runs: HostRoot, word: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        containers.find(runs, word)


def test_the_device_cgroup_of_each_version(runs: HostRoot) -> None:
    assert processes.device_cgroup(runs, 8, "v1") == "/sys/fs/cgroup/devices/x/abd0"
    assert processes.device_cgroup(runs, 8, "v2") == "/sys/fs/cgroup/x"
    assert processes.device_cgroup(runs, 13, "v1") == ""


def test_a_user_reads_his_own_states(runs: HostRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posix.geteuid", lambda: USER)
    assert containers.find(runs, "0123")[:4] == (POD, 9, "/b/crun", "crun")
    assert containers.find(runs, "12")[:4] == (POD, 12, "/b/crun", "crun")
    assert containers.find(runs, "12").owner == USER


def test_a_users_container_has_no_name_of_roots(tmp_path: Path, runs: HostRoot) -> None:
    """Its cgroup has the id of a container of root's that is named."""
    names = json.dumps([{"id": POD, "names": ["web"]}])
    hosts.plant(tmp_path, "var/lib/containers/storage/overlay-containers/volatile-containers.json", names)
    found = containers.find(runs, "12")
    assert (found.id, found.owner, found.called.name, found.called.engine) == (POD, USER, "", "podman")


def test_a_gpu_that_hangs_in_the_kernel_does_not_hold_doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing ends a process that waits for it; here a signal that does nothing stands for that."""
    monkeypatch.setattr(containerreport, "_open_all", lambda *_: time.sleep(20))
    monkeypatch.setattr(containerreport, "_OPEN_SECONDS", 0.1)
    kill, children = os.kill, []
    monkeypatch.setattr(os, "kill", lambda pid, _: children.append(pid))
    root = HostRoot(str(tmp_path))
    inside = ContainerRoot(HostRoot(), os.getpid())
    try:
        nodes = {"/dev/nvidia0": (195, 0)}
        assert containerreport._opened(root, inside, os.getpid(), "/somewhere", nodes) == "a GPU does not answer"
        # Still there: no process has waited for it to end.
        assert os.waitpid(children[0], os.WNOHANG) == (0, 0)
    finally:
        for child in children:
            kill(child, 9)
            os.waitpid(child, 0)


def test_a_cgroups_name_says_whose_it_is() -> None:
    names = ("c1", "docker-c1.scope", "system.slice:docker:c1", "xc1", "c1x.scope", "c1-x")
    assert [name for name in names if devicecgroup.is_named_after(name, "c1")] == [*names[:3]]
    assert not devicecgroup.is_named_after("c1", "")
