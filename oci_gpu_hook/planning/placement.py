# SPDX-License-Identifier: Apache-2.0
"""What a container gets on a node that counts holders of devices, or that has a GPU that is not healthy.

A device without room is refused, and what the container gets is leased.  If the node is to choose, it takes those with
the fewest holders; of several those that reach each other by NVLink, then of one NUMA node, then the lowest numbers.
"""

from __future__ import annotations

from time import localtime, strftime

from oci_gpu_hook.container.process import Process
from oci_gpu_hook.errors import ConfigError, DriverError, RequestError, plain, quoted
from oci_gpu_hook.host import leases, statefile
from oci_gpu_hook.host.leases import Lease, Leases, has_room, without_void
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.planning import drivers, selection
from oci_gpu_hook.planning.plan import MAX_SHOWN, Container, Held, Provision, some
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.request.selectors import AnyOf, Request
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.request.words import ALL
from oci_gpu_hook.vendors import platform

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from oci_gpu_hook.planning.memoryshare import Memory

    Provide = Callable[[Request], Provision]
    # As `leases.unhealthy` gives it.
    Unhealthy = dict[str, str]

_SHOWN_ID = 12
_MIB = 1 << 20
_WAIT = "'oci-gpu-hook containers' shows the holders: wait for one to end, or ask for another device"
_UNCOUNTED = "the administrator can let such calls in, uncounted: gpu-holders = 0 below [caller nvidia-container-cli]"
_UNHEALTHY = "the administrator must look at it: 'oci-gpu-hook validate' clears it if it passes"


class Candidate(NamedTuple):
    """peers: the keys of those that it reaches by NVLink; node: its NUMA node, or -1."""

    held: Held
    holders: int = 0
    peers: tuple[str, ...] = ()
    node: int = -1


