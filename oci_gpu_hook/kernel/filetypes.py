# SPDX-License-Identifier: Apache-2.0
"""The type of a file, and who may write to it, from its status (inode(7)).

The standard library's module `stat` does the same, but is one more file to load at every start.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from posix import stat_result
    from typing import Union

    from oci_gpu_hook.kernel.syscalls import Known

    Status = Union[stat_result, Known]

S_IFMT = 0o170000
S_IFLNK = 0o120000
S_IFREG = 0o100000
S_IFDIR = 0o040000
S_IFCHR = 0o020000
S_IFSOCK = 0o140000
WRITABLE_BY_OTHERS = 0o022  # S_IWGRP | S_IWOTH


def is_folder(status: Status) -> bool:
    return status.st_mode & S_IFMT == S_IFDIR


def is_regular(status: Status) -> bool:
    return status.st_mode & S_IFMT == S_IFREG


def is_link(status: Status) -> bool:
    return status.st_mode & S_IFMT == S_IFLNK


def is_socket(status: Status) -> bool:
    return status.st_mode & S_IFMT == S_IFSOCK


def is_character_device(status: Status) -> bool:
    return status.st_mode & S_IFMT == S_IFCHR


def is_same(one: Status, other: Status) -> bool:
    """Whether both are of the very same file."""
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


def is_open_to_others(status: stat_result, owner: int = 0) -> bool:
    """Whether users other than root own it or may write to it; `owner` counts as root."""
    return status.st_uid not in (0, owner) or bool(status.st_mode & WRITABLE_BY_OTHERS)
