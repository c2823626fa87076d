# SPDX-License-Identifier: Apache-2.0
"""What starts count of this host's devices, for people.  No lock is taken, and nothing is removed."""

from __future__ import annotations

from oci_gpu_hook.driver.inventory import DriverInventory
from oci_gpu_hook.host import leases
from oci_gpu_hook.host.leases import Lease
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.planning.placement import why_unhealthy
from oci_gpu_hook.planning.plan import Held
from oci_gpu_hook.planning.selection import Selection, holds
from oci_gpu_hook.record import NamedTuple


class Counted(NamedTuple):
    """A device: what people call it, the leases of those who hold it, and why it is not healthy, "" if it is."""

    key: str
    title: str
    leases: tuple[Lease, ...]
    unhealthy: str


def count_holders(host: HostRoot, found: DriverInventory | None, most: int) -> tuple[Counted, ...]:
    """Also what is leased of other vendors' devices; ConfigError if the leases are damaged."""
    valid = [lease for lease in leases.read_leases(host) if lease.is_valid()] if most else []
    names = {key: key.partition("=")[2] for lease in valid for key in lease.devices if "=" in key}
    if found is not None:
        divided = {device.gpu for device in found.mig_devices}
        gpus = tuple([(gpu, "") for gpu in found.gpus if gpu.nvml_index not in divided])
        selected = Selection(gpus, tuple([(device, "") for device in found.mig_devices]))
        names = {**{it.key: it.name for it in holds(selected, found)}, **names}
    unhealthy = leases.unhealthy(host)
    holders = {key: tuple([lease for lease in valid if key in lease.devices]) for key in names}
    rows = [(key, Held(key, name).title(), holders[key], why_unhealthy(key, unhealthy)) for key, name in names.items()]
    return tuple([Counted(*row) for row in rows])


def unhealthy_gpus(host: HostRoot, found: DriverInventory) -> dict[str, str]:
    why = leases.unhealthy(host)
    return {str(gpu.nvml_index): why[gpu.bus_id] for gpu in found.gpus if gpu.bus_id in why}
