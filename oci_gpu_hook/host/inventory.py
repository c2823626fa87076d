# SPDX-License-Identifier: Apache-2.0
"""DriverInventory: what this host's driver offers, as a value, and as it was saved while that is still true.

The survey (`survey`) reads /proc/driver/nvidia and some hundred files; it is done once and saved.  A start loads the
saved one if its stamp still fits (`Stamp`).  Nothing here opens a GPU, asks NVML or writes.
"""

from __future__ import annotations

import marshal

from oci_gpu_hook.host import nodes, proc, saved
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.host.stamp import Stamp
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, TypeVar

    Record = TypeVar("Record", bound=NamedTuple)

FILE = saved.INVENTORY
SAVED = f"{saved.FOLDER}/{FILE}"

# The file: these bytes, the length of what follows them and it, and that: a tuple of the stamp and the inventory, as
# plain tuples, by marshal.  The number is raised whenever a record below changes its fields: a saved inventory of
# another format is no inventory.
HEADING = b"oci-gpu-hook inventory 4\n"
LENGTH_BYTES = 4


class Library(NamedTuple):
    """A driver library: host path of the versioned file, and the names it must have in a container.

    names: the first is the file's there, the others lead to it; subfolder: where below a library folder it belongs, ""
    is directly in it; flags: as an entry of ld.so.cache has them.
    """

    path: str
    file: str
    soname: str
    names: tuple[str, ...]
    flags: int
    bits: int
    subfolder: str
    capabilities: tuple[str, ...]


class DriverFile(NamedTuple):
    """A program, configuration or firmware file: host path, container path, and what brings it (() is any request).

    folder: it is one, and comes with all that is in it.
    """

    path: str
    target: str
    capabilities: tuple[str, ...]
    folder: bool = False


class Misfit(NamedTuple):
    """A required library that is there in another version only, or (found is "") not at all."""

    name: str
    capability: str
    found: str


class MigDevice(NamedTuple):
    """A compute instance of a GPU in MIG mode.

    gpu: the parent's nvml_index; number: NVML's index on that GPU; gi, ci: GPU and compute instance; the minors are
    those of /dev/nvidia-caps/nvidia-capN.  number and uuid are None, and profile is "", where NVML was not asked.
    """

    gpu: int
    number: int | None
    uuid: str | None
    profile: str
    gi: int
    ci: int
    gi_minor: int
    ci_minor: int


class DriverInventory(NamedTuple):
    """One host's driver.  The last three fields are looked up at every load, see `nodes`.

    unknown: what could not be found out, a sentence each; library_folder: the folder in the driver's root that holds
    its native libraries.
    """

    driver_version: str
    cuda_version: str
    gpus: tuple[proc.Gpu, ...]
    mig_devices: tuple[MigDevice, ...]
    mig_config_minor: int | None
    mig_monitor_minor: int | None
    libraries: tuple[Library, ...]
    library_folder: str
    misfits: tuple[Misfit, ...]
    binaries: tuple[DriverFile, ...]
    files: tuple[DriverFile, ...]
    firmware: tuple[DriverFile, ...]
    proc_files: tuple[tuple[str, str], ...]
    unknown: tuple[str, ...]
    devices: tuple[nodes.DeviceNode, ...] = ()
    links: tuple[nodes.DeviceLink, ...] = ()
    ipc_paths: tuple[nodes.IpcPath, ...] = ()


def read_saved(root: HostRoot, now: Stamp) -> DriverInventory | None:
    """The saved inventory, if it is there, ours, whole, and stamped like `now`."""
    data = saved.read(root, FILE)
    if data is None:
        return None
    begin = len(HEADING) + LENGTH_BYTES
    length = int.from_bytes(data[len(HEADING) : begin], "little")
    if not data.startswith(HEADING) or len(data) != begin + length:
        return None
    try:
        # It is safe with bytes that we can trust, and with no others.
        stamped, rows = marshal.loads(data[begin:])
        if stamped != now:
            return None
        found = _from_rows(rows)
    except (EOFError, ValueError, TypeError, MemoryError):
        return None
    return None if _has_named_more(root, found.gpus) else found


def with_nodes(
    root: HostRoot,
    inventory: DriverInventory,
    families: tuple[str, ...] = (),
    channels: tuple[str, ...] = (),
    driver_root: str = "/",
    gpus: tuple[proc.Gpu, ...] | None = None,
) -> DriverInventory:
    """The inventory with device nodes and sockets as they are now.

    channels: IMEX channels that are asked for; gpus: those whose nodes are wanted, None for all.
    """
    gpus = inventory.gpus if gpus is None else gpus
    devices = nodes.devices(root, gpus)
    if families:
        devices += nodes.of_families(root, families, gpus, _caps_minors(inventory), channels)
    return inventory._replace(
        devices=devices,
        links=nodes.links(devices, gpus),
        ipc_paths=nodes.ipc_paths(root, driver_root),
    )


def _caps_minors(inventory: DriverInventory) -> list[int]:
    """The minors of all MIG capabilities that can be asked for."""
    minors = [inventory.mig_config_minor, inventory.mig_monitor_minor]
    for device in inventory.mig_devices:
        minors += [device.gi_minor, device.ci_minor]
    return list(dict.fromkeys([minor for minor in minors if minor is not None]))


def _has_named_more(root: HostRoot, gpus: tuple[proc.Gpu, ...]) -> bool:
    """Whether the kernel knows a UUID that it did not: a GPU has none until it is first used, and no stamp tells."""
    return any([not gpu.uuid and proc.uuid_of(root, gpu.proc) is not None for gpu in gpus])


def _from_rows(rows: Any) -> DriverInventory:
    """The records again, from the tuples that marshal has; ValueError or TypeError where one has other fields."""
    (found,) = _records(DriverInventory, (rows,))
    return found._replace(
        gpus=_records(proc.Gpu, found.gpus),
        # Few hosts have any, and their classes are made when they are asked for: packaging/link.py.
        mig_devices=found.mig_devices and _records(MigDevice, found.mig_devices),
        misfits=found.misfits and _records(Misfit, found.misfits),
        libraries=_records(Library, found.libraries),
        binaries=_records(DriverFile, found.binaries),
        files=_records(DriverFile, found.files),
        firmware=_records(DriverFile, found.firmware),
    )


def _records(kind: type[Record], rows: Iterable[tuple[Any, ...]]) -> tuple[Record, ...]:
    """A record of each row: no loop of Python's, for there are two hundred of them."""
    if not {*map(len, rows)} <= {len(kind._fields)}:
        raise ValueError(f"a {kind.__name__} has other fields")
    return tuple(map(kind._make, rows))
