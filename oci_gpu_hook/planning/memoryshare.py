# SPDX-License-Identifier: Apache-2.0
"""How much memory of each device a container may take; one that cannot be held to its limit is refused.  Reads only."""

from __future__ import annotations

from oci_gpu_hook.container.devicecgroup import CGROUP_ROOT, DeviceCgroup
from oci_gpu_hook.container.memoryregion import Region, read_regions
from oci_gpu_hook.errors import ConfigError, RequestError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.operations import LimitMemory
from oci_gpu_hook.planning import drivers
from oci_gpu_hook.planning.plan import Provision, title
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.request.memory import MIB, SHARE, ceiling
from oci_gpu_hook.request.parse import Request
from oci_gpu_hook.request.selectors import bus_id
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.request.words import ADMINISTRATOR, MEMORY_LIMIT, MEMORY_REQUEST

ELSEWHERE = f"start it where a limit can be held, or without {MEMORY_LIMIT}; of gpu-memory {ADMINISTRATOR}"
# PCI's class of network adapters: what has no memory for programs.
_NETWORK = "0x02"


class Memory(NamedTuple):
    """limit, needed: by its words, in bytes, 0 if it says none; ceiling, holders: the settings gpu-memory, in bytes or
    `SHARE`, and gpu-holders; regions: this host's, None if its kernel counts none; library: libnvidia-ml, if NVIDIA's
    driver may hold it to what the kernel cannot, else "".
    """

    limit: int
    needed: int
    ceiling: int
    holders: int
    regions: tuple[Region, ...] | None
    cgroup: DeviceCgroup
    library: str = ""

    def capacity(self, address: str) -> int:
        """In bytes; 0 if the kernel does not count it."""
        return sum([region.capacity for region in self.regions or () if region.address == address])

    def limit_of(self, address: str) -> int | None:
        capacity = self.capacity(address)
        most = capacity // self.holders // MIB * MIB if self.ceiling == SHARE else self.ceiling
        most = min(most, capacity or most)
        return min([*([self.limit] if self.limit else []), *([most] if self.ceiling else [])], default=None)

    def need_of(self, address: str) -> int:
        """What must be free there for it; 0 if it does not say.  By a setting it is what it may take."""
        return (0 if self.ceiling else self.needed) or self.limit_of(address) or 0

    def why_not(self, key: str, address: str) -> str:
        """Why it cannot be held to its limit of a device; "" if it can, or has none."""
        most, capacity = self.limit_of(address), self.capacity(address)
        if most is None:
            return ""
        if "/" in key.partition("=")[0]:
            return "it is a MIG device, which has memory of its own"
        if self.cgroup.version != "v2":
            return self.cgroup.reason or "this host has cgroup v1"
        if not f"{self.cgroup.path or CGROUP_ROOT}/".startswith(f"{CGROUP_ROOT}/"):
            return f"its cgroup, {self.cgroup.path}, is not below {CGROUP_ROOT}"
        by_nvml = self.is_by_nvml(key, address)
        if by_nvml and self.ceiling == SHARE:
            return "gpu-memory is share, and only the kernel's dmem controller tells its size"
        if by_nvml and self.needed and self.holders:
            return f"{MEMORY_REQUEST} reserves a part of it, and only the kernel's dmem controller tells its size"
        if self.regions is None and not by_nvml:
            return "this kernel has no dmem controller (Linux 6.14, CONFIG_CGROUP_DMEM), or no cgroup has it enabled"
        if not capacity and not by_nvml:
            return "its driver has not told the kernel's dmem controller of it"
        if self.limit > capacity and not by_nvml:
            return f"{MEMORY_LIMIT} is {self.limit // MIB}, and it has {capacity // MIB} MiB"
        if not most:
            return f"{self.holders} holders have less than 1 MiB each of its {capacity // MIB}"
        if self.needed > most:
            return f"{MEMORY_REQUEST} is {self.needed // MIB}, and the container may take {most // MIB} MiB"
        return ""

    def is_by_nvml(self, key: str, address: str) -> bool:
        return bool(self.library) and "=" not in key and not self.capacity(address)

    def refusal(self, key: str, name: str, address: str) -> str:
        why = self.why_not(key, address)
        return why and f"the memory of {title(key, name)} cannot be limited: {why}"


