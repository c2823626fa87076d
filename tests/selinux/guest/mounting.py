# SPDX-License-Identifier: Apache-2.0
"""mount(2) and labels by path, for programs that play an engine or a host.

mount(8) is no use here: it has a domain of its own, which may not mount where an engine may.
Must not: decide anything.
"""

from __future__ import annotations

import ctypes
import os

MS_BIND = 4096
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

_CLONE_NEWNS = 0x20000
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH = 4
_AT_FDCWD = -100
_OPEN_TREE = 428  # the same on every architecture, as are all since Linux 5.2
_MOVE_MOUNT = 429

_LABEL = "security.selinux"
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    words = (os.fsencode(source), os.fsencode(target), kind.encode(), flags, options.encode())
    if _libc.mount(*words) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount {kind or source} on {target}: {os.strerror(number)}")


def unmount(target: str) -> None:
    """umount2(2), lazily."""
    _libc.umount2(os.fsencode(target), MNT_DETACH)


def bind_from(pid: int, path: str, target: str) -> None:
    """What process `pid` has at `path`, at `target` here: mount(2) binds within one mount namespace only."""
    child = os.fork()
    if child:
        if os.waitpid(child, 0)[1]:
            raise OSError(f"{path} of process {pid} cannot be bound to {target}")
        return
    home = os.open("/proc/self/ns/mnt", os.O_RDONLY)
    there = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
    failed = (
        _libc.setns(there, _CLONE_NEWNS) < 0
        or (tree := _libc.syscall(_OPEN_TREE, _AT_FDCWD, os.fsencode(path), _OPEN_TREE_CLONE)) < 0
        or _libc.setns(home, _CLONE_NEWNS) < 0
        or _libc.syscall(_MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH) < 0
    )
    os._exit(failed)


def below(top: str) -> list[str]:
    """A folder, and all in it."""
    found = [top]
    for folder, folders, names in os.walk(top):
        found += [os.path.join(folder, name) for name in [*folders, *names]]
    return found


def label(path: str) -> str:
    """The label of a file, or the name of the error."""
    try:
        return os.getxattr(path, _LABEL, follow_symlinks=False).rstrip(b"\0").decode()
    except OSError as error:
        return os.strerror(error.errno or 0)


def set_label(path: str, context: str) -> None:
    os.setxattr(path, _LABEL, context.encode() + b"\0")
