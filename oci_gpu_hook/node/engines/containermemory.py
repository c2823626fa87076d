# SPDX-License-Identifier: Apache-2.0
"""How much memory of which device a cgroup's processes have, by the kernel's dmem controller.  Reads only."""

from __future__ import annotations

from oci_gpu_hook.container.devicecgroup import is_named_after
from oci_gpu_hook.container.memoryregion import NO_LIMIT, by_device
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


def uses(host: HostRoot, cgroup: str) -> tuple[MemoryUse, ...]:
    """Of each device of which something is in use, or limited; of all its regions together."""
    used, most, peak = [by_device(host.text(f"{cgroup}/dmem.{name}")) for name in ("current", "max", "peak")]
    found = []
    for address, regions in used.items():
        now, highest = sum(regions.values()), sum(peak.get(address, {}).values())
        limits = [limit for limit in most.get(address, {}).values() if limit != NO_LIMIT]
        found += [MemoryUse(address, now, sum(limits), highest)] if now or limits else []
    return tuple(found)
