# SPDX-License-Identifier: Apache-2.0
"""Close descriptors, and read what they name within a bound.  contextlib and os, which do it too, cost a start more."""

from __future__ import annotations

import posix

_LARGEST_OFFSET = 1 << 48


class closing:
    """A descriptor that is closed at the end of a ``with``."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: object) -> None:
        posix.close(self._fd)


def reopened(fd: int, flags: int = posix.O_RDONLY) -> int:
    """A descriptor to use the very file that an O_PATH descriptor names: its link in /proc leads nowhere else.

    The caller checks the file's type first: to open a device can do harm, and a fifo would hold the start up.
    """
    return posix.open(f"/proc/self/fd/{fd}", flags | posix.O_CLOEXEC)


def exactly(fd: int, offset: int, size: int) -> bytes:
    """The `size` bytes at `offset`, which the file itself may name; ValueError if it has not as many."""
    data = posix.pread(fd, size, offset) if offset <= _LARGEST_OFFSET else b""
    if len(data) < size:
        raise ValueError("it is cut off")
    return data


def content(fd: int, most: int) -> bytes | None:
    """What is left of a file; None if that is more than `most` bytes: a file may have no end, or grow meanwhile."""
    pieces, size = [], 0
    while piece := posix.read(fd, 1 << 16):
        size += len(piece)
        if size > most:
            return None
        pieces.append(piece)
    return b"".join(pieces)
