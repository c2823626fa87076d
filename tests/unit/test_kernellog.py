# SPDX-License-Identifier: Apache-2.0
"""XID errors of the kernel's log: which records count, and totals that never go back."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.exporters import counters, sinceboot
from oci_gpu_hook.node.gpus import kernellog
from oci_gpu_hook.node.gpus.kernellog import Xid

GPU = "00000000:07:00"


def record(sequence: int, message: str = "79, pid=1, GPU has fallen off the bus.", level: int = 4) -> str:
    return f"{level},{sequence},5000,-;NVRM: Xid (PCI:0000:07:00): {message}\n SUBSYSTEM=pci\n"


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
        (b"12,7,1,-;NVRM: Xid (PCI:0000:07:00): 79, by a user", None),
        (b"4,7,1,-;somebody: NVRM: Xid (PCI:0000:07:00): 79,", None),
        (b" NVRM: Xid (PCI:0000:07:00): 79,", None),
        (b"NVRM: Xid (PCI:0000:07:00): 79,", None),
        (b"4;NVRM: Xid (PCI:0000:07:00): 79,", None),
        (b"4,7,1,-;NVRM: Xid (PCI:0000:07:00): 7", Xid(7, GPU, 7)),
        (b"4,7,1,-;NVRM: Xid (PCI:0000:07:00): 999999,", None),
        (b"4,7,1,-;NVRM: Xid (PCI:0000:07:00): \xd9\xa3,", None),
        (b"4,7,1,-;NVRM: Xid (PCI:0000:0\\x0a:00): 79,", None),
        (b"4,7,1,-;NVRM: Xid (PCI:0000:07:00", None),
        (b"4,7,1,-;NVRM: Xid (", None),
        (b"", None),
    ],
)
def test_only_whole_records_of_the_kernel_count(line: bytes, found: Xid | None) -> None:
    assert kernellog.parse_xid(line) == found


@given(st.binary())
def test_no_line_breaks_the_reader(line: bytes) -> None:
    kernellog.parse_xid(line)
    kernellog.parse_xid(b"4,7,1,-;NVRM: Xid (" + line)


class Host:
    """A root with a kernel's log, and the folder in /run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for folder in ("dev", "run/oci-gpu-hook", "proc/sys/kernel/random"):
            (path / folder).mkdir(parents=True)
        self.boots("first")
        self.root = HostRoot(str(path))

    def boots(self, name: str) -> None:
        (self.path / "proc/sys/kernel/random/boot_id").write_text(f"{name}\n")

    def logs(self, *records: str) -> None:
        (self.path / "dev/kmsg").write_text("".join(records))

    def takes(self, pci: str) -> None:
        """Give a GPU to another driver."""
        folder = self.path / f"sys/bus/pci/devices/{pci[4:]}.0"
        folder.mkdir(parents=True)
        (folder / "driver").symlink_to("../../drivers/vfio-pci")

    def seen(self, *gpus: str, remember: bool = True) -> list[str]:
        """The GPUs that were there since the boot, with those that are there now."""
        known, _ = sinceboot.renew(self.root, (), {pci: f"GPU-{pci}" for pci in gpus}, remember=remember)
        return [*known.seen]

    def totals(self, *, remember: bool = True) -> dict[int, int] | None:
        known, is_read = sinceboot.renew(self.root, (), {}, remember=remember)
        return {number: count for (_, number), count in known.xids.items()} if is_read else None


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(counters, "HostRoot", lambda: HostRoot(str(tmp_path)))
    return Host(tmp_path)


def test_each_record_counts_once_and_nothing_goes_back(host: Host) -> None:
    host.logs(record(1), record(2, "31, x"), "6,3,1,-;other\n")
    assert host.totals() == {79: 1, 31: 1}
    assert host.totals() == {79: 1, 31: 1}
    # The log has forgotten the first ones, and has lost some between.
    host.logs("6,9,1,-;other\n", record(10), record(11))
    assert host.totals(remember=False) == {79: 3, 31: 1}
    assert host.totals() == {79: 3, 31: 1}
    host.logs()
    assert host.totals() == {79: 3, 31: 1}


def test_another_boot_counts_anew(host: Host) -> None:
    host.logs(record(5), record(6))
    assert host.totals() == {79: 2}
    host.boots("second")
    host.logs(record(1))
    assert host.totals() == {79: 1}


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"boot": "first"}', '{"boot":"first","xids":[1]}'])
def test_what_is_damaged_is_counted_from_the_log_again(host: Host, damage: str) -> None:
    host.logs(record(5))
    host.totals()
    (host.path / "run/oci-gpu-hook/gpu-health.json").write_text(damage)
    assert host.totals() == {79: 1}
    saved = json.loads((host.path / "run/oci-gpu-hook/gpu-health.json").read_text())
    assert saved["sequence"] == 5


def test_an_unreadable_log_is_told_and_a_pipe_is_not_waited_for(host: Host) -> None:
    assert host.totals() is None
    os.mkfifo(host.path / "dev/kmsg")
    assert host.totals() == {}
    # A reader that waits for the rest of a record, as one that was cut.
    (host.path / "dev/kmsg").unlink()
    host.logs(record(1)[:-3].partition("\n")[0])
    assert host.totals() == {}


def test_gpus_are_remembered_until_they_are_taken_away_or_the_next_boot(host: Host) -> None:
    host.logs()
    both = ["00000000:07:00", "00000000:0a:00"]
    assert host.seen(*both) == both
    assert host.seen() == both
    host.takes(both[1])
    assert host.seen(remember=False) == both[:1]
    shutil.rmtree(host.path / "sys")
    assert host.seen() == both
    host.takes(both[1])
    assert host.seen() == both[:1]
    shutil.rmtree(host.path / "sys")
    assert host.seen() == both[:1]
    host.boots("second")
    assert host.seen() == []
