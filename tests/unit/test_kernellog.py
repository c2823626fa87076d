# SPDX-License-Identifier: Apache-2.0
"""XID errors of the kernel's log: which records count."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.exporters import healthrecord
from oci_gpu_hook.node.exporters.healthrecord import Xid

GPU = "00000000:07:00"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b"4,7,1,-;NVRM: Xid (PCI:0000:07:00): 79, pid=1", Xid(7, GPU, 79)),
        (b"3,7,1,c,more=1;NVRM: Xid (PCI:0000:07:00.0): 31", Xid(7, GPU, 31)),
        (b"4,7,1,-;NVRM: Xid (0000:07:00): 13, Graphics", Xid(7, GPU, 13)),
        (b"4,7,1,-;NVRM: Xid (PCI:0001:AF:00): 48,", Xid(7, "00000001:af:00", 48)),
        # Level 7 is the kernel's last, debug; 8 is a user's first (syslog(2)).
        (b"7,7,1,-;NVRM: Xid (PCI:0000:07:00): 79,", Xid(7, GPU, 79)),
        (b"8,7,1,-;NVRM: Xid (PCI:0000:07:00): 79, by a user", None),
        (b"4,7,1,-;somebody: NVRM: Xid (PCI:0000:07:00): 79,", None),
        (b" NVRM: Xid (PCI:0000:07:00): 79,", None),
        (b"4,7,1,-;NVRM: Xid (PCI:0000:07:00): 999999,", None),
        (b"4,7,1,-;NVRM: Xid (PCI:0000:07:00): \xd9\xa3,", None),
        (b"4,7,1,-;NVRM: Xid (PCI:0000:0\\x0a:00): 79,", None),
        (b"4,7,1,-;NVRM: Xid (PCI:0000:07:00", None),
    ],
)
def test_only_whole_records_of_the_kernel_count(line: bytes, found: Xid | None) -> None:
    assert healthrecord.parse_xid(line) == found


@given(st.binary())
def test_no_line_breaks_the_reader(line: bytes) -> None:
    healthrecord.parse_xid(line)
    healthrecord.parse_xid(b"4,7,1,-;NVRM: Xid (" + line)


def test_an_unreadable_log_is_told_and_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    root, log = HostRoot(str(tmp_path)), tmp_path / "dev/kmsg"
    log.parent.mkdir()
    assert healthrecord.xids(root) is None
    os.mkfifo(log)
    assert healthrecord.xids(root) == ()
    log.unlink()
    log.write_text("4,5,5000,-;NVRM: Xid (PCI:0000:07:00): 79, pid=1\n SUBSYSTEM=pci\n6,6,1,-;other\n")
    assert healthrecord.xids(root) == (Xid(5, GPU, 79),)
