# SPDX-License-Identifier: Apache-2.0
"""How much memory of each device a container may take; one that cannot be held to its limit is refused.  Reads only."""

from __future__ import annotations

from oci_gpu_hook.container.devicecgroup import CGROUP_ROOT, DeviceCgroup
from oci_gpu_hook.container.memoryregion import read_regions
from oci_gpu_hook.errors import ConfigError, RequestError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.operations import LimitMemory
from oci_gpu_hook.planning import drivers
from oci_gpu_hook.planning.plan import Held, Provision
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.request.memory import MIB, SHARE, ceiling
from oci_gpu_hook.request.selectors import Request
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.request.words import ADMINISTRATOR, MEMORY_LIMIT, MEMORY_REQUEST

_ELSEWHERE = f"start it elsewhere, or without {MEMORY_LIMIT} and {MEMORY_REQUEST}; of gpu-memory {ADMINISTRATOR}"
_NETWORK = "0x02"  # PCI's class of network adapters, which have no memory for programs
_NO_DMEM = "this kernel has no dmem controller (Linux 6.14, CONFIG_CGROUP_DMEM), or no cgroup has it enabled"


class Memory(NamedTuple):
    """limit, needed: by its variables, in bytes, 0 if it says none; ceiling, holders: the settings gpu-memory, in bytes
    or `SHARE`, and gpu-holders; regions: see `read_regions`; library: libnvidia-ml, if NVIDIA's driver may hold it to
    what the kernel cannot, else "".
    """

    limit: int
    needed: int
    ceiling: int
    holders: int
    regions: dict[str, dict[str, int]] | None
    cgroup: DeviceCgroup
    host: HostRoot
    library: str = ""

    def regions_of(self, held: Held) -> dict[str, int]:
        return (self.regions or {}).get(held.address, {})

    def limit_of(self, held: Held) -> int | None:
        """In bytes; None if there is no limit, or no memory; 0 if a share is less than 1 MiB."""
        if self._is_network(held):
            return None
        if not self.ceiling:
            return self.limit or None
        capacity = sum(self.regions_of(held).values())
        most = capacity // self.holders // MIB * MIB if self.ceiling == SHARE else self.ceiling
        return min(most, capacity or most, self.limit or most)

    def need_of(self, held: Held) -> int:
        """The bytes that must be free there for it; 0 if it does not say.  By a setting it is what it may take."""
        return (0 if self.ceiling or self._is_network(held) else self.needed) or self.limit_of(held) or 0

    def why_not(self, held: Held) -> str:
        """Why it cannot be held to its limit of a device, or what it needs there not be reserved; "" if that can be."""
        most, is_mig = self.limit_of(held), "/" in held.key.partition("=")[0]
        capacity, path = sum(self.regions_of(held).values()), self.cgroup.path or CGROUP_ROOT
        untold = _NO_DMEM if self.regions is None else "its driver has not told the kernel's dmem controller of it"
        if most is None:
            need = self.need_of(held) if self.holders and not is_mig else 0
            why = f"{need // MIB} MiB are more than its {capacity // MIB}" if capacity else untold
            return f"no memory of {held.title()} can be reserved: {why}" if need > capacity else ""
        # Only dmem tells a size.
        by_nvml = bool(self.library) and "=" not in held.key and not capacity
        needs_size = self.ceiling == SHARE or (self.needed and self.holders)
        whys = (
            (is_mig, "it is a MIG device, which has memory of its own"),
            (self.cgroup.version != "v2", self.cgroup.reason or "this host has cgroup v1"),
            (not f"{path}/".startswith(f"{CGROUP_ROOT}/"), f"its cgroup, {path}, is not below {CGROUP_ROOT}"),
            (by_nvml and needs_size, f"gpu-memory = share and {MEMORY_REQUEST} need the kernel's dmem controller"),
            (not by_nvml and not capacity, untold),
            (not by_nvml and self.limit > capacity, f"{self.limit // MIB} MiB are more than its {capacity // MIB}"),
            (not most, f"{self.holders} holders have less than 1 MiB each of its {capacity // MIB}"),
            (self.needed > most, f"{self.needed // MIB} MiB are needed, and it may take {most // MIB}"),
        )
        why = next((why for holds, why in whys if holds), "")
        return why and f"the memory of {held.title()} cannot be limited: {why}"

    def _is_network(self, held: Held) -> bool:
        if "=" not in held.key or not held.address:
            return False
        folder = f"/sys/bus/pci/devices/{int(held.address[:8], 16):04x}{held.address[8:]}"
        return self.host.text(f"{folder}/class").startswith(_NETWORK)

    def refusal(self, held: Held) -> RequestError:
        return RequestError(self.why_not(held), _ELSEWHERE)

    def limited(self, provision: Provision) -> Provision:
        """With what limits each device, if any is limited; RequestError if one cannot be."""
        devices = [it for it in provision.holds if not self._is_network(it)]
        for held in devices:
            if self.why_not(held):
                raise self.refusal(held)
        if not (self.limit or self.ceiling):
            return provision
        # A vendor that gives nodes and no device: whose memory they lead to is not known.
        for flag, common in [(it.inventory.flag, it.common) for it in provision.vendors]:
            is_given = any([(node.major, node.minor) in provision.devices for node, _ in common])
            if is_given and not any([it.key.startswith(f"{flag}=") for it in provision.holds]):
                why = f"the memory that the nodes of {flag} lead to cannot be limited: its file names no single device"
                raise RequestError(why, _ELSEWHERE)
        parts = [(self.regions_of(it), it.address, self.limit_of(it) or 0) for it in devices]
        # A device of several regions takes no more than the limit in all of them together.
        limits = {name: limit // len(regions) for regions, _, limit in parts for name in regions}
        gpus = {address: limit for regions, address, limit in parts if not regions}
        lowest, notes = min([limit for *_, limit in parts], default=self.limit), provision.notes
        if self.limit and not devices:
            notes += (f"{MEMORY_LIMIT} limits nothing: the container has no device with memory",)
        elif lowest < self.limit:
            notes += (f"{MEMORY_LIMIT} is {self.limit // MIB}, and gpu-memory allows {lowest // MIB} MiB",)
        reason = f"{MEMORY_LIMIT}={self.limit // MIB}" if lowest == self.limit else "the setting gpu-memory"
        cgroup, kinds = self.cgroup, ((limits, ""), (gpus, self.library))
        made = [LimitMemory(cgroup.path, cgroup.top, tuple(it.items()), True, reason, by) for it, by in kinds if it]
        return provision._replace(operations=(*provision.operations, *made), notes=notes)


def memory_of(request: Request, settings: Settings, host: HostRoot, cgroup: DeviceCgroup) -> Memory:
    """What the container may take and needs, by request and settings; ConfigError if these contradict one another."""
    most, holders = ceiling(settings.gpu_memory) or 0, settings.gpu_holders
    if most == SHARE and not holders:
        raise ConfigError("gpu-memory is share, and no holders are counted: gpu-holders is not set", ADMINISTRATOR)
    library = ""
    # A host of other vendors' devices alone has no such driver.
    if settings.gpu_memory_by == "nvml" and request.words():
        known = drivers.known_inventory(host, settings.driver_root)
        libraries = known.libraries if known else ()
        library = next((it.path for it in libraries if it.soname == "libnvidia-ml.so.1" and it.bits == 64), "")
    # For one that only watches, and is not counted, nothing is reserved.
    is_uncounted = request.capabilities == ("utility",) and not settings.count_watchers and not request.vendors
    needed, regions = 0 if is_uncounted else request.memory_request, read_regions(host)
    return Memory(request.memory_limit, needed, most, holders, regions, cgroup, host, library)
