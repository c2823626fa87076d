# SPDX-License-Identifier: Apache-2.0
"""Device nodes, and links between them, in the container's own /dev.

A node made there carries the container's own label, so an unmodified ``container_t`` may open it under SELinux with no
boolean and no host label changed.  A node that is there and right is left, one that is there and wrong is an error.
Must not open a device: stat and mknod do not wake a GPU.
"""

from __future__ import annotations

import posix

from oci_gpu_hook import linux
from oci_gpu_hook.container.mounts import TargetError, Tree

_FILE_TYPE = 0o170000
_CHARACTER_DEVICE = 0o020000


def make(tree: Tree, path: str, major: int, minor: int, *, mode: int, uid: int, gid: int) -> None:
    """The character device `path`, owner, group and mode as given: the umask must be 0."""
    folder, _, name = path.rpartition("/")
    # No chmod: it follows links, and whoever shares the root could put one where the node was, to a file of the host.
    try:
        parent = tree.own_folder(folder)
        posix.mknod(name, _CHARACTER_DEVICE | mode, posix.makedev(major, minor), dir_fd=parent)
    except (FileExistsError, TargetError):
        # Nearly never: asking first would be a call more for each.
        if is_there(tree, path, major, minor):
            return
        raise
    tree.remember(_remove, name, parent)
    if uid or gid:
        posix.chown(name, uid, gid, dir_fd=parent, follow_symlinks=False)


def link(tree: Tree, path: str, to: str) -> None:
    """The symbolic link `path` with the text `to`; one that is there already is left."""
    folder, _, name = path.rpartition("/")
    parent = tree.own_folder(folder)
    try:
        posix.symlink(to, name, dir_fd=parent)
    except FileExistsError:
        return
    tree.remember(_remove, name, parent)


def is_there(tree: Tree, path: str, major: int, minor: int) -> bool:
    """Whether the node exists already; TargetError where something else has its name."""
    fd = tree.find(path)
    if fd is None:
        return False
    try:
        status = posix.fstat(fd)
    finally:
        posix.close(fd)
    if status.st_mode & _FILE_TYPE != _CHARACTER_DEVICE:
        raise TargetError(linux.EEXIST, f"{path} is there and is no character device")
    if status.st_rdev != posix.makedev(major, minor):
        have = f"{posix.major(status.st_rdev)}:{posix.minor(status.st_rdev)}"
        raise TargetError(linux.EEXIST, f"{path} is there as {have}, it must be {major}:{minor}")
    return True


def _remove(name: str, parent: int) -> None:
    posix.unlink(name, dir_fd=parent)
