# SPDX-License-Identifier: Apache-2.0
"""What a container gets on a node that counts holders of devices, or that has a GPU that is not healthy.

Devices that a request leaves to the node are chosen, a device without room is refused, and what the container gets is
leased.  The lock on the leases is held for the choice alone.  Of devices that have room, the ones with the fewest
holders are chosen; of these, for several, those that reach each other by NVLink, then those of one NUMA node; then the
lowest numbers.  Must not be loaded by a start on a healthy node without the setting.
"""

from __future__ import annotations

from time import localtime, strftime

from oci_gpu_hook.errors import DriverError, RequestError, plain, quoted
from oci_gpu_hook.host import health, leases
from oci_gpu_hook.host.leases import Leases, has_room, without_void
from oci_gpu_hook.planning import drivers, selection
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.request import selectors
from oci_gpu_hook.request.words import ALL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from oci_gpu_hook.container.process import Process
    from oci_gpu_hook.driver.inventory import DriverInventory
    from oci_gpu_hook.host.leases import Lease
    from oci_gpu_hook.host.root import HostRoot
    from oci_gpu_hook.planning.plan import Container, Provision
    from oci_gpu_hook.request.parse import Request
    from oci_gpu_hook.request.selectors import AnyOf
    from oci_gpu_hook.request.settings import Settings
    from oci_gpu_hook.request.vendorrequest import VendorRequest

_WATCHES = ("utility",)
_MOST_SHOWN = 3
_SHOWN_ID = 12
_WAIT = "'oci-gpu-hook containers' shows the holders: wait for one to end, or ask for another device"
_UNHEALTHY = "the administrator must look at it: 'oci-gpu-hook validate' clears it if it passes"


class Candidate(NamedTuple):
    """A device that may be chosen.

    key: see `Provision.holds`; name: by which a request asks for it; peers: keys of the devices that
    it reaches by NVLink; node: its NUMA node, -1 for none.
    """

    key: str
    name: str
    holders: int = 0
    peers: tuple[str, ...] = ()
    node: int = -1


class Start(NamedTuple):
    """One container's start; process: None if the container is not started, and leases nothing."""

    host: HostRoot
    settings: Settings
    container: Container
    process: Process | None

    def given(self, request: Request, provide: Callable[[Request], Provision]) -> tuple[Request, Provision]:
        """The request with the chosen devices, and what `provide` gives for it; leased.

        RequestError if a device has no room; DriverError for a GPU that is not healthy, if the settings refuse it;
        ConfigError if no lease can be written.
        """
        unhealthy = health.read(self.host)
        most = self.settings.gpu_holders
        if request.capabilities == _WATCHES and not self.settings.count_watchers:
            most = 0
        chosen: tuple[Candidate, ...] = ()
        words: tuple[str, ...] = ()
        if any([selectors.any_of(names) for names in (request.devices, *[it.devices for it in request.vendors])]):
            request, chosen, words = self._chosen(request, most, unhealthy)
        provision = provide(request)
        notes = _unhealthy(provision, unhealthy)
        if notes and self.settings.unhealthy != "give":
            request, notes = _without(request, provision, notes, unhealthy, self.settings.unhealthy)
            provision = provide(request)
        provision = provision._replace(notes=(*provision.notes, *notes), chosen=words)
        holds = provision.holds
        if most and not {it.key for it in chosen}.issuperset([key for key, _ in holds]):
            with Leases(self.host, is_written=self.process is not None) as all_leases:
                own, others = self._apart(all_leases)
                for key, name in holds:
                    holders = _holders(key, others, most)
                    if not has_room(holders, most):
                        raise RequestError(f"{_full(title(key, name), holders)}, and gpu-holders is {most}", _WAIT)
                self._take(own, others, [key for key, _ in holds])
        return request, provision

    def _chosen(
        self, request: Request, most: int, unhealthy: dict[str, str]
    ) -> tuple[Request, tuple[Candidate, ...], tuple[str, ...]]:
        """The request with names in place of ``any``, what was chosen and leased, and a sentence for each choice."""
        asked = selectors.any_of(request.devices)
        places = [(asked, _gpus(self.host, self.settings, asked))] if asked else []
        vendors = [(it, selectors.any_of(it.devices)) for it in request.vendors]
        places += [(wanted, _of_vendor(self.host, it)) for it, wanted in vendors if wanted]
        with Leases(self.host, is_written=bool(most and self.process)) as all_leases:
            own, others = self._apart(all_leases)
            # A container that runs and is looked at has what it has.
            held = () if self.process else [key for lease in own if lease.is_valid() for key in lease.devices]
            picked = [
                tuple([it for it in devices if it.key in held]) or _pick(wanted, devices, others, most, unhealthy)
                for wanted, devices in places
            ]
            chosen = tuple([it for one in picked for it in one])
            if most:
                self._take(own, others, [it.key for it in chosen])
        words = tuple([_said(wanted, devices, most) for (wanted, _), devices in zip(places, picked)])
        names = [tuple([it.name for it in devices]) for devices in picked]
        if asked:
            request = request._replace(devices=names.pop(0))
        changed = [it._replace(devices=names.pop(0)) if wanted else it for it, wanted in vendors]
        return request._replace(vendors=tuple(changed)), chosen, words

    def _apart(self, all_leases: list[Lease]) -> tuple[list[Lease], list[Lease]]:
        """This container's leases, as another hook of its start makes one, and those of others that are not void.

        Of a container that runs already nothing is known but its id.
        """
        mine = self._lease()
        own = [it for it in all_leases if (it.is_of(mine) if mine else it.id == self.container.id)]
        return own, without_void([it for it in all_leases if it not in own])

    def _take(self, own: list[Lease], others: list[Lease], keys: list[str]) -> None:
        """Lease these devices, beside those that are this container's own."""
        mine = self._lease()
        if mine and keys:
            keys = [*[key for lease in own for key in lease.devices], *keys]
            leases.write(self.host, [*others, mine._replace(devices=tuple(dict.fromkeys(keys)))])

    def _lease(self) -> Lease | None:
        """This start's lease, without devices."""
        process, container, most = self.process, self.container, self.settings.gpu_holders
        if process is None:
            return None
        return leases.lease_of(container.id, process.pid, process.read("stat"), container.device_cgroup.top, most)


