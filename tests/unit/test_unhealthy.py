# SPDX-License-Identifier: Apache-2.0
"""Which GPUs are not healthy: what tells against a GPU, and what clears it, without a restart of anything."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_gpu_hook.host import leases
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.exporters import counters, healthrecord
from oci_gpu_hook.node.exporters.healthrecord import Xid
from oci_gpu_hook.node.gpus import nvml
from oci_gpu_hook.node.gpus.nvml import Readings
from tests.unit import hosts

BUSES = ("00000000:07:00.0", "00000000:0f:00.0")
FIRST = BUSES[0]
FELL = "XID 79, after which it needs a reset"


class Node(HostRoot):
    """A host with two GPUs whose driver, log and NVML say what a test wants."""

    def log(self, sequence: int, number: int, bus: str = FIRST) -> None:
        with Path(f"{self.path}/dev/kmsg").open("a") as log:
            log.write(f"4,{sequence},1,-;NVRM: Xid (PCI:{bus[4:-2]}): {number}, pid=1\n")

    def boots(self, name: str) -> None:
        Path(f"{self.path}/proc/sys/kernel/random/boot_id").write_text(f"{name}\n")

    def binds(self, bus: str) -> None:
        link = Path(f"{self.path}/sys/bus/pci/drivers/nvidia/{bus[4:]}")
        # Another link beside it, so that the number of the old one is not used again.
        Path(f"{link}.new").symlink_to("..")
        Path(f"{link}.new").rename(link)

    def renewed(self, said: Readings | None = None) -> dict[str, str]:
        healthrecord.renew(self, said, {})
        return leases.unhealthy(self)

    def tested(self, why: str, during: int = 0) -> dict[str, str]:
        """during: the number of the record of an error that comes when the test of the first GPU has ended."""
        until = healthrecord.renew(self, None, {})
        if during:
            self.log(during, 79)
            self.renewed()  # by the service
        healthrecord.renew(self, None, {FIRST: why}, until)
        return leases.unhealthy(self)

    def reads(self, *answers: int, **values: int) -> dict[str, str]:
        """By NVML, which these GPUs answer; the values are the first one's."""
        return self.renewed({BUSES[it]: values if it == 0 else {} for it in answers})


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(counters, "lock", contextlib.nullcontext)
    for folder in ("run", "dev", "proc/sys/kernel/random", "sys/bus/pci/drivers/nvidia"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "dev/kmsg").write_text("")
    made = Node(str(tmp_path))
    made.boots("one")
    for number, bus in enumerate(BUSES):
        hosts.plant_gpu(tmp_path, int(bus[9:11], 16), number)
        made.binds(bus)
    return made


def test_what_nvml_says_of_a_gpu_and_what_a_validation_has_found(node: Node) -> None:
    """A GPU that somebody has, whose process the host does not see, or that was not given back."""
    assert node.reads(0, 1, memory_of_none=1024) == {}
    why = "9000 MiB of its memory are in use, and no process has them"
    assert node.reads(0, 1, memory_of_none=9000) == {FIRST: why}
    assert node.reads(0, 1) == {}
    assert node.reads(1) == {FIRST: "it does not answer NVML"}
    assert node.renewed() == {FIRST: "it does not answer NVML"}
    assert node.reads(0, 1) == {}
    # What a validation has found stays until one passes.
    assert node.tested("wrong sums") == {FIRST: "its validation failed: wrong sums"}
    assert node.reads(0, 1) == {FIRST: "its validation failed: wrong sums"}
    assert node.tested("") == {}


def test_a_fatal_error_stays_until_a_validation_passes(node: Node) -> None:
    node.log(5, 31)  # a program's mistake
    assert node.renewed() == {}
    node.log(6, 79, BUSES[1])
    assert node.renewed() == {BUSES[1]: FELL}
    assert node.tested("") == {BUSES[1]: FELL}, "of the first"
    node.binds(BUSES[1])
    node.log(7, 79)
    assert node.renewed() == node.reads(0, 1) == {FIRST: FELL}
    assert {*node.tested("wrong sums")[FIRST].split("; ")} == {FELL, "its validation failed: wrong sums"}
    assert node.tested("") == {}
    # The log still has the record, which counts no more; a later one does.
    assert node.renewed() == {}
    assert not Path(f"{node.path}/run/oci-gpu-hook/unhealthy").exists()
    assert node.tested("", during=8) == node.renewed() == {FIRST: FELL}, "no test has passed since"
    assert node.tested("") == {}


