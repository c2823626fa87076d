# SPDX-License-Identifier: Apache-2.0
"""How much memory of each of its devices a container may take, and the operation that holds it to that.

A container that cannot be held to its limit is refused: it must not start without.  Reads only.
"""

from __future__ import annotations

from oci_gpu_hook.container.devicecgroup import CGROUP_ROOT, DeviceCgroup
from oci_gpu_hook.container.memoryregion import Region, read_regions
from oci_gpu_hook.errors import ConfigError, RequestError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.operations import LimitMemory
from oci_gpu_hook.planning.plan import Provision, title
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.request.memory import MIB, SHARE, ceiling
from oci_gpu_hook.request.parse import Request
from oci_gpu_hook.request.selectors import bus_id
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.request.words import ADMINISTRATOR, MEMORY_LIMIT, MEMORY_REQUEST

_ELSEWHERE = f"start it where a limit can be held, or without {MEMORY_LIMIT}; of gpu-memory {ADMINISTRATOR}"
# PCI's class of network adapters: what has no memory for programs.
_NETWORK = "0x02"


class Memory(NamedTuple):
    """What a container may take of each device.

    limit, needed: by its words, in bytes, 0 if it says none; ceiling, holders: the settings gpu-memory, in bytes or
    `SHARE`, and gpu-holders; regions: this host's, None if its kernel counts none.
    """

    limit: int
    needed: int
    ceiling: int
    holders: int
    regions: tuple[Region, ...] | None

    def capacity(self, address: str) -> int:
        """The memory of the device at a PCI address, in bytes; 0 if the kernel does not count it."""
        return sum([region.capacity for region in self.regions or () if region.address == address])

    def limit_of(self, address: str) -> int:
        """What it may take there; 0 for no limit."""
        ceiling = self.ceiling
        if ceiling == SHARE:
            ceiling = self.capacity(address) // self.holders // MIB * MIB
        return min([it for it in (self.limit, ceiling) if it], default=0)

    def need_of(self, address: str) -> int:
        """What must be free there for it; 0 if it does not say."""
        return self.needed or self.limit_of(address)


def memory_of(request: Request, settings: Settings, host: HostRoot) -> Memory | None:
    """None if neither the request nor the settings name a number."""
    limit, needed = request.memory_limit, request.memory_request
    most, holders = ceiling(settings.gpu_memory) or 0, settings.gpu_holders
    if most == SHARE and not holders:
        raise ConfigError("gpu-memory is share, and no holders are counted: gpu-holders is not set", ADMINISTRATOR)
    # What is needed counts only among holders.
    if not (limit or most or (needed and holders)):
        return None
    return Memory(limit, needed, most, holders, read_regions(host))


def addresses(provision: Provision) -> dict[str, str]:
    """The PCI address of each device that the container holds, by its key; "" for a MIG device, and if it has none."""
    of_vendors = {
        f"{vendor.inventory.flag}={device.names[0]}": device.address()
        for vendor in provision.vendors
        for device in vendor.devices
    }
    return {key: of_vendors.get(key, bus_id(key)) for key, _ in provision.holds}


def limits(memory: Memory, provision: Provision, cgroup: DeviceCgroup, host: HostRoot) -> tuple[LimitMemory, ...]:
    """The operation that limits the devices which the container holds; RequestError if one cannot be limited."""
    found: dict[str, int] = {}
    places = addresses(provision)
    for key, name in provision.holds:
        if _is_network(host, key, places[key]):
            continue
        regions = [it.name for it in memory.regions or () if it.address == places[key]]
        most = memory.limit_of(places[key])
        if why := _why_not(memory, cgroup, key, places[key]):
            raise RequestError(f"the memory of {title(key, name)} cannot be limited: {why}", _ELSEWHERE)
        if memory.needed > (most or memory.needed):
            why = f"{MEMORY_REQUEST} is {memory.needed // MIB}, and the container may take {most // MIB} MiB"
            raise RequestError(f"{why} of {title(key, name)}", ADMINISTRATOR)
        # A device of several regions takes no more than the limit in all of them together.
        found.update({region: most // len(regions) for region in regions if most})
    if not found:
        return ()
    reason = f"{MEMORY_LIMIT}={memory.limit // MIB}" if memory.limit else "the setting gpu-memory"
    return (LimitMemory(cgroup.path, cgroup.top, tuple(found.items()), required=True, reason=reason),)


def notes(memory: Memory, provision: Provision) -> tuple[str, ...]:
    """A sentence if less is given than is asked for, and one if there is nothing to limit."""
    if memory.limit and not provision.holds:
        return (f"{MEMORY_LIMIT} limits nothing: the container has no device",)
    lowest = min(map(memory.limit_of, addresses(provision).values()), default=0)
    if lowest < memory.limit:
        return (f"{MEMORY_LIMIT} is {memory.limit // MIB}, and gpu-memory allows {lowest // MIB} MiB",)
    return ()


def _is_network(host: HostRoot, key: str, address: str) -> bool:
    """Whether another vendor's device is a network adapter, which has no memory for programs."""
    if "=" not in key or not address:
        return False
    domain, rest = address[:8], address[8:]
    return host.text(f"/sys/bus/pci/devices/{int(domain, 16):04x}{rest}/class").startswith(_NETWORK)


def _why_not(memory: Memory, cgroup: DeviceCgroup, key: str, address: str) -> str:
    capacity = memory.capacity(address)
    if "/" in key.partition("=")[0]:
        return "it is a MIG device, which has memory of its own"
    if cgroup.version != "v2":
        return cgroup.reason or "this host has cgroup v1"
    if not f"{cgroup.path or CGROUP_ROOT}/".startswith(f"{CGROUP_ROOT}/"):
        return f"its cgroup, {cgroup.path}, is not below {CGROUP_ROOT}"
    if memory.regions is None:
        return "this kernel has no dmem controller (Linux 6.14, CONFIG_CGROUP_DMEM)"
    if not capacity:
        return "its driver has not told the kernel's dmem controller of it"
    if memory.limit > capacity:
        return f"{MEMORY_LIMIT} is {memory.limit // MIB}, and it has {capacity // MIB} MiB"
    return ""
