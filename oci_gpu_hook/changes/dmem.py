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


def limit(above: list[str], own: list[str], limits: tuple[tuple[str, int], ...], undo: Undo) -> str:
    """Gives "", or a sentence about what was lower already.  OSError if a step fails, or the kernel has not taken a
    limit.  above: all cgroups above `own`, the root first; limits: regions by name, in bytes.
    """
    for folder in (*above, *own[:-1]):
        controllers = f"{folder}/cgroup.subtree_control"
        if "dmem" not in _read(controllers).split():
            _write(controllers, "+dmem")
    lower = []
    for folder in own:
        file = f"{folder}/dmem.max"
        for name, most in limits:
            before = amounts(_read(file)).get(name, NO_LIMIT)
            # A lower one is config.json's own: linux.resources.unified.
            if before <= most:
                lower += [f"{name} is limited to {before >> 20} MiB already"] if before < most else []
                continue
            undo.remember(_write, file, f"{name} {'max' if before == NO_LIMIT else before}")
            # The kernel takes one region a write.
            _write(file, f"{name} {most}")
            if amounts(_read(file)).get(name, NO_LIMIT) > most:
                raise OSError(f"{file} still has more than '{name} {most}', which was written")
    return "; ".join(lower)


def _read(file: str) -> str:
    return procfile.read_whole(file).decode(errors="replace")


def _write(file: str, line: str) -> None:
    try:
        with closing(posix.open(file, posix.O_WRONLY | posix.O_CLOEXEC)) as fd:
            posix.write(fd, line.encode())
    except OSError as err:
        # EBUSY of the controllers' file: processes are in that very cgroup (cgroups(7), "no internal processes").
        raise syscalls.SyscallError(err.errno or 0, "write", f"'{line}' to {file}") from err
