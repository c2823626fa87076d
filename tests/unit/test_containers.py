# SPDX-License-Identifier: Apache-2.0
"""Running containers as their runtimes' states tell of them; those of users are written by users, as they like."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from oci_gpu_hook.cli import examine
from oci_gpu_hook.errors import UsageError
from oci_gpu_hook.host import containers
from oci_gpu_hook.host.root import HostRoot
from tests.unit import hosts

RUNC = '{"id": "abc0", "init_process_pid": 7, "config": {"labels": ["bundle=/b/runc"]}}'


CRUN = '{"pid": 8, "bundle": "/b/crun"}'


POD = "0123456789abcdef"


def stat(pid: int, *, start: int = 77, state: str = "S", parent: int = 1) -> str:
    """/proc/PID/stat of a process with a misleading name."""
    fields = [state, str(parent), *["0"] * 17, str(start), "0"]
    return f"{pid} (x) R 1) {' '.join(fields)}\n"


@pytest.fixture()
def runs(tmp_path: Path) -> HostRoot:
    """A host on which a few containers run, as its files have them."""
    hosts.plant(tmp_path, "run/runc/abc0/state.json", RUNC)
    hosts.plant(tmp_path, "run/crun/abd0/status", CRUN)
    hosts.plant(tmp_path, f"run/user/1000/crun/{POD}/status", CRUN.replace("8", "9"))
    hosts.plant(tmp_path, "run/runc/broken/state.json", "{")
    hosts.plant(tmp_path, "run/crun/odd/status", '{"pid": "8"}')
    names = '[{"id": "abc0", "names": ["web"]}, null, {"names": null}]'
    hosts.plant(tmp_path, "var/lib/containers/storage/overlay-containers/containers.json", names)
    for pid in (7, 8, 9, 12, 13):
        hosts.plant(tmp_path, f"proc/{pid}/stat", stat(pid))
    hosts.plant(tmp_path, "proc/8/cgroup", "5:devices:/x/abd0\n0::/x\n")
    hosts.plant(tmp_path, "proc/12/cgroup", f"0::/machine.slice/libpod-{POD}.scope\n")
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
        ("0123", (POD, 9, "/b/crun", "crun")),
        ("12", (POD, 12, "/b/crun", "crun")),
        ("13", ("", 13, "", "")),
    ],
)
def test_a_container_is_found(runs: HostRoot, word: str, found: tuple[str, int, str, str]) -> None:
    assert tuple(containers.find(runs, word))[:4] == found


@pytest.mark.parametrize(
    ("word", "why"),
    [("ab", "several"), ("zz", "no running"), ("broken", "no running"), ("99", "no")],
)
def test_a_container_that_is_not_found(runs: HostRoot, word: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        containers.find(runs, word)


def test_the_device_cgroup_of_each_version(runs: HostRoot) -> None:
    assert containers.device_cgroup(runs, 8, "v1") == "/sys/fs/cgroup/devices/x/abd0"
    assert containers.device_cgroup(runs, 8, "v2") == "/sys/fs/cgroup/x"
    assert containers.device_cgroup(runs, 13, "v1") == ""


@pytest.mark.parametrize(
    "state",
    [
        "5",
        "[]",
        "{",
        '{"init_process_pid": 7, "config": {"labels": 5}}',
        '{"init_process_pid": "x"}',
    ],
)
def test_a_users_state_of_another_shape_is_no_obstacle(
    tmp_path: Path, runs: HostRoot, state: str
) -> None:
    hosts.plant(tmp_path, "run/user/1000/runc/shapeless/state.json", state)
    storage = "run/containers/storage/overlay-containers/containers.json"
    hosts.plant(tmp_path, storage, f'[{{"id": "{POD}", "names": 5}}, 5]')
    assert containers.find(runs, POD).pid == 9


def test_a_file_without_an_end_is_none(tmp_path: Path) -> None:
    """Any user can have one where states of his containers would be."""
    with open(tmp_path / "zeros", "wb") as file:
        file.truncate(65 << 20)
    assert HostRoot(str(tmp_path)).read("/zeros") is None
    with pytest.raises(UsageError):
        containers.find(HostRoot(str(tmp_path)), POD)


def test_a_gpu_that_hangs_in_the_kernel_does_not_hold_doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing ends a process that waits for it; here a signal that does nothing stands for that."""
    monkeypatch.setattr(containers, "device_cgroup", lambda *_: "/somewhere")
    monkeypatch.setattr(examine, "_open_all", lambda *_: time.sleep(20))
    monkeypatch.setattr(examine, "_OPEN_SECONDS", 0.1)
    kill, children = os.kill, []
    monkeypatch.setattr(os, "kill", lambda pid, _: children.append(pid))
    root = HostRoot(str(tmp_path))
    try:
        assert examine._opened(root, root, os.getpid(), ["/dev/nvidia0"]) == (None, "no answer")
        # Still there: nobody has waited for it to end.
        assert os.waitpid(children[0], os.WNOHANG) == (0, 0)
    finally:
        for child in children:
            kill(child, 9)
            os.waitpid(child, 0)
