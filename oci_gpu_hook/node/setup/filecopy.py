# SPDX-License-Identifier: Apache-2.0
"""Copies of the host's files that containers may read, by descriptor: nobody's to write, and labelled for them.

Must not know what is copied, nor change or label a file of the host.
"""

from __future__ import annotations

import errno
import os
import shutil
from typing import TYPE_CHECKING

from oci_gpu_hook.host.source import open_source
from oci_gpu_hook.kernel.descriptors import closing, reopened
from oci_gpu_hook.kernel.filetypes import is_regular

if TYPE_CHECKING:
    from oci_gpu_hook.host.root import HostRoot

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_NAMES = 100_000

# What containers of any type may read and run, and none may write; where the kernel has SELinux.
_LABEL = b"system_u:object_r:container_ro_file_t:s0\0"
_ATTRIBUTE = "security.selinux"
_SELINUX = "/sys/fs/selinux/enforce"


def copy(root: HostRoot, path: str, top: int, place: str) -> None:
    """Copy one file: blocks that the filesystem can share are shared, and are nobody's to write."""
    with closing(open_source(root.fd, path)) as named:
        opened = reopened(named, os.O_NONBLOCK)
    with closing(opened) as source:
        status = os.fstat(source)
        if not is_regular(status):
            raise OSError(errno.EINVAL, "it is no plain file", path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with closing(os.open(place, flags, 0o600, dir_fd=top)) as fd:
            _copy_bytes(source, fd)
            label(root, top, place)
            # Never a set-user-id bit.
            os.fchmod(fd, 0o755 if status.st_mode & 0o111 else 0o644)
            os.fsync(fd)


def _copy_bytes(source: int, target: int) -> None:
    try:
        while os.copy_file_range(source, target, 1 << 30):
            pass
    except OSError as err:
        # Between some filesystems the kernel does not copy by itself.
        if err.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        with open(source, "rb", closefd=False) as reader, open(target, "wb", closefd=False) as writer:
            shutil.copyfileobj(reader, writer)


def drop(folder: int, name: str) -> None:
    """Remove a file, or a folder with what is in it; nothing if there is none.

    A container may have filled it: with folders in folders, as deep as it likes.  So a folder's folders are brought up
    beside it, and removed after it.  OSError if there are too many names.
    """
    folders, count = [name] if not _unlinks(name, folder) else [], 0
    while folders:
        top = folders.pop()
        with closing(os.open(top, _FOLDER, dir_fd=folder)) as fd:
            with os.scandir(fd) as entries:
                names = [entry.name for _, entry in zip(range(_MOST_NAMES), entries)]
            for inner in names:
                count += 1
                if count >= _MOST_NAMES:
                    raise OSError(errno.EMFILE, f"more than {_MOST_NAMES} names are in it", name)
                if not _unlinks(inner, fd):
                    beside = f"{name}.{count}"
                    os.rename(inner, beside, src_dir_fd=fd, dst_dir_fd=folder)
                    folders.append(beside)
        os.rmdir(top, dir_fd=folder)


def _unlinks(name: str, folder: int) -> bool:
    """Remove a file; True also if there is none, False if it is a folder."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass
    except (IsADirectoryError, PermissionError):
        return False
    return True


def is_labelled(root: HostRoot, fd: int) -> bool:
    """Whether an open file has that label, which restorecon may have taken away; True without SELinux or labels."""
    try:
        return root.stat(_SELINUX) is None or os.getxattr(fd, _ATTRIBUTE) == _LABEL
    except OSError:
        return True


def label(root: HostRoot, folder: int, name: str) -> None:
    """Give a file, a folder or a link the label that containers may read."""
    if root.stat(_SELINUX) is None:
        return
    try:
        os.setxattr(f"/proc/self/fd/{folder}/{name}", _ATTRIBUTE, _LABEL, follow_symlinks=False)
    except OSError as err:
        # A policy without containers, or a filesystem without labels: there is nothing to be right.
        if err.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
