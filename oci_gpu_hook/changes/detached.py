# SPDX-License-Identifier: Apache-2.0
"""Filesystems that are made detached, and filled before anyone in the container can see them; mount attributes.

Must not know the container's root: `tree` attaches what is made here.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.kernel import syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

_FOLDER_MODE = 0o755

_ATTRIBUTES = {
    "ro": syscalls.MOUNT_ATTR_RDONLY,
    "nosuid": syscalls.MOUNT_ATTR_NOSUID,
    "nodev": syscalls.MOUNT_ATTR_NODEV,
    "noexec": syscalls.MOUNT_ATTR_NOEXEC,
}
_STRUCTS: dict[tuple[str, ...], bytes] = {}


def attributes(options: tuple[str, ...]) -> bytes:
    """The struct mount_attr for mount options by name."""
    # Kept, for a plan has three kinds of options and a hundred mounts.
    struct = _STRUCTS.get(options)
    if struct is None:
        flags = 0
        for option in options:
            flags |= _ATTRIBUTES[option]
        struct = _STRUCTS[options] = syscalls.mount_attr(flags)
    return struct


def new_tmpfs(fill: Callable[[int], None], label: str) -> int:
    """A detached tmpfs of mode 0555, filled by `fill`; all of it bears `label`, "" leaves that to the policy."""
    # As runtimes label a container's tmpfs (mount(8), "context="): nobody can change that label later.
    options = {"source": "oci-gpu-hook", "mode": "0555", **({"context": label} if label else {})}
    tree = syscalls.fsmount("tmpfs", options)
    try:
        fill(tree)
    except BaseException:
        posix.close(tree)
        raise
    return tree


def write_file(folder_fd: int, name: str, data: bytes, mode: int) -> None:
    """A new file with this content in the folder open at `folder_fd`."""
    flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_CLOEXEC
    fd = posix.open(name, flags, mode, dir_fd=folder_fd)
    try:
        while data:
            data = data[posix.write(fd, data) :]
    finally:
        posix.close(fd)


def make_folders(folder_fd: int, path: str) -> None:
    """The relative `path` and its parents in a filesystem of ours."""
    parts = path.split("/")
    for end in range(1, len(parts) + 1):
        try:
            posix.mkdir("/".join(parts[:end]), _FOLDER_MODE, dir_fd=folder_fd)
        except FileExistsError:
            pass
