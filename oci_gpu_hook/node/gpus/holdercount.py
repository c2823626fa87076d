# SPDX-License-Identifier: Apache-2.0
"""What starts count of this host's devices, for people.  No lock is taken, and nothing is removed."""

from __future__ import annotations

from oci_gpu_hook.driver.inventory import DriverInventory
from oci_gpu_hook.errors import ConfigError
from oci_gpu_hook.host import leases
from oci_gpu_hook.host.leases import Lease, has_room
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.planning.placement import why_unhealthy
from oci_gpu_hook.planning.plan import Held
from oci_gpu_hook.planning.selection import Selection, holds
from oci_gpu_hook.record import NamedTuple


class Counted(NamedTuple):
    """What people call a device, its leases, why it is not healthy, "" if it is, and whether ``any`` can choose it."""

    key: str
    title: str
    leases: tuple[Lease, ...]
    unhealthy: str
    has_room: bool = False


def count_holders(host: HostRoot, found: DriverInventory, most: int) -> tuple[Counted, ...]:
    """Also what is leased, and another vendor's, divided or gone; most: of no section.  ConfigError: damaged leases."""
    try:
        valid = [lease for lease in leases.read_leases(host) if lease.is_valid()]
    except ConfigError:
        if most:
            raise
        valid = []
    leased = {key: key.partition("=")[2] or key for lease in valid for key in lease.devices}
    divided, unhealthy, counted = {device.gpu for device in found.mig_devices}, leases.unhealthy(host), []
    gpus = tuple([(gpu, "") for gpu in found.gpus if gpu.nvml_index not in divided])
    selected = Selection(gpus, tuple([(device, "") for device in found.mig_devices]))
    names = {it.key: it.name for it in holds(selected, found)}
    gone = {bus: bus for bus in found.unlisted if bus in unhealthy}
    closed = {gpu.bus_id for gpu in found.gpus if gpu.in_mig_mode}
    for key, name in {**names, **gone, **leased, **names}.items():
        its, why = [lease for lease in valid if key in lease.devices], why_unhealthy(key, unhealthy)
        is_free = ("=" in key or key in names.keys() - closed) and not why and has_room(its, most or len(its) + 1)
        counted.append(Counted(key, Held(key, name).title(), tuple(its), why, is_free))
    return tuple(counted)


def unhealthy_gpus(host: HostRoot, found: DriverInventory) -> dict[str, str]:
    why = leases.unhealthy(host)
    names = {**{bus: bus for bus in found.unlisted}, **{gpu.bus_id: str(gpu.nvml_index) for gpu in found.gpus}}
    return {name: why[bus] for bus, name in names.items() if bus in why}