class Start(NamedTuple):
    """process: None if nothing is leased; memory: what it may take of each device; restores: whether CRIU starts it."""

    host: HostRoot
    settings: Settings
    container: Container
    process: Process | None
    memory: Memory | None
    restores: bool

    def given(self, request: Request, provide: Provide) -> tuple[Request, Provision]:
        """With the chosen devices, which are leased.  RequestError if a device has no room; DriverError for a GPU that
        is not healthy, if the settings refuse it; ConfigError and LockedError if no lease can be written.
        """
        unhealthy = leases.unhealthy(self.host)
        request, chosen, words = self._chosen(request, provide, unhealthy)
        provision = provide(request)
        notes = [said for it in provision.holds if (said := _unhealthy(it, unhealthy))]
        if notes and self.settings.unhealthy != "give":
            left = [it.name for it in provision.holds if "=" not in it.key and not why_unhealthy(it.key, unhealthy)]
            if self.settings.unhealthy == "refuse" or not left or not request.devices:
                raise DriverError("; ".join(notes[:MAX_SHOWN]), _UNHEALTHY)
            request, notes = request._replace(devices=tuple(left)), [f"left out: {it}" for it in notes]
            provision = provide(request)
        # What cannot be limited is refused before it is leased.
        provision = self.memory.limited(provision) if self.memory else provision
        most, of_nvidia = self.settings.gpu_holders, self._most(request)
        counted = tuple([it for it in provision.holds if of_nvidia or "=" in it.key])
        if most and not {*chosen}.issuperset(counted):
            with self._leases(most) as all_leases:
                mine, own, others = self._apart(all_leases)
                for held in counted:
                    holders = _holders(held, others, most)
                    if not has_room(holders, most):
                        raise RequestError(f"{_full(held, holders)}, and gpu-holders is {most}", _WAIT)
                    if self.memory and (why := _too_little(self.memory, held, others)):
                        raise RequestError(why, _WAIT)
                self._lease(mine, own, others, counted)
        return request, provision._replace(notes=(*provision.notes, *notes), chosen=words)

    def _most(self, part: Request) -> int:
        """gpu-holders, or 0: who only watches NVIDIA's GPUs need not count, and can compute on another vendor's."""
        watches = part.capabilities == ("utility",) and not part.flag and not self.settings.count_watchers
        return 0 if watches else self.settings.gpu_holders

    def _chosen(
        self, request: Request, provide: Provide, unhealthy: Unhealthy
    ) -> tuple[Request, list[Held], tuple[str, ...]]:
        """Names in place of ``any``, what was leased, and a sentence for each choice."""
        parts, leased, words = [request, *request.vendors], list[Held](), list[str]()
        wanted = [(place, it.any_of) for place, it in enumerate(parts) if it.any_of]
        offers = [(place, asked, self._offer(parts[place], asked, provide)) for place, asked in wanted]
        if not offers:
            return request, [], ()
        with self._leases(max([self._most(parts[place]) for place, _, _ in offers])) as all_leases:
            mine, own, others = self._apart(all_leases)
            # A container that runs and is looked at has what it has.
            held = () if self.process else [key for lease in own if lease.is_valid() for key in lease.devices]
            for place, asked, offer in offers:
                most, chosen = self._most(parts[place]), [device for device in offer if device.held.key in held]
                chosen = chosen or _pick(asked, offer, others, most, unhealthy, self.memory)
                names = tuple([device.held.name for device in chosen])
                parts[place] = parts[place]._replace(devices=names, any_of=None)
                leased += [device.held for device in chosen if most]
                shown = [f"{it.held.title()} ({it.holders} of {most or 'any number of'} holders)" for it in chosen]
                words.append(f"{asked.written()}: {', '.join(shown)}")
            if leased:
                self._lease(mine, own, others, tuple(leased))
        return parts[0]._replace(vendors=tuple(parts[1:])), leased, tuple(words)

    def _offer(self, part: Request, asked: AnyOf, provide: Provide) -> list[Candidate]:
        """The devices of a part of a request, NVIDIA's or a vendor's.  Of a restored container those of which the
        checkpoint has all nodes; RequestError if that does not tell which are meant: its user can make nodes, and so
        choose among what the container may have.
        """
        offer = _of_vendor(self.host, part) if part.flag else gpus(self.host, self.settings, asked)
        if not self.restores or not self.process:
            return offer
        from oci_gpu_hook.container import restore

        numbers, found = restore.dumped(self.process), []
        for it in offer:
            one = part._replace(devices=(it.held.name,), any_of=None, vendors=())
            if numbers.issuperset(provide(Request("", (), vendors=(one,)) if part.flag else one).devices):
                found.append(it)
        if len(found) != asked.number:
            why = f"{asked.written()} is asked for, and the checkpoint has nodes of {len(found)} of this host's devices"
            raise RequestError(why, "start the container again instead")
        return found

    def _leases(self, most: int) -> Leases:
        """To be written if this start is counted.  ConfigError for a caller's, which cannot be: only the kernel's word
        on a container's process ends a lease, and a caller may be a user, who can stop the call.
        """
        if most and self.process and self.process.is_caller:
            raise ConfigError("gpu-holders is set, and calls without --pid cannot be counted", _UNCOUNTED)
        return Leases(self.host, is_written=bool(most and self.process))

    def _apart(self, all_leases: list[Lease]) -> tuple[Lease | None, list[Lease], list[Lease]]:
        """A lease for this start, without devices; the container's, by another hook of its start or, if it runs, by its
        id; and those of others that are not void.
        """
        process, container, mine = self.process, self.container, None
        if process is not None:
            cgroup = container.device_cgroup.top
            mine = leases.lease_of(container.id, process.pid, process.read("stat"), cgroup, self.settings.gpu_holders)
        own = [it for it in all_leases if (it.is_of(mine) if mine else it.id == container.id)]
        return mine, own, without_void([it for it in all_leases if it not in own])

    def _lease(self, mine: Lease | None, own: list[Lease], others: list[Lease], devices: tuple[Held, ...]) -> None:
        wanted = dict.fromkeys([*[key for lease in own for key in lease.devices], *[it.key for it in devices]])
        named = [(name, it) for it in devices if it.address for name in (it.key, it.address)]
        needs = [(name, self.memory.need_of(it)) for name, it in named] if self.memory else []
        # Another hook of its start may have asked for more: of two needs of one device the larger comes last.
        memory = dict(sorted([*[pair for lease in own for pair in lease.memory], *needs]))
        if mine and wanted:
            leases.write(self.host, [*others, mine._replace(devices=tuple(wanted), memory=tuple(memory.items()))])


