# SPDX-License-Identifier: Apache-2.0
"""Read a file that the kernel writes, such as those of /proc: they have no size, and are read to their end."""

from __future__ import annotations

import posix

from oci_gpu_hook.kernel.descriptors import closing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

# A mount namespace has 100,000 mounts at most (fs.mount-max, proc_sys_fs(5)).
_LARGEST = 24 << 20
_EFBIG = 27
# The kernel gives a page of such a file at a time.
_PIECE = 1 << 13


def read_whole(path: str, dir_fd: int | None = None) -> bytes:
    """A relative `path` starts at `dir_fd`.  OSError also if it is more than a kernel writes."""
    return b"".join([*pieces(path, dir_fd)])


def stat_words(stat: bytes) -> list[bytes]:
    """The words of /proc/PID/stat behind the command, which may have any letters: the state is the first one."""
    return stat.rpartition(b")")[2].split()


def pieces(path: str, dir_fd: int | None = None) -> Iterator[bytes]:
    """The same in pieces of whole lines, for a file that is not to be held whole."""
    with closing(posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC, dir_fd=dir_fd)) as fd:
        size, rest = 0, [b""]
        while piece := posix.read(fd, _PIECE):
            size += len(piece)
            if size > _LARGEST:
                raise OSError(_EFBIG, posix.strerror(_EFBIG), path)
            lines, newline, after = piece.rpartition(b"\n")
            if newline:
                yield b"".join([*rest, lines, newline])
                rest = [after]
            else:
                rest.append(piece)
        yield b"".join(rest)
