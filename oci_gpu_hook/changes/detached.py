# SPDX-License-Identifier: Apache-2.0
"""Filesystems that are made detached, and filled before anyone in the container can see them; mount attributes."""

from __future__ import annotations

import posix

from oci_gpu_hook.kernel import descriptors, syscalls
from oci_gpu_hook.kernel.descriptors import closing

# Its name below a filesystem's root, its content, the bits of its mode.
File = tuple[str, bytes, int]

_ATTRIBUTES = {
    "ro": syscalls.MOUNT_ATTR_RDONLY,
    "nosuid": syscalls.MOUNT_ATTR_NOSUID,
    "nodev": syscalls.MOUNT_ATTR_NODEV,
    "noexec": syscalls.MOUNT_ATTR_NOEXEC,
}
_STRUCTS: dict[tuple[str, ...], bytes] = {}


def attributes(options: tuple[str, ...]) -> bytes:
    # Kept, for a plan has three kinds of options and a hundred mounts.
    if options not in _STRUCTS:
        _STRUCTS[options] = syscalls.mount_attr(sum([_ATTRIBUTES[option] for option in options]))
    return _STRUCTS[options]


def new_tmpfs(label: str, folders: tuple[str, ...], files: list[File]) -> int:
    """A detached tmpfs of mode 0555 with these in it; all of it bears `label`, "" leaves that to the policy."""
    # As runtimes label a container's tmpfs (mount(8), "context="): that label cannot be changed later.
    options = {"source": "oci-gpu-hook", "mode": "0555", **({"context": label} if label else {})}
    tree = syscalls.fsmount("tmpfs", options)
    for folder in folders:
        parts = folder.split("/")
        for end in range(1, len(parts) + 1):
            try:
                posix.mkdir("/".join(parts[:end]), 0o755, dir_fd=tree)
            except FileExistsError:
                pass
    for name, data, mode in files:
        write(name, data, mode, dir_fd=tree)
    return tree


def write(name: str, data: bytes, mode: int, *, dir_fd: int) -> None:
    """Write a new file; FileExistsError if anything has its name."""
    flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_CLOEXEC
    with closing(posix.open(name, flags, mode, dir_fd=dir_fd)) as fd:
        descriptors.write(fd, data)