def why_unhealthy(key: str, unhealthy: Unhealthy) -> str:
    """A MIG device is what its GPU is."""
    return unhealthy.get(key.partition("/")[0], "")


def _unhealthy(held: Held, unhealthy: Unhealthy) -> str:
    why = why_unhealthy(held.key, unhealthy)
    return why and f"{held.title()} is not healthy: {why}"


def _holders(held: Held, others: list[Lease], most: int) -> list[Lease]:
    """Who holds a device.  A void lease does not count if it would leave no room."""
    holders = [lease for lease in others if held.key in lease.devices]
    return holders if has_room(holders, most) else [lease for lease in holders if lease.is_valid()]


def _too_little(memory: Memory, held: Held, others: list[Lease]) -> str:
    """A sentence if too little is left beside what others have leased, else ""."""
    need, capacity = memory.need_of(held), sum(memory.regions_of(held).values())
    # Those of one address are partitions of one device, and have its memory together.
    leased = [(it, dict(it.memory).get(held.address, 0)) for it in others]
    free = capacity - sum([size for _, size in leased])
    if need > free:
        # A void lease does not count if it would leave too little.
        free = capacity - sum([size for lease, size in leased if size and lease.is_valid()])
    if not (need and capacity) or need <= free:
        return ""
    return f"{held.title()} has {max(free, 0) // _MIB} MiB of {capacity // _MIB} left, and {need // _MIB} are needed"


def _full(held: Held, holders: list[Lease]) -> str:
    times = [strftime("%Y-%m-%d %H:%M", localtime(lease.since)) for lease in holders[:MAX_SHOWN]]
    shown = [f"{plain(lease.id[:_SHOWN_ID])} since {time}" for lease, time in zip(holders, times)]
    # The rest is only counted.
    return f"{held.title()} is held by {some([*shown, *[it.id for it in holders[MAX_SHOWN:]]])}"


def _pick(
    asked: AnyOf, devices: list[Candidate], others: list[Lease], most: int, unhealthy: Unhealthy, memory: Memory | None
) -> list[Candidate]:
    kind = f" of MIG profile {quoted(asked.profile)}" if asked.profile else ""
    many = f"devices{kind} are" if asked.number > 1 else f"device{kind} is"
    wanted = f"{asked.number} {many} asked for"
    if len(devices) < asked.number:
        raise RequestError(f"{wanted}, and this host has {len(devices)}", "the container's author must ask for fewer")
    if memory and all([memory.why_not(it.held) for it in devices]):
        # No holder has to end for that.
        raise memory.refusal(devices[0].held)
    room, refused = [], []
    for device in devices:
        held, holders = device.held, _holders(device.held, others, most)
        if why := _unhealthy(held, unhealthy):
            refused.append(why)
        elif most and not has_room(holders, most):
            refused.append(_full(held, holders))
        elif memory and (why := memory.why_not(held) or (_too_little(memory, held, others) if most else "")):
            refused.append(why)
        else:
            room.append(device._replace(holders=len(holders)))
    if len(room) < asked.number:
        have = "has" if len(room) == 1 else "have"
        raise RequestError(f"{wanted}, and {len(room)} {have} room: {some(refused, between='; ')}", _WAIT)
    return choose(room, asked.number)


