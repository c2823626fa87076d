# SPDX-License-Identifier: Apache-2.0
"""The type of a file, and who may write to it, from its status (inode(7)): `stat` is one more file to load."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from posix import stat_result
    from typing import Union

    from oci_gpu_hook.kernel.syscalls import FileStatus

    Status = Union[stat_result, FileStatus]

S_IFMT = 0o170000
S_IFLNK = 0o120000
S_IFREG = 0o100000
S_IFDIR = 0o040000
S_IFCHR = 0o020000
S_IFIFO = 0o010000
S_IFSOCK = 0o140000
WRITABLE_BY_OTHERS = 0o022  # S_IWGRP | S_IWOTH


def _of_type(kind: int) -> Callable[[Status], bool]:
    return lambda status: status.st_mode & S_IFMT == kind


is_folder, is_regular, is_link = _of_type(S_IFDIR), _of_type(S_IFREG), _of_type(S_IFLNK)
is_socket, is_character_device, is_fifo = _of_type(S_IFSOCK), _of_type(S_IFCHR), _of_type(S_IFIFO)


def is_same(one: Status, other: Status) -> bool:
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


def stamp(status: stat_result) -> tuple[int, ...]:
    """What changes with a file's content, owner or mode."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def is_open_to_others(status: stat_result, owner: int = 0) -> bool:
    """Whether users other than root own it or may write to it; `owner` counts as root."""
    return bool(openness(status, (0, owner)))


def openness(status: stat_result, roots: tuple[int, ...]) -> str:
    """Why it is open to others than the users `roots`, "" if it is not."""
    if status.st_uid not in roots:
        return f"it is user {status.st_uid}'s"
    return "others than root may write to it" if status.st_mode & WRITABLE_BY_OTHERS else ""
