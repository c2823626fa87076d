# SPDX-License-Identifier: Apache-2.0
"""Containers for tests, as the host's files have them; and what is asked of one that test_called has found."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from oci_gpu_hook.cli import containerreport
from oci_gpu_hook.container import devicecgroup
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.machine.foreignfile import ContainerRoot
from tests.unit import hosts

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
