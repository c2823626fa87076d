# SPDX-License-Identifier: Apache-2.0
"""How much memory of each device a container may take; one that cannot be held to its limit is refused.  Reads only."""

from __future__ import annotations

from oci_gpu_hook.container.devicecgroup import CGROUP_ROOT, DeviceCgroup
from oci_gpu_hook.container.memoryregion import read_regions
from oci_gpu_hook.container.process import Process
from oci_gpu_hook.errors import ConfigError, RequestError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.operations import LimitMemory
from oci_gpu_hook.planning import drivers
from oci_gpu_hook.planning.plan import Held, Provision
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.request.memory import MIB, SHARE, ceiling
from oci_gpu_hook.request.parse import Request
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.request.words import ADMINISTRATOR, MEMORY_LIMIT, MEMORY_REQUEST

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.host.leases import Lease

_ELSEWHERE = f"start it where a limit can be held, or without {MEMORY_LIMIT}; of gpu-memory {ADMINISTRATOR}"
# PCI's class of network adapters: what has no memory for programs.
_NETWORK = "0x02"
_UNKNOWN_SIZE = "only the kernel's dmem controller tells its size"


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
    library: str = ""

    def regions_of(self, held: Held) -> dict[str, int]:
        return (self.regions or {}).get(held.address, {})

    def limit_of(self, held: Held) -> int | None:
        """In bytes; None if there is no limit, 0 if a share is less than 1 MiB."""
        if not self.ceiling:
            return self.limit or None
        capacity = sum(self.regions_of(held).values())
        most = capacity // self.holders // MIB * MIB if self.ceiling == SHARE else self.ceiling
        return min(most, capacity or most, self.limit or most)

    def need_of(self, held: Held) -> int:
        """The bytes that must be free there for it; 0 if it does not say.  By a setting it is what it may take."""
        return (0 if self.ceiling else self.needed) or self.limit_of(held) or 0

    def too_little(self, held: Held, others: list[Lease]) -> str:
        """A sentence if too little is left beside what others have leased, else ""."""
        need, capacity = self.need_of(held), sum(self.regions_of(held).values())
        leased = [(lease, dict(lease.memory).get(held.address, 0)) for lease in others]
        free = capacity - sum([memory for _, memory in leased])
        if need > free:
            # A void lease does not count if it would leave too little.
            free = capacity - sum([memory for lease, memory in leased if memory and lease.is_valid()])
        if not (need and capacity) or need <= free:
            return ""
        return f"{held.title()} has {max(free, 0) // MIB} MiB of {capacity // MIB} left, and {need // MIB} are needed"

    def why_not(self, held: Held) -> str:
        """Why it cannot be held to its limit of a device; "" if it can, or has none."""
        most, regions = self.limit_of(held), self.regions_of(held)
        if most is None:
            return ""
        capacity, path = sum(regions.values()), self.cgroup.path or CGROUP_ROOT
        no_dmem = "this kernel has no dmem controller (Linux 6.14, CONFIG_CGROUP_DMEM), or no cgroup has it enabled"
        of_kernel = (
            (self.regions is None, no_dmem),
            (not capacity, "its driver has not told the kernel's dmem controller of it"),
            (self.limit > capacity, f"{MEMORY_LIMIT} is {self.limit // MIB}, and it has {capacity // MIB} MiB"),
            (not most, f"{self.holders} holders have less than 1 MiB each of its {capacity // MIB}"),
        )
        of_nvml = (
            (self.ceiling == SHARE, f"gpu-memory is share, and {_UNKNOWN_SIZE}"),
            (self.needed and self.holders, f"{MEMORY_REQUEST} reserves a part of it, and {_UNKNOWN_SIZE}"),
        )
        whys = (
            ("/" in held.key.partition("=")[0], "it is a MIG device, which has memory of its own"),
            (self.cgroup.version != "v2", self.cgroup.reason or "this host has cgroup v1"),
            (not f"{path}/".startswith(f"{CGROUP_ROOT}/"), f"its cgroup, {path}, is not below {CGROUP_ROOT}"),
            *(of_nvml if self.library and "=" not in held.key and not capacity else of_kernel),
            (
                self.needed > most,
                f"{MEMORY_REQUEST} is {self.needed // MIB}, and the container may take {most // MIB} MiB",
            ),
        )
        why = next((why for holds, why in whys if holds), "")
        return why and f"the memory of {held.title()} cannot be limited: {why}"

    def refusal(self, held: Held) -> RequestError:
        return RequestError(self.why_not(held), _ELSEWHERE)

    def limited(self, provision: Provision, host: HostRoot) -> Provision:
        """With what limits each device, if any is limited; RequestError if one cannot be."""
        devices = [it for it in provision.holds if not _is_network(host, it)]
        limits: dict[str, int] = {}
        gpus: dict[str, int] = {}
        for held in devices:
            if self.why_not(held):
                raise self.refusal(held)
            if limit := self.limit_of(held):
                # A device of several regions takes no more than the limit in all of them together.
                regions = self.regions_of(held)
                limits.update(dict.fromkeys(regions, limit // (len(regions) or 1)))
                gpus.update({} if regions else {held.address: limit})
        # A vendor that gives nodes and no device: whose memory they lead to is not known.
        for flag in [it.inventory.flag for it in provision.vendors if it.common and (self.limit or self.ceiling)]:
            if not any([it.key.startswith(f"{flag}=") for it in provision.holds]):
                why = f"the memory that the nodes of {flag} lead to cannot be limited: its file names no single device"
                raise RequestError(why, _ELSEWHERE)
        lowest = min([self.limit_of(held) or 0 for held in devices], default=0)
        notes = provision.notes
        if self.limit and not provision.holds:
            notes += (f"{MEMORY_LIMIT} limits nothing: the container has no device",)
        elif lowest < self.limit and devices:
            notes += (f"{MEMORY_LIMIT} is {self.limit // MIB}, and gpu-memory allows {lowest // MIB} MiB",)
        reason = f"{MEMORY_LIMIT}={self.limit // MIB}" if lowest == self.limit else "the setting gpu-memory"
        made = [
            LimitMemory(self.cgroup.path, self.cgroup.top, tuple(most.items()), True, reason, library)
            for most, library in ((limits, ""), (gpus, self.library))
            if most
        ]
        return provision._replace(operations=(*provision.operations, *made), notes=notes)


def memory_of(
    request: Request, settings: Settings, host: HostRoot, process: Process | None, cgroup: DeviceCgroup
) -> Memory:
    """What the container may take and needs, by request and settings; ConfigError if these contradict one another."""
    most, holders = ceiling(settings.gpu_memory) or 0, settings.gpu_holders
    if most == SHARE and not holders:
        raise ConfigError("gpu-memory is share, and no holders are counted: gpu-holders is not set", ADMINISTRATOR)
    if process is not None and process.is_caller:
        cgroup = DeviceCgroup(reason="a call without --pid names no cgroup")
    library = ""
    if settings.gpu_memory_by == "nvml":
        known = drivers.known_inventory(host, settings.driver_root)
        named = [it for it in (known.libraries if known else ()) if it.soname == "libnvidia-ml.so.1" and it.bits == 64]
        library = named[0].path if named else ""
    return Memory(request.memory_limit, request.memory_request, most, holders, read_regions(host), cgroup, library)


def _is_network(host: HostRoot, held: Held) -> bool:
    if "=" not in held.key or not held.address:
        return False
    folder = f"/sys/bus/pci/devices/{int(held.address[:8], 16):04x}{held.address[8:]}"
    return host.text(f"{folder}/class").startswith(_NETWORK)
