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

# Its path, for people, and a descriptor: another container's may have the path when a step is taken back.
Cgroup = tuple[str, int]

_FOLDER = posix.O_PATH | posix.O_DIRECTORY | posix.O_NOFOLLOW | posix.O_CLOEXEC
_LIMITS, _CONTROLLERS = "dmem.max", "cgroup.subtree_control"


def limit(above: list[str], own: list[str], limits: tuple[tuple[str, int], ...], undo: Undo) -> str:
    """Gives "", or a sentence about what was lower already.  OSError if a step fails, or the kernel has not taken a
    limit.  above: all cgroups above `own`, the root first; own: the container's, from its top to that of its process;
    limits: regions by name, in bytes.
    """
    cgroups = [(path, posix.open(path, _FOLDER)) for path in (*above, *own)]
    for cgroup in cgroups[:-1]:
        if "dmem" not in _read(cgroup, _CONTROLLERS).split():
            _write(cgroup, _CONTROLLERS, "+dmem")
    lower = []
    for cgroup in cgroups[len(above) :]:
        for name, most in limits:
            before = _limit_of(cgroup, name)
            # A lower one is config.json's own: linux.resources.unified.
            if before <= most:
                lower += [f"{name} is limited to {before >> 20} MiB already"] if before < most else []
                continue
            undo.remember(_write, cgroup, _LIMITS, f"{name} {'max' if before == NO_LIMIT else before}")
            # The kernel takes one region a write.
            _write(cgroup, _LIMITS, f"{name} {most}")
            if _limit_of(cgroup, name) > most:
                raise OSError(f"{cgroup[0]}/{_LIMITS} still has more than '{name} {most}', which was written")
    return "; ".join(lower)


def _limit_of(cgroup: Cgroup, name: str) -> int:
    return amounts(_read(cgroup, _LIMITS)).get(name, NO_LIMIT)


def _read(cgroup: Cgroup, file: str) -> str:
    try:
        return procfile.read_whole(file, cgroup[1]).decode(errors="replace")
    except OSError as err:
        raise syscalls.SyscallError(err.errno or 0, "read", f"{cgroup[0]}/{file}") from err


def _write(cgroup: Cgroup, file: str, line: str) -> None:
    try:
        with closing(posix.open(file, posix.O_WRONLY | posix.O_CLOEXEC, dir_fd=cgroup[1])) as fd:
            posix.write(fd, line.encode())
    except OSError as err:
        # EBUSY of the controllers' file: processes are in that very cgroup (cgroups(7), "no internal processes").
        raise syscalls.SyscallError(err.errno or 0, "write", f"'{line}' to {cgroup[0]}/{file}") from err
