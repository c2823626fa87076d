# SPDX-License-Identifier: Apache-2.0
"""Close descriptors, read what they name within a bound, and replace files.  contextlib and os cost a start more."""

from __future__ import annotations

import posix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_LARGEST_OFFSET = 1 << 48
NAMED = posix.O_PATH | posix.O_NOFOLLOW | posix.O_CLOEXEC  # a link is not followed, nothing is opened
_WRITE = posix.O_WRONLY | posix.O_CREAT | posix.O_NOFOLLOW | posix.O_CLOEXEC


class closing:
    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: object) -> None:
        posix.close(self._fd)


def reopened(fd: int, flags: int = posix.O_RDONLY) -> int:
    """Of the very file that an O_PATH descriptor names: its link in /proc leads nowhere else.  The caller checks its
    type first: to open a device can do harm, and a fifo would hold the start up.
    """
    return posix.open(f"/proc/self/fd/{fd}", flags | posix.O_CLOEXEC)


def exactly(fd: int, offset: int, size: int) -> bytes:
    """The file itself may name `offset` and `size`; ValueError if it has not as many bytes."""
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


def write(fd: int, data: bytes) -> None:
    while data:
        data = data[posix.write(fd, data) :]


def replace(
    name: str,
    data: bytes,
    new: str,
    ready: Callable[[int], None] | None = None,
    *,
    folder: int | None = None,
    how: int = posix.O_EXCL,
    mode: int = 0o600,
    put: Callable[..., None] = posix.rename,
) -> None:
    """Readers see all of it or none: it is written as `new`, of which an error leaves none.  ready: gets its descriptor
    before it is put in place; how: O_TRUNC if one that was killed may have left `new`.
    """
    with closing(posix.open(new, _WRITE | how, mode, dir_fd=folder)) as fd:
        try:
            write(fd, data)
            if ready:
                ready(fd)
            put(new, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            posix.unlink(new, dir_fd=folder)
            raise