def test_a_reset_clears_what_it_was_wanted_for(node: Node) -> None:
    node.log(6, 119)
    assert node.reads(0, 1, ecc_uncorrected=2, recovery_action=1)[FIRST].split("; ") == [
        "XID 119, after which it needs a reset",
        "NVML says that it needs a reset",
        "2 uncorrectable ECC errors since its last reset",
    ]
    # While it is reset it does not answer: that is no end of it.
    assert "XID 119" in node.reads(1)[FIRST]
    assert node.reads(0, 1, ecc_uncorrected=0, recovery_action=0) == {}
    assert node.renewed() == {}


@pytest.mark.parametrize("cleared", ["bound", "boot"])
def test_what_is_known_goes_with_the_driver_and_the_boot(node: Node, cleared: str) -> None:
    node.log(6, 79)
    assert node.tested("wrong sums") != {}
    if cleared == "boot":
        Path(f"{node.path}/dev/kmsg").write_text("")
        node.boots("another")
    else:
        node.binds(FIRST)
    assert node.renewed() == {}


@pytest.mark.parametrize("content", ["{", "[]", '{"boot": "one"}'])
def test_a_damaged_state_is_made_anew(node: Node, content: str) -> None:
    node.log(6, 79)
    assert list(node.renewed()) == [FIRST]
    Path(f"{node.path}/run/oci-gpu-hook/gpu-health.json").write_text(content)
    assert list(node.renewed()) == [FIRST]


# --- XID errors of the kernel's log: which records count

GPU = "00000000:07:00"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b"4,7,1,-;NVRM: Xid (PCI:0000:07:00): 79, pid=1", Xid(7, GPU, 79)),
        (b"3,7,1,c,more=1;NVRM: Xid (PCI:0000:07:00.0): 31", Xid(7, GPU, 31)),
        (b"4,7,1,-;NVRM: Xid (0000:07:00): 13, Graphics", Xid(7, GPU, 13)),
        (b"4,7,1,-;NVRM: Xid (PCI:0001:AF:00): 48,", Xid(7, "00000001:af:00", 48)),
        (b"4,7,1,-;NVRM: Xid (PCI:0000:07:00 GPU-I:05): 95, pid=1", Xid(7, GPU, 95)),
        (b"4,7,1,-;NVRM: Xid (PCI:0000:07:00 GPU-I:05 GPU-CI:00): 95, pid=1", Xid(7, GPU, 95)),
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
    assert healthrecord.xids(root) == () and not healthrecord.is_log_readable(root)
    os.mkfifo(log)
    assert healthrecord.xids(root) == ()
    log.unlink()
    log.write_text("4,5,5000,-;NVRM: Xid (PCI:0000:07:00): 79, pid=1\n SUBSYSTEM=pci\n6,6,1,-;other\n")
    assert healthrecord.xids(root) == (Xid(5, GPU, 79),) and healthrecord.is_log_readable(root)
    # By a program, and by the kernel: the module is loaded again.
    for level, found in ((12, (Xid(5, GPU, 79),)), (5, ())):
        with log.open("a") as file:
            file.write(f"{level},7,1,-;NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.65.06\n")
        assert healthrecord.xids(root) == found


def test_a_process_that_ends_between_two_questions_leaves_no_memory() -> None:
    pynvml = mock.MagicMock(NVMLError=ValueError)
    pynvml.nvmlDeviceGetMemoryInfo.side_effect = [mock.Mock(used=9 << 30), mock.Mock(used=5 << 20)]
    for kind in ("Compute", "Graphics"):
        getattr(pynvml, f"nvmlDeviceGet{kind}RunningProcesses").return_value = []
    assert nvml._memory_of_none(pynvml, None) == 5