def title(key: str, name: str) -> str:
    """A device for people."""
    flag, equals, _ = key.partition("=")
    if equals:
        return f"{flag} device {name}"
    return f"{'MIG device' if '/' in key else 'GPU'} {name}"


def why_unhealthy(key: str, unhealthy: dict[str, str]) -> str:
    """Why a device is not healthy; "" if it is.  A MIG device is what its GPU is."""
    return unhealthy.get(key.partition("/")[0], "")


def _holders(key: str, others: list[Lease], most: int) -> list[Lease]:
    """Who holds a device.  A void lease does not count if it would leave no room."""
    holders = [lease for lease in others if key in lease.devices]
    return holders if has_room(holders, most) else [lease for lease in holders if lease.is_valid()]


def _full(name: str, holders: Sequence[Lease]) -> str:
    shown = [
        f"{plain(lease.id[:_SHOWN_ID])} since {strftime('%Y-%m-%d %H:%M', localtime(lease.since))}"
        for lease in holders[:_MOST_SHOWN]
    ]
    more = f" and {len(holders) - _MOST_SHOWN} more" if len(holders) > _MOST_SHOWN else ""
    return f"{name} is held by {', '.join(shown)}{more}"


def _pick(
    asked: AnyOf, devices: list[Candidate], others: list[Lease], most: int, unhealthy: dict[str, str]
) -> tuple[Candidate, ...]:
    """The chosen devices; RequestError if there are too few with room."""
    what = f"devices of MIG profile {quoted(asked.profile)}" if asked.profile else "devices"
    if len(devices) < asked.number:
        why = f"{asked.number} {what} are asked for, and this host has {len(devices)}"
        raise RequestError(why, "the container's author must ask for fewer")
    room, refused = [], []
    for device in devices:
        holders = _holders(device.key, others, most)
        why = why_unhealthy(device.key, unhealthy)
        if why:
            refused.append(f"{title(device.key, device.name)} is not healthy: {why}")
        elif most and not has_room(holders, most):
            refused.append(_full(title(device.key, device.name), holders))
        else:
            room.append(device._replace(holders=len(holders)))
    if len(room) < asked.number:
        more = f"; and {len(refused) - _MOST_SHOWN} more" if len(refused) > _MOST_SHOWN else ""
        shown = "; ".join(refused[:_MOST_SHOWN]) + more
        raise RequestError(f"{asked.number} {what} are asked for, and {len(room)} have room: {shown}", _WAIT)
    return choose(room, asked.number)


