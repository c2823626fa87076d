# SPDX-License-Identifier: Apache-2.0
"""Running containers as their runtimes' states tell of them; those of users are written by users, as they like."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from oci_gpu_hook.cli import examine
from oci_gpu_hook.errors import UsageError
from oci_gpu_hook.host import running
from oci_gpu_hook.host.root import HostRoot

ID = "0123456789abcdef"


def plant(host: Path, path: str, document: object) -> None:
    file = host / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document))


def test_states_of_both_runtimes_tell_process_and_bundle(tmp_path: Path) -> None:
    labels = ["a", "bundle=/b"]
    state = {"init_process_pid": 7, "config": {"labels": labels}}
    plant(tmp_path, f"run/runc/{ID}/state.json", state)
    plant(tmp_path, "run/user/1000/crun/other/status", {"pid": 8, "bundle": "/c"})
    root = HostRoot(str(tmp_path))
    assert running.find(root, "0123") == running.Running(ID, 7, "/b", "runc")
    assert running.find(root, "other") == running.Running("other", 8, "/c", "crun")


@pytest.mark.parametrize(
    "state", [5, [], {"init_process_pid": 7, "config": {"labels": 5}}, {"init_process_pid": "x"}]
)
def test_a_users_state_of_another_shape_is_no_obstacle(tmp_path: Path, state: object) -> None:
    plant(tmp_path, "run/user/1000/runc/shapeless/state.json", state)
    names = [{"id": ID, "names": 5}, 5]
    plant(tmp_path, "run/containers/storage/overlay-containers/containers.json", names)
    plant(tmp_path, f"run/user/1000/crun/{ID}/status", {"pid": 8})
    assert running.find(HostRoot(str(tmp_path)), ID).pid == 8


def test_a_file_without_an_end_is_none(tmp_path: Path) -> None:
    """Any user can have one where states of his containers would be."""
    with open(tmp_path / "zeros", "wb") as file:
        file.truncate(65 << 20)
    assert HostRoot(str(tmp_path)).read("/zeros") is None
    with pytest.raises(UsageError):
        running.find(HostRoot(str(tmp_path)), ID)


def test_a_gpu_that_hangs_in_the_kernel_does_not_hold_doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing ends a process that waits for it; here a signal that does nothing stands for that."""
    monkeypatch.setattr(running, "device_cgroup", lambda *_: "/somewhere")
    monkeypatch.setattr(examine, "_open_all", lambda *_: time.sleep(20))
    monkeypatch.setattr(examine, "_OPEN_SECONDS", 0.1)
    kill, children = os.kill, []
    monkeypatch.setattr(os, "kill", lambda pid, _: children.append(pid))
    root = HostRoot(str(tmp_path))
    try:
        assert examine._opened(root, root, os.getpid(), ["/dev/nvidia0"]) is None
        # Still there: nobody has waited for it to end.
        assert os.waitpid(children[0], os.WNOHANG) == (0, 0)
    finally:
        for child in children:
            kill(child, 9)
            os.waitpid(child, 0)