def memory_of(request: Request, settings: Settings, host: HostRoot, cgroup: DeviceCgroup) -> Memory | None:
    """None if neither the request nor the settings name a number; ConfigError if these contradict one another."""
    limit, needed = request.memory_limit, request.memory_request
    most, holders = ceiling(settings.gpu_memory) or 0, settings.gpu_holders
    if most == SHARE and not holders:
        raise ConfigError("gpu-memory is share, and no holders are counted: gpu-holders is not set", ADMINISTRATOR)
    # What is needed counts only among holders.
    if not (limit or most or (needed and holders)):
        return None
    library = _libnvidia_ml(host, settings) if settings.gpu_memory_by == "nvml" else ""
    return Memory(limit, needed, most, holders, read_regions(host), cgroup, library)


def addresses(provision: Provision) -> dict[str, str]:
    """By key; "" for a MIG device, and if it has none."""
    of_vendors = {
        f"{vendor.inventory.flag}={device.names[0]}": device.address()
        for vendor in provision.vendors
        for device in vendor.devices
    }
    return {key: of_vendors.get(key, bus_id(key)) for key, _ in provision.holds}


def limits(memory: Memory, provision: Provision, host: HostRoot) -> tuple[LimitMemory, ...]:
    """RequestError if one cannot be limited."""
    found: dict[str, int] = {}
    by_nvml: dict[str, int] = {}
    places = addresses(provision)
    for key, name in provision.holds:
        if _is_network(host, key, places[key]):
            continue
        if why := memory.refusal(key, name, places[key]):
            raise RequestError(why, ELSEWHERE)
        if most := memory.limit_of(places[key]):
            # A device of several regions takes no more than the limit in all of them together.
            regions = [it.name for it in memory.regions or () if it.address == places[key]]
            by_nvml.update({} if regions else {places[key]: most})
            found.update(dict.fromkeys(regions, most // (len(regions) or 1)))
    if memory.limit or memory.ceiling:
        _refuse_unnamed(provision)
    if not (found or by_nvml):
        return ()
    by_word = memory.limit and all([memory.limit_of(places[key]) == memory.limit for key in places])
    reason = f"{MEMORY_LIMIT}={memory.limit // MIB}" if by_word else "the setting gpu-memory"
    cgroup = memory.cgroup
    made = LimitMemory(cgroup.path, cgroup.top, tuple(found.items()), required=True, reason=reason)
    return (made._replace(gpus=tuple(by_nvml.items()), library=memory.library if by_nvml else ""),)


def notes(memory: Memory, provision: Provision) -> tuple[str, ...]:
    if memory.limit and not provision.holds:
        return (f"{MEMORY_LIMIT} limits nothing: the container has no device",)
    lowest = min([memory.limit_of(it) or 0 for it in addresses(provision).values()], default=0)
    if lowest < memory.limit:
        return (f"{MEMORY_LIMIT} is {memory.limit // MIB}, and gpu-memory allows {lowest // MIB} MiB",)
    return ()


def _libnvidia_ml(host: HostRoot, settings: Settings) -> str:
    known = drivers.known_inventory(host, settings.driver_root)
    libraries = known.libraries if known else ()
    return next((it.path for it in libraries if it.bits == 64 and it.soname == "libnvidia-ml.so.1"), "")


def _refuse_unnamed(provision: Provision) -> None:
    """RequestError for a vendor that gives nodes and no device: whose memory they lead to is not known."""
    for vendor in provision.vendors:
        flag = vendor.inventory.flag
        if vendor.common and not any([key.startswith(f"{flag}=") for key, _ in provision.holds]):
            why = f"the memory that the nodes of {flag} lead to cannot be limited: its file names no single device"
            raise RequestError(why, ELSEWHERE)


def _is_network(host: HostRoot, key: str, address: str) -> bool:
    if "=" not in key or not address:
        return False
    domain, rest = address[:8], address[8:]
    return host.text(f"/sys/bus/pci/devices/{int(domain, 16):04x}{rest}/class").startswith(_NETWORK)