def choose(candidates: Sequence[Candidate], count: int) -> tuple[Candidate, ...]:
    """`count` of the candidates, which are in the host's order; all of them if there are no more."""
    if count >= len(candidates):
        return tuple(candidates)
    most = sorted([it.holders for it in candidates])[count - 1]
    # With fewer holders than the last one that is needed: these are chosen whatever they are near to.
    certain = [it for it in candidates if it.holders < most]
    others = [it for it in candidates if it.holders == most]
    begun = [certain] if certain else [[it] for it in others]
    found = [_grown(chosen, others, count) for chosen in begun]
    best = max(found, key=_nearness)
    return tuple([it for it in candidates if it in best])


def _grown(chosen: list[Candidate], others: list[Candidate], count: int) -> list[Candidate]:
    """`chosen` and as many of the others as are missing, each the nearest to those before it."""
    chosen = [*chosen]
    while len(chosen) < count:
        left = [it for it in others if it not in chosen]
        # Of equal ones `max` gives the first.
        chosen.append(max(left, key=lambda it: _near(it, chosen)))
    return chosen


def _near(device: Candidate, others: Iterable[Candidate]) -> tuple[int, int]:
    """How many of the others it reaches by NVLink, and how many are of its NUMA node."""
    others = [it for it in others if it is not device]
    return sum([it.key in device.peers for it in others]), sum([it.node == device.node for it in others])


def _nearness(devices: list[Candidate]) -> tuple[int, int]:
    pairs = [_near(it, devices) for it in devices]
    return sum([links for links, _ in pairs]), sum([nodes for _, nodes in pairs])


def _said(asked: AnyOf, chosen: tuple[Candidate, ...], most: int) -> str:
    shown = [f"{title(it.key, it.name)} ({it.holders} of {most or 'any number of'} holders)" for it in chosen]
    return f"{asked.name}: {', '.join(shown)}"


def _gpus(host: HostRoot, settings: Settings, asked: AnyOf) -> list[Candidate]:
    """The GPUs that are not in MIG mode, or the MIG devices of the profile that is asked for."""
    known = drivers.known_inventory(host, settings.driver_root)
    if known is None:
        return [Candidate(ALL, ALL)]  # a Jetson and WSL 2 give all that they have
    if asked.profile:
        return _mig_devices(known, asked.profile)
    divided = {device.gpu for device in known.mig_devices}
    return [
        Candidate(gpu.bus_id, str(gpu.nvml_index), peers=gpu.peers, node=_numa_node(host, gpu.proc, asked.number))
        for gpu in known.gpus
        if gpu.nvml_index not in divided
    ]


def _mig_devices(known: DriverInventory, profile: str) -> list[Candidate]:
    if known.mig_devices and not any([device.profile for device in known.mig_devices]):
        hint = "root must run 'oci-gpu-hook inventory refresh' on this host"
        raise DriverError("the MIG devices' profiles are not known: only NVML knows them", hint)
    bus_ids = {gpu.nvml_index: gpu.bus_id for gpu in known.gpus}
    return [
        Candidate(selection.mig_key(it, bus_ids[it.gpu]), selection.name_of(it, known))
        for it in known.mig_devices
        if it.profile == profile
    ]


def _numa_node(host: HostRoot, address: str, count: int) -> int:
    """The NUMA node of a GPU if more than one is asked for; -1 if it has none."""
    text = host.read(f"/sys/bus/pci/devices/{address}/numa_node") if count > 1 else None
    return int(text) if text and text.strip().isdigit() else -1


def _of_vendor(host: HostRoot, request: VendorRequest) -> list[Candidate]:
    from oci_gpu_hook.planning import vendorshare
    from oci_gpu_hook.vendors import folders, vendorhost

    found = vendorhost.look(host, folders.vendor_inventory(host, request.flag, request.file))
    return [Candidate(vendorshare.key(request.flag, it), it.names[0]) for it in found.devices]


def _unhealthy(provision: Provision, unhealthy: dict[str, str]) -> list[str]:
    """A sentence for each GPU of a provision that is not healthy."""
    told = [(key, name, why_unhealthy(key, unhealthy)) for key, name in provision.holds]
    return [f"{title(key, name)} is not healthy: {why}" for key, name, why in told if why]


def _without(
    request: Request, provision: Provision, told: list[str], unhealthy: dict[str, str], setting: str
) -> tuple[Request, list[str]]:
    """The request without GPUs that are not healthy, and a note for each; DriverError if that is not to be, or none."""
    left = [name for key, name in provision.holds if "=" not in key and not why_unhealthy(key, unhealthy)]
    if setting == "refuse" or not left or request.by_nodes():
        raise DriverError("; ".join(told[:_MOST_SHOWN]), _UNHEALTHY)
    return request._replace(devices=tuple(left)), [f"left out: {it}" for it in told]
