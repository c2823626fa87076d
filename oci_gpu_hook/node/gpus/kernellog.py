# SPDX-License-Identifier: Apache-2.0
"""XID errors of NVIDIA's kernel module, as far as the kernel's log still has them.

Only records of the kernel itself count: what a program writes to /dev/kmsg gets another facility (the kernel's
Documentation/ABI/testing/dev-kmsg).  Reads only, and waits for nothing.
"""

from __future__ import annotations

import posix
import re
from collections.abc import Iterator
from contextlib import suppress

from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel.descriptors import closing
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.request.selectors import bus_id

# No record is longer; a shorter read gets none at all.
_LONGEST_RECORD = 8192
# Far more than a kernel keeps, a quarter of a MiB without log_buf_len.
_MAX_READS = 1 << 17
# Facility and level, in one number, and the record's: facility 0 is the kernel's, of which 7 is the last level.
_RECORD = re.compile(
    rb"([0-7]),([0-9]{1,19})(?:,[^;]*)?;NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]+)\): \s*([0-9]{1,5})\s*(?:,|$)"
)


class Xid(NamedTuple):
    """One error: number of its record in the log, PCI address as ``00000000:07:00``, number of the error."""

    sequence: int
    pci: str
    number: int


def xids(host: HostRoot) -> tuple[Xid, ...] | None:
    """All that the log has, in its order; None if it cannot be read."""
    with suppress(OSError), closing(host.open("/dev/kmsg", posix.O_RDONLY | posix.O_NONBLOCK)) as fd:
        return tuple([found for found in map(parse_xid, _lines(fd)) if found])
    return None


def _lines(fd: int) -> Iterator[bytes]:
    """The kernel gives one record with each read, and a file as much as fits."""
    for _ in range(_MAX_READS):
        try:
            piece = posix.read(fd, _LONGEST_RECORD)
        except BrokenPipeError:
            continue  # records were overwritten before they were read: the next one follows
        except OSError:
            return
        if not piece:
            return
        yield from piece.split(b"\n")


def parse_xid(line: bytes) -> Xid | None:
    """The XID error of a line of the log; None for any other line, for one that is damaged, and for one of a user."""
    found = _RECORD.match(line)
    pci = place(found[3].decode()) if found else ""
    return Xid(int(found[2]), pci, int(found[4])) if found and pci else None


def place(address: str) -> str:
    """Domain, bus and device of a PCI address, with or without its function, ``00000000:07:00``; else ""."""
    return bus_id(address if "." in address else f"{address}.0").partition(".")[0]
