# SPDX-License-Identifier: Apache-2.0
"""Device nodes in the container's own /dev.

A node that is made there bears the container's own label, so an unmodified ``container_t`` may open it under SELinux,
without a boolean and with no host label changed.  A node that is there and right is left; one that is there and wrong
is an error.  Must not open a device: stat and mknod do not wake a GPU.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.changes.tree import TargetError, Tree
from oci_gpu_hook.kernel import syscalls
from oci_gpu_hook.kernel.filetypes import S_IFCHR, is_character_device


def make(tree: Tree, path: str, major: int, minor: int, *, mode: int, uid: int, gid: int) -> None:
    """Make the character device `path` with this owner, group and mode; the process's umask must be 0."""
    folder, _, name = path.rpartition("/")
    # The mode is mknod's, not chmod's: chmod follows links, and whoever shares the root could put a link to a file of
    # the host in the node's place.
    try:
        parent = tree.own_folder(folder)
        posix.mknod(name, S_IFCHR | mode, posix.makedev(major, minor), dir_fd=parent)
    except (FileExistsError, TargetError):
        # Rare: to look first would cost one system call more for each node.
        if is_there(tree, path, major, minor):
            return
        raise
    tree.undo.remember(posix.unlink, name, dir_fd=parent)
    if uid or gid:
        posix.chown(name, uid, gid, dir_fd=parent, follow_symlinks=False)


def is_there(tree: Tree, path: str, major: int, minor: int) -> bool:
    """Whether the node exists already; TargetError if something else has its name."""
    fd = tree.find(path)
    if fd is None:
        return False
    try:
        status = syscalls.known_of(fd)
    finally:
        posix.close(fd)
    if not is_character_device(status):
        raise TargetError(syscalls.EEXIST, f"{path} is there and is no character device")
    if status.st_rdev != posix.makedev(major, minor):
        found = f"{posix.major(status.st_rdev)}:{posix.minor(status.st_rdev)}"
        raise TargetError(syscalls.EEXIST, f"{path} is there as {found}, it must be {major}:{minor}")
    return True
