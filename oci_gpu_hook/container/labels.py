# SPDX-License-Identifier: Apache-2.0
"""SELinux labels: of /dev/shm and /dev/mqueue with what lies in them, and of everything that we create.

By descriptor, read back and compared.  What lies in the mount may be changed by a pod's other containers while we look:
no link is followed, no other mount is entered.  Must not touch the host's own /dev/shm or /dev/mqueue, and must not
use libselinux, which costs more than the rest of the hook.
"""

from __future__ import annotations

import posix

from oci_gpu_hook import linux
from oci_gpu_hook.container.mounts import TargetError, Tree

XATTR = "security.selinux"
_CREATE = "/proc/thread-self/attr/fscreate"
_REALLY_THERE = linux.RESOLVE_IN_ROOT | linux.RESOLVE_NO_MAGICLINKS | linux.RESOLVE_NO_SYMLINKS
# A pod's shm holds some hundred segments; who fills it with more must not hold a start up.
_MOST_FILES = 10_000

_FILE_TYPE = 0o170000
_FOLDER = 0o040000
_LINK = 0o120000


def create_as(context: str) -> None:
    """From now on this process creates files with `context`; "" is the policy's own choice again.

    setfscreatecon(3).  A filesystem mounted with ``context=`` gives its own label whatever is set here.
    """
    fd = posix.open(_CREATE, posix.O_WRONLY | posix.O_CLOEXEC)
    try:
        posix.write(fd, context.encode())
    except OSError as err:
        raise linux.SyscallError(err.errno or 0, "write", f"{context} to {_CREATE}") from err
    finally:
        posix.close(fd)


def relabel(tree: Tree, path: str, context: str) -> None:
    """Give the mount at `path`, and all that lies in it, the label `context`."""
    flags = posix.O_PATH | posix.O_DIRECTORY
    root = linux.openat2(tree.root_fd, path, flags, resolve=_REALLY_THERE)
    _refuse_hosts_own(root, path)
    before = _set(root, context)
    if before:
        tree.remember(_set, root, before)
    _relabel_below(tree, root, path, context)


def _relabel_below(tree: Tree, root: int, path: str, context: str) -> None:
    mount = linux.mount_id(root)
    folders = [root]
    count = 0
    while folders:
        folder = folders.pop()
        for name in _names(folder):
            count += 1
            if count > _MOST_FILES:
                raise TargetError(linux.E2BIG, f"{path} holds more than {_MOST_FILES} files")
            fd = _open(folder, name)
            if fd is None:
                continue
            kind = posix.fstat(fd).st_mode & _FILE_TYPE
            if linux.mount_id(fd) == mount and kind != _LINK:
                before = _set(fd, context)
                if before:
                    tree.remember(_restore, folder, name, before)
                if kind == _FOLDER:
                    folders.append(fd)
                    continue
            posix.close(fd)


def _refuse_hosts_own(fd: int, path: str) -> None:
    """Before pivot_root `path` itself is the host's, in the container's mount namespace too."""
    try:
        hosts_own = posix.stat(path)
    except OSError:
        return
    if hosts_own.st_dev == posix.fstat(fd).st_dev:
        raise TargetError(linux.EXDEV, f"{path} is the host's own, which is never relabelled")


def _set(fd: int, context: str) -> str:
    """One label, read back; gives the one before, "" where it was right already."""
    # An O_PATH descriptor is refused by fsetxattr; its link in /proc leads to the very same file.
    name = f"/proc/self/fd/{fd}"
    before = posix.getxattr(name, XATTR).rstrip(b"\0").decode()
    if before == context:
        return ""
    try:
        posix.setxattr(name, XATTR, context.encode())
    except OSError as err:
        raise linux.SyscallError(err.errno or 0, "setxattr", XATTR) from err
    after = posix.getxattr(name, XATTR).rstrip(b"\0").decode()
    if after != context:
        raise TargetError(linux.EILSEQ, f"the label was set to {context} and reads {after}")
    return before


def _restore(folder: int, name: str, context: str) -> None:
    """Take one back by name: thousands of descriptors would be more than a process may have."""
    fd = _open(folder, name)
    if fd is not None:
        try:
            _set(fd, context)
        finally:
            posix.close(fd)


def _names(folder: int) -> list[str]:
    fd = posix.open(".", posix.O_RDONLY | posix.O_DIRECTORY | posix.O_CLOEXEC, dir_fd=folder)
    try:
        return posix.listdir(fd)
    finally:
        posix.close(fd)


def _open(folder: int, name: str) -> int | None:
    """A name for the file, or None where it is gone again."""
    flags = posix.O_PATH | posix.O_NOFOLLOW | posix.O_CLOEXEC
    try:
        return posix.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        return None