def choose(candidates: list[Candidate], count: int) -> list[Candidate]:
    """candidates: in the host's order; all of them if there are no more than `count`."""
    if count >= len(candidates):
        return candidates
    most = sorted([it.holders for it in candidates])[count - 1]
    # With fewer holders than the last one that is needed: these are chosen whatever they are near to.
    certain = [it for it in candidates if it.holders < most]
    others = [it for it in candidates if it.holders == most]
    begun = [certain] if certain else [[it] for it in others]
    best = max([_grown(chosen, others, count) for chosen in begun], key=_nearness)
    return [it for it in candidates if it in best]


def _grown(chosen: list[Candidate], others: list[Candidate], count: int) -> list[Candidate]:
    """Each is the nearest to those before it."""
    chosen = [*chosen]
    while len(chosen) < count:
        # Of equal ones `max` gives the first.
        chosen.append(max([it for it in others if it not in chosen], key=lambda it: near(it, chosen)))
    return chosen


def _nearness(devices: list[Candidate]) -> tuple[int, int]:
    links, nodes = zip(*[near(it, devices) for it in devices])
    return sum(links), sum(nodes)


def near(device: Candidate, others: list[Candidate] | tuple[Candidate, ...]) -> tuple[int, int]:
    """How many of the others it reaches by NVLink, and how many are of its NUMA node."""
    others = [it for it in others if it is not device]
    return sum([it.held.key in device.peers for it in others]), sum([it.node == device.node for it in others])


def gpus(host: HostRoot, settings: Settings, asked: AnyOf) -> list[Candidate]:
    known = drivers.known_inventory(host, settings.driver_root)
    if known is None:
        return [Candidate(Held(ALL, ALL))]  # a Jetson and WSL 2 give all that they have
    if asked.profile and known.mig_devices and not any([device.profile for device in known.mig_devices]):
        hint = "root must run 'oci-gpu-hook inventory refresh' on this host"
        raise DriverError("the MIG devices' profiles are not known: only NVML knows them", hint)
    if asked.profile:
        fitting = tuple([(device, "") for device in known.mig_devices if device.profile == asked.profile])
        return [Candidate(held) for held in selection.holds(selection.Selection((), fitting), known)]
    divided = {device.gpu for device in known.mig_devices}
    undivided = [gpu for gpu in known.gpus if gpu.nvml_index not in divided]
    whole = [gpu for gpu in undivided if not gpu.in_mig_mode]
    if len(whole) < len(undivided) and host.remember:
        statefile.want_refresh(host)  # no time that is compared tells that the mode was switched off
    if undivided and not whole:
        hint = "root must make some, or run 'oci-gpu-hook inventory refresh' if the mode was switched off"
        raise DriverError("each GPU is in MIG mode and has no MIG device, or had none at the last refresh", hint)
    held = selection.holds(selection.Selection(tuple([(gpu, "") for gpu in whole]), ()), known)
    if platform.platform_of(host) == platform.TEGRA:
        # There index 0 is the integrated GPU, which the driver of those on PCI may not list.
        held = tuple([it._replace(name=it.key) for it in held])
    places = [f"/sys/bus/pci/devices/{gpu.proc}/numa_node" if asked.number > 1 else "" for gpu in whole]
    nodes = [host.text(place).strip() if place else "" for place in places]
    return [Candidate(it, 0, gpu.peers, int(at) if at.isdecimal() else -1) for it, gpu, at in zip(held, whole, nodes)]


def _of_vendor(host: HostRoot, request: Request) -> list[Candidate]:
    from oci_gpu_hook.planning import vendorshare
    from oci_gpu_hook.vendors import folders, vendorhost

    found = vendorhost.vendor_state(host, folders.vendor_inventory(host, request.flag, request.file))
    # A device of another class, such as a neural processor beside GPUs, has no index.
    return [Candidate(vendorshare.held(request.flag, it)) for it in found.devices if it.names[0].isdecimal()]
