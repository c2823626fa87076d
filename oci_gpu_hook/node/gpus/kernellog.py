# SPDX-License-Identifier: Apache-2.0
"""XID errors of NVIDIA's kernel module, as far as the kernel's log still has them.

Only records of the kernel itself count: a program that writes to /dev/kmsg gets another facility there, in any case
(the kernel's Documentation/ABI/testing/dev-kmsg).  Reads only, and waits for nothing.  Never on the hook's path.
"""

from __future__ import annotations

import posix
from typing import TYPE_CHECKING

from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.record import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_KMSG = "/dev/kmsg"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
# No record is longer; a shorter read gets none at all.
_LONGEST_RECORD = 8192
# Far more than a kernel keeps, which is a quarter of a MiB unless log_buf_len says otherwise.
_MOST_READS = 1 << 17
# The levels of the facility `kern`, which is 0; the facility is the number above these three bits.
_KERN_LEVELS = 8
_BEGIN = "NVRM: Xid ("
_HEX = frozenset("0123456789abcdef")
_MOST_DIGITS = 5


class Xid(NamedTuple):
    """One error: number of its record in the log, PCI address as ``00000000:07:00``, number of the error."""

    sequence: int
    pci: str
    number: int


def boot_id(root: HostRoot) -> str:
    """What tells this boot from others."""
    return (root.read(_BOOT_ID) or b"").decode("ascii", "replace").strip()


def xids(root: HostRoot) -> tuple[Xid, ...] | None:
    """All that the log has, in its order; None if it cannot be read."""
    try:
        fd = root.open(_KMSG, posix.O_RDONLY | posix.O_NONBLOCK)
    except OSError:
        return None
    try:
        # Nearly all lines are others': those cost no more than a look.
        lines = [line for line in _lines(fd) if _BEGIN.encode() in line]
        return tuple([found for found in map(parse, lines) if found])
    finally:
        posix.close(fd)


def _lines(fd: int) -> Iterator[bytes]:
    """The lines that are whole: the kernel gives one record with each read, a file in a test as much as fits."""
    rest = b""
    for _ in range(_MOST_READS):
        try:
            piece = posix.read(fd, _LONGEST_RECORD)
        except BrokenPipeError:
            continue  # records were overwritten before they were read: the next one follows
        except OSError:
            return
        if not piece:
            return
        *lines, rest = (rest + piece).split(b"\n")
        rest = rest[-_LONGEST_RECORD:]
        yield from lines


def parse(line: bytes) -> Xid | None:
    """The XID error of a line of the log; None for any other line, for one that is damaged, and for one of a user."""
    head, semicolon, message = line.decode("utf-8", "replace").partition(";")
    fields = head.split(",")
    if not semicolon or not message.startswith(_BEGIN) or len(fields) < 2:
        return None
    level, sequence = fields[:2]
    if not (_is_number(level, 3) and int(level) < _KERN_LEVELS and _is_number(sequence, 19)):
        return None
    address, _, rest = message[len(_BEGIN) :].partition("): ")
    number = rest.partition(",")[0].strip()
    pci = place(address[4:] if address.startswith("PCI:") else address)
    if not pci or not _is_number(number, _MOST_DIGITS):
        return None
    return Xid(int(sequence), pci, int(number))


def place(address: str) -> str:
    """Domain, bus and device of a PCI address without its function, ``00000000:07:00``; "" for what is no address."""
    parts = address.lower().partition(".")[0].split(":")
    if len(parts) != 3 or not all([part and set(part) <= _HEX for part in parts]):
        return ""
    domain, bus, device = parts
    if len(domain) > 8 or len(bus) != 2 or len(device) != 2:
        return ""
    return f"{domain.zfill(8)}:{bus}:{device}"


def _is_number(text: str, most: int) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= most
