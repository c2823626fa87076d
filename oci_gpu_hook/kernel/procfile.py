# SPDX-License-Identifier: Apache-2.0
"""Read a file that the kernel writes, such as those of /proc: they have no size, and are read to their end."""

from __future__ import annotations

import posix

# A mount namespace has 100,000 mounts at most (fs.mount-max, proc_sys_fs(5)).
_LARGEST = 24 << 20
_EFBIG = 27


def read(path: str, dir_fd: int | None = None) -> bytes:
    """The whole content; a relative `path` starts at `dir_fd`.  OSError also where it is more than a kernel writes."""
    fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC, dir_fd=dir_fd)
    try:
        pieces, size = [], 0
        while piece := posix.read(fd, 1 << 16):
            pieces.append(piece)
            size += len(piece)
            if size > _LARGEST:
                raise OSError(_EFBIG, posix.strerror(_EFBIG), path)
    finally:
        posix.close(fd)
    return b"".join(pieces)
