# SPDX-License-Identifier: Apache-2.0
"""What is written to a device cgroup of version 1, by what it allows already; the kernel's are in test_cgroup."""

from __future__ import annotations

from pathlib import Path

import pytest

from oci_gpu_hook.changes import cgroup_v1
from oci_gpu_hook.changes.tree import Undo
from oci_gpu_hook.formats.devicerule import DeviceRule

GPU = DeviceRule("c", 195, 0, "rw")


@pytest.mark.parametrize(
    ("listed", "allows", "takes_back"),
    [
        ("a *:* rwm\n", "", ""),
        ("c *:* rwm\n", "", ""),
        ("c 195:* rw\n", "", ""),
        ("c 195:0 rwm\n", "", ""),
        ("b *:* rwm\n", "c 195:0 rw", "c 195:0 rw"),
        ("c 195:1 rw\n", "c 195:0 rw", "c 195:0 rw"),
        # The kernel does not add up entries, and adds to one of the same numbers.
        ("c 195:* w\nc 195:0 r\n", "c 195:0 rw", "c 195:0 w"),
    ],
)
def test_what_is_written_and_taken_back(tmp_path: Path, listed: str, allows: str, takes_back: str) -> None:
    for name, text in {"list": listed, "allow": "", "deny": ""}.items():
        (tmp_path / f"devices.{name}").write_text(text)
    undo = Undo()
    cgroup_v1.allow([str(tmp_path)], (GPU,), undo)
    assert (tmp_path / "devices.allow").read_text() == allows
    undo.take_back()
    assert (tmp_path / "devices.deny").read_text() == takes_back
