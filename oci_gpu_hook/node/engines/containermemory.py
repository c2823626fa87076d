# SPDX-License-Identifier: Apache-2.0
"""How much memory of which device a cgroup's processes have, by the kernel's dmem controller.  Reads only.

Under runc every container's cgroup has these files on a kernel that has the controller; no GPU and no NVML is asked.
"""

from __future__ import annotations

from oci_gpu_hook.container.devicecgroup import is_named_after
from oci_gpu_hook.container.memoryregion import NO_LIMIT, amounts, parse_region
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.record import NamedTuple


class MemoryUse(NamedTuple):
    """Of the device at a PCI address, in bytes; limit: 0 for none; peak: 0 if the kernel does not tell."""

    address: str
    used: int
    limit: int
    peak: int


def own(cgroup: str, id: str) -> str:
    """The container's own cgroup, of that of a process in it: systemd in a container makes others below."""
    parts = cgroup.split("/")
    named = [at for at, name in enumerate(parts) if is_named_after(name, id)]
    return "/".join(parts[: named[-1] + 1]) if named else cgroup


def limits(root: HostRoot, cgroup: str) -> dict[str, int]:
    """The limit of each region, by its name; those without one are left out."""
    found = amounts(root.text(f"{cgroup}/dmem.max"))
    return {name: most for name, most in found.items() if most != NO_LIMIT}


def uses(root: HostRoot, cgroup: str) -> tuple[MemoryUse, ...]:
    """Of each device of which something is in use, or limited; of all its regions together."""
    used, most = [amounts(root.text(f"{cgroup}/dmem.{name}")) for name in ("current", "max")]
    peak = amounts(root.text(f"{cgroup}/dmem.peak"))
    found: dict[str, MemoryUse] = {}
    for name, now in used.items():
        region = parse_region(f"{name} 1")
        limit = most.get(name, NO_LIMIT)
        if region is None or (not now and limit == NO_LIMIT):
            continue
        _, before, limited, highest = found.get(region.address, MemoryUse(region.address, 0, 0, 0))
        limited += 0 if limit == NO_LIMIT else limit
        found[region.address] = MemoryUse(region.address, before + now, limited, highest + peak.get(name, 0))
    return tuple(found.values())
