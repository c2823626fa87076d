# SPDX-License-Identifier: Apache-2.0
"""What a container gets of one vendor's: the requested devices, and the files of its driver.  Pure.

As for NVIDIA's driver: exactly the requested devices, libraries in the folder of the container's loader, everything
else at the host's own path unless the vendor's file says another.
"""

from __future__ import annotations

from oci_gpu_hook.errors import DriverError, RequestError, quoted
from oci_gpu_hook.operations.mount import Mount
from oci_gpu_hook.operations.service import Service
from oci_gpu_hook.operations.symlink import Symlink
from oci_gpu_hook.planning import placement
from oci_gpu_hook.planning.plan import Share
from oci_gpu_hook.request.selectors import bus_id
from oci_gpu_hook.request.words import ALL, NONE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.container.layout import Layout
    from oci_gpu_hook.driver.inventory import DriverFile
    from oci_gpu_hook.driver.nodes import DeviceNode
    from oci_gpu_hook.operations.operation import Operation
    from oci_gpu_hook.request.vendorrequest import VendorRequest
    from oci_gpu_hook.vendors.devices import Device
    from oci_gpu_hook.vendors.vendorhost import OnHost
    from oci_gpu_hook.vendors.vendorinventory import VendorInventory

_MOST_SHOWN = 3


def share(layout: Layout, request: VendorRequest, found: OnHost, process_type: str = "") -> Share:
    """A vendor's share; DriverError where the host lacks what its file requires, RequestError for an unknown device.

    process_type: the SELinux type of the container's process, "" where it has none.
    """
    inventory = found.inventory
    _check_host(request, found)
    nodes = _nodes(request, found)
    placed = [
        (library, folder, f"{inventory.flag}, {library.capabilities[0]}")
        for library in inventory.libraries
        if (folder := placement.folder_of(layout, library))
    ]
    cached = [(library, library.folder, "") for library in inventory.cached]
    operations: tuple[Operation, ...] = (
        *placement.libraries(placed),
        *[_mount(inventory, file) for file in inventory.files],
        *_services(found),
        *[Symlink(link.path, link.to, False, f"link: {inventory.flag}") for link in inventory.links],
    )
    return Share(
        giver=inventory.file,
        nodes=nodes,
        operations=operations,
        entries=placement.entries([*placed, *cached]),
        notes=(*_notes(request, found), *_wrong_type(found.inventory, process_type)),
    )


def selected(names: tuple[str, ...], found: OnHost) -> tuple[tuple[Device, str], ...]:
    """The devices that these names mean, in the host's order, each with the name that asked for it."""
    devices = found.devices.devices
    if names == (ALL,):
        return tuple([(device, ALL) for device in devices])
    asked = [] if names == (NONE,) else names
    chosen: dict[Device, str] = {}
    for name in asked:
        matching = [device for device in devices if _is_called(device, name)]
        if not matching:
            raise _unknown(name, found)
        chosen.setdefault(matching[0], name)
    return tuple([(device, chosen[device]) for device in devices if device in chosen])


def of_nodes(paths: tuple[str, ...], found: OnHost) -> tuple[tuple[Device, str], ...]:
    """The devices whose nodes the engine has made."""
    return tuple(
        [
            (device, device.nodes[0][0].path)
            for device in found.devices.devices
            if all([node.path in paths for node, _ in device.nodes])
        ]
    )


def _nodes(request: VendorRequest, found: OnHost) -> tuple[tuple[DeviceNode, str], ...]:
    """The device nodes, each once and with its reason."""
    flag = found.inventory.flag
    if request.devices == (NONE,):
        return ()
    look = of_nodes if request.source == "cdi" else selected
    wanted: dict[DeviceNode, str] = {}
    for node, group in found.devices.common:
        wanted.setdefault(node, f"{flag}, {group}: every request")
    for device, name in look(request.devices, found):
        for node, group in device.nodes:
            wanted.setdefault(node, f"{flag}, {group}: asked for as {name}")
    return tuple(wanted.items())


def _check_host(request: VendorRequest, found: OnHost) -> None:
    """DriverError where something is missing without which nothing of the vendor's works."""
    file = found.inventory.file
    lacking = [*found.unmet, *found.inventory.lacking]
    if request.devices != (NONE,):
        lacking += [f"{pattern} is missing" for pattern in found.devices.lacking]
    if lacking:
        more = f", and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        raise DriverError(
            f"{file} requires what this host lacks: {lacking[0]}{more}",
            f"whoever installs the driver must fix it; 'oci-gpu-hook info' shows what {request.flag} has here",
        )


def _mount(inventory: VendorInventory, file: DriverFile) -> Mount:
    what = "folder" if file.folder else "file"
    reason = f"{what}: {inventory.flag}, {file.capabilities[0]}"
    # Programs lie anywhere, and a folder may hold some.
    return Mount(file.path, file.target, placement.READ_ONLY, False, reason, file.folder)


def _services(found: OnHost) -> tuple[Service, ...]:
    """The sockets that are there now."""
    flag = found.inventory.flag
    return tuple(
        [Service(path, path, 0, required=False, reason=f"socket: {flag}, {group}") for path, group in found.sockets]
    )


def _notes(request: VendorRequest, found: OnHost) -> tuple[str, ...]:
    """What is left out, each in a sentence."""
    inventory = found.inventory
    # Files that may be missing are so on most hosts, as each distribution has folders of its own: `info` lists them.
    absent = found.devices.absent
    notes = [*inventory.faults, *found.faults]
    if absent:
        shown = ", ".join(absent[:_MOST_SHOWN])
        more = f" and {len(absent) - _MOST_SHOWN} more" if len(absent) > _MOST_SHOWN else ""
        notes.append(f"{request.flag}: this host has no {shown}{more}")
    if request.devices == (ALL,) and inventory.patterns and not (found.devices.devices or found.devices.common):
        notes.append(f"{request.flag}=all brings no device: this host has none")
    return tuple(notes)


def _wrong_type(inventory: VendorInventory, process_type: str) -> list[str]:
    """A sentence where the vendor's file says that containers need another SELinux type."""
    needed = inventory.selinux_type
    if not needed or not process_type or process_type == needed:
        return []
    return [
        f"{inventory.file} says that containers need the SELinux type {needed}, and this one has "
        f"{quoted(process_type)}: 'oci-gpu-hook selinux explain' shows what was denied"
    ]


def _is_called(device: Device, name: str) -> bool:
    address = bus_id(name)
    return name in device.names or bool(address and address in [bus_id(called) for called in device.names])


def _unknown(name: str, found: OnHost) -> RequestError:
    devices = found.devices.devices
    here = "this host has none"
    if not any([pattern.each for _, pattern in found.inventory.patterns]):
        here = "its file names none, so that 'all' is what can be asked for"
    if devices:
        shown = [device.names[-1] for device in devices[:_MOST_SHOWN]]
        here = f"this host has {len(devices)}: {', '.join(shown)}"
        here += ", ..." if len(devices) > _MOST_SHOWN else ""
    return RequestError(
        f"unknown device '{name}' of {found.inventory.flag}: {here}",
        "the container's author must ask for one that exists; 'oci-gpu-hook info' lists them",
    )
