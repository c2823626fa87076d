# SPDX-License-Identifier: Apache-2.0
"""Set SELinux labels: of /dev/shm, /dev/mqueue and the files in them, and of everything that the hook creates.

Each label is set by descriptor, read back and compared.  Other containers of the pod may change the files at the same
time: no link is followed, and no other mount is entered.  libselinux takes longer to load than the rest of the hook.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.changes.tree import TargetError, Tree
from oci_gpu_hook.container.ipc import NO_SYMLINKS, XATTR, label_of
from oci_gpu_hook.errors import ApplyError
from oci_gpu_hook.kernel import syscalls
from oci_gpu_hook.kernel.descriptors import NAMED, closing
from oci_gpu_hook.kernel.filetypes import is_folder, is_link

_CREATE = "/proc/thread-self/attr/fscreate"
# A pod's /dev/shm holds some hundred files.  A container that makes many more must not delay the start of another.
_MAX_FILES = 10_000


def create_as(context: str) -> None:
    """Give files that this process creates the label `context`, but below ``context=``, as setfscreatecon(3)."""
    try:
        with closing(posix.open(_CREATE, posix.O_WRONLY | posix.O_CLOEXEC)) as fd:
            posix.write(fd, context.encode())
    except OSError as err:
        why = f"cannot label what is made for the container as {context}: {err.strerror} ({_CREATE})"
        raise ApplyError(why, "the policy must know the container's label") from err


def relabel(tree: Tree, path: str, context: str) -> None:
    """Give the mount at `path`, and all files in it, the label `context`; TargetError if it is the host's own."""
    root = syscalls.openat2(tree.root_fd, path, posix.O_PATH | posix.O_DIRECTORY, resolve=NO_SYMLINKS)
    here = posix.fstat(root)
    try:
        is_hosts = posix.stat(path).st_dev == here.st_dev
    except OSError:
        is_hosts = False
    if is_hosts:
        raise TargetError(syscalls.EXDEV, f"{path} is the host's own, which is never relabelled")
    if before := _set(root, context):
        tree.undo.remember(_set, root, before)
    mount = syscalls.mount_of(root)[0]
    folders, count = [root], 0
    while folders:
        folder = folders.pop()
        for name in _names(folder):
            count += 1
            if count > _MAX_FILES:
                raise TargetError(syscalls.E2BIG, f"{path} holds more than {_MAX_FILES} files")
            try:
                fd = posix.open(name, NAMED, dir_fd=folder)
            except FileNotFoundError:
                continue
            status = posix.fstat(fd)
            if syscalls.mount_of(fd)[0] == mount and not is_link(status):
                if before := _set(fd, context):
                    tree.undo.remember(_restore, folder, name, before)
                if is_folder(status):
                    folders.append(fd)
                    continue
            posix.close(fd)


def _set(fd: int, context: str) -> str:
    """Set one label; gives the old one, or "" if it was right already."""
    before = label_of(fd)
    if not before:
        raise TargetError(syscalls.EILSEQ, "its label cannot be read, so it could not be put back")
    if before == context:
        return ""
    try:
        # fsetxattr refuses an O_PATH descriptor; its link in /proc leads to the very same file.
        posix.setxattr(f"/proc/self/fd/{fd}", XATTR, context.encode())
    except OSError as err:
        raise syscalls.SyscallError(err.errno or 0, "setxattr", XATTR) from err
    after = label_of(fd)
    if after != context:
        raise TargetError(syscalls.EILSEQ, f"the label was set to {context} and reads {after}")
    return before


def _restore(folder: int, name: str, context: str) -> None:
    """Put one label back.  The file is opened by its name: a process cannot keep thousands of descriptors."""
    with closing(posix.open(name, NAMED, dir_fd=folder)) as fd:
        _set(fd, context)


def _names(folder: int) -> list[str]:
    flags = posix.O_RDONLY | posix.O_DIRECTORY | posix.O_CLOEXEC
    with closing(posix.open(".", flags, dir_fd=folder)) as fd, posix.scandir(fd) as entries:
        return [entry.name for _, entry in zip(range(_MAX_FILES + 1), entries)]
