# SPDX-License-Identifier: Apache-2.0
"""Limits of device memory for a cgroup: the file dmem.max (Linux 6.14, Documentation/admin-guide/cgroup-v2.rst).

runc enables the controller for each container, crun does not.  It stays enabled: a cgroup beside may use it by then.
"""

from __future__ import annotations

from oci_gpu_hook.changes.cgroupfiles import CgroupFiles
from oci_gpu_hook.changes.tree import Undo
from oci_gpu_hook.container.memoryregion import NO_LIMIT, amounts

_LIMITS, _CONTROLLERS = "dmem.max", "cgroup.subtree_control"


def limit(above: list[str], own: list[str], limits: tuple[tuple[str, int], ...], undo: Undo) -> str:
    """Gives "", or a sentence about what was lower already.  OSError if a step fails, or the kernel has not taken a
    limit.  above: all cgroups above `own`, the root first; own: the container's, from its top to that of its process;
    limits: regions by name, in bytes.
    """
    cgroups = [CgroupFiles(path) for path in (*above, *own)]
    for cgroup in cgroups[:-1]:
        if "dmem" not in cgroup.read(_CONTROLLERS).split():
            # EBUSY: processes are in that very cgroup (cgroups(7), "no internal processes").
            cgroup.write(_CONTROLLERS, "+dmem")
    lower = []
    for cgroup in cgroups[len(above) :]:
        for name, most in limits:
            before = amounts(cgroup.read(_LIMITS)).get(name, NO_LIMIT)
            # A lower one is config.json's own: linux.resources.unified.
            if before <= most:
                lower += [f"{name} is limited to {before >> 20} MiB already"] if before < most else []
                continue
            undo.remember(cgroup.write, _LIMITS, f"{name} {'max' if before == NO_LIMIT else before}")
            # The kernel takes one region a write.
            cgroup.write(_LIMITS, f"{name} {most}")
            if amounts(cgroup.read(_LIMITS)).get(name, NO_LIMIT) > most:
                raise OSError(f"{cgroup.path}/{_LIMITS} still has more than '{name} {most}', which was written")
    return "; ".join(lower)
