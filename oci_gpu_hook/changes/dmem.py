# SPDX-License-Identifier: Apache-2.0
"""Limits of device memory for a cgroup: the file dmem.max (Linux 6.14, Documentation/admin-guide/cgroup-v2.rst).

runc enables the controller for each container, crun does not.  What is enabled stays so: a cgroup beside this one may
use it by then.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.changes.tree import Undo
from oci_gpu_hook.container.memoryregion import NO_LIMIT, amounts
from oci_gpu_hook.kernel import procfile, syscalls
from oci_gpu_hook.kernel.descriptors import closing
from oci_gpu_hook.record import NamedTuple

_FOLDER = posix.O_PATH | posix.O_DIRECTORY | posix.O_NOFOLLOW | posix.O_CLOEXEC
_MAX, _CONTROLLERS = "dmem.max", "cgroup.subtree_control"


class Folder(NamedTuple):
    path: str
    fd: int


def opened(directories: list[str]) -> list[Folder]:
    """These cgroups, each the child of the one before, and opened below it."""
    found = [Folder(directories[0], posix.open(directories[0], _FOLDER))]
    for path in directories[1:]:
        try:
            found.append(Folder(path, posix.open(path.rpartition("/")[2], _FOLDER, dir_fd=found[-1].fd)))
        except OSError as err:
            raise syscalls.SyscallError(err.errno or 0, "open", path) from err
    return found


def limit(above: list[Folder], own: list[Folder], limits: tuple[tuple[str, int], ...], undo: Undo) -> str:
    """Gives "", or a sentence about what was lower already.  OSError if a step fails, or the kernel has not taken a
    limit.  above: all cgroups above `own`, the root first; limits: regions by name, in bytes.
    """
    for folder in (*above, *own[:-1]):
        if "dmem" not in _read(folder, _CONTROLLERS).split():
            _write(folder, _CONTROLLERS, "+dmem")
    lower = []
    for folder in own:
        for name, most in limits:
            before = amounts(_read(folder, _MAX)).get(name, NO_LIMIT)
            # A lower one is config.json's own: linux.resources.unified.
            if before <= most:
                lower += [f"{name} is limited to {before >> 20} MiB already"] if before < most else []
                continue
            undo.remember(_write, folder, _MAX, f"{name} {'max' if before == NO_LIMIT else before}")
            # The kernel takes one region a write.
            _write(folder, _MAX, f"{name} {most}")
            if amounts(_read(folder, _MAX)).get(name, NO_LIMIT) > most:
                raise OSError(f"{folder.path}/{_MAX} still has more than '{name} {most}', which was written")
    return "; ".join(lower)


def _read(folder: Folder, name: str) -> str:
    try:
        return procfile.read_whole(name, folder.fd).decode(errors="replace")
    except OSError as err:
        raise syscalls.SyscallError(err.errno or 0, "read", f"{folder.path}/{name}") from err


def _write(folder: Folder, name: str, line: str) -> None:
    try:
        with closing(posix.open(name, posix.O_WRONLY | posix.O_CLOEXEC, dir_fd=folder.fd)) as fd:
            posix.write(fd, line.encode())
    except OSError as err:
        # EBUSY of the controllers' file: processes are in that very cgroup (cgroups(7), "no internal processes").
        raise syscalls.SyscallError(err.errno or 0, "write", f"'{line}' to {folder.path}/{name}") from err
