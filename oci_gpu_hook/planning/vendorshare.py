# SPDX-License-Identifier: Apache-2.0
"""What a container gets of one vendor's: exactly the requested devices, and the files of its driver.  Pure."""

from __future__ import annotations

from oci_gpu_hook.container.layout import Layout
from oci_gpu_hook.errors import DriverError, RequestError, quoted
from oci_gpu_hook.operations import Mount, Service, Symlink
from oci_gpu_hook.planning import provision
from oci_gpu_hook.planning.plan import Held, Share, some
from oci_gpu_hook.request.selectors import Request, bus_id
from oci_gpu_hook.request.words import ALL, NONE, VISIBLE_DEVICES
from oci_gpu_hook.vendors.vendorhost import VendorDevice, VendorState

# See `provision.FOLDER`.  The others' lie below it by their flags: by CDI each vendor's hook is started by itself.
FOLDER = "/usr/local/oci-gpu-hook"


def share(layout: Layout, request: Request, found: VendorState, process_type: str = "") -> Share:
    """DriverError if the host lacks something, RequestError for an unknown device."""
    inventory, flag = found.inventory, found.inventory.flag
    if request.devices == (NONE,):
        found = found._replace(devices=(), common=(), unmatched=())
    if lacking := found.lacking():
        hint = f"the administrator must fix it; 'oci-gpu-hook info' shows what {flag} has here"
        raise DriverError(f"{inventory.file} requires what this host lacks: {some(lacking)}", hint)
    devices = of_nodes(request.nodes, found) if request.nodes else selected(request.devices, found)
    driver_folder = provision.FOLDER if flag == VISIBLE_DEVICES else f"{FOLDER}/{flag}"
    nodes = {node: f"{flag}, {group}: every request" for node, group in found.common}
    for device, name in devices:
        for node, group in device.nodes:
            nodes.setdefault(node, f"{flag}, {group}: asked for as {name}")
    placed = [
        (library, folder, f"{flag}, {library.capabilities[0]}")
        for library in inventory.libraries
        if (folder := provision.folder_of(layout, library, driver_folder))
    ]
    cached = [(library, library.folder, "") for library in inventory.cached]
    # Each in a folder of its own, as the image's ldconfig must list none that it has itself.
    own = provision.own_folder(layout, driver_folder)
    needed = [(it, f"{own}/needed/{it.file}", f"{flag}: if the image has none") for it in inventory.needed if own]
    mounts = []
    for file in inventory.files:
        reason = f"{'folder' if file.folder else 'file'}: {flag}, {file.capabilities[0]}"
        # Programs lie anywhere, and a folder may hold some.
        mounts.append(Mount(file.path, file.target, provision.READ_ONLY, False, reason, file.folder))
    sockets = [Service(path, path, 0, False, f"socket: {flag}, {group}") for path, group in found.sockets]
    links = [Symlink(path, text, False, f"link: {flag}") for path, text in inventory.links]
    links += provision.links(layout, tuple(nodes.items()), found.links)
    spare = [entry._replace(spare=True) for entry in provision.cache_entries(needed)]
    entries = (*provision.cache_entries([*placed, *cached]), *spare)
    return Share(
        inventory.file,
        own if entries else "",
        tuple(nodes.items()),
        (*provision.library_mounts([*placed, *needed]), *mounts, *sockets, *links),
        entries,
        _notes(request, found, process_type),
        holds=tuple([held(flag, device) for device, _ in devices]),
    )


def held(flag: str, device: VendorDevice) -> Held:
    # Its first node is its own while a container has it; its index is another's once a GPU before it has a driver.
    return Held(f"{flag}={device.nodes[0][0].path}", device.names[0], device.address())


def selected(names: tuple[str, ...], found: VendorState) -> tuple[tuple[VendorDevice, str], ...]:
    devices, chosen = found.devices, dict[VendorDevice, str]()
    if names == (ALL,):
        return tuple([(device, ALL) for device in devices])
    for name in () if names == (NONE,) else names:
        address = bus_id(name)
        called = [it for it in devices if name in it.names or (address and address in map(bus_id, it.names))]
        if not called:
            raise _unknown(name, found)
        chosen.setdefault(called[0], name)
    return tuple([(device, chosen[device]) for device in devices if device in chosen])


def of_nodes(paths: tuple[str, ...], found: VendorState) -> tuple[tuple[VendorDevice, str], ...]:
    devices = [it for it in found.devices if all([node.path in paths for node, _ in it.nodes])]
    return tuple([(device, device.nodes[0][0].path) for device in devices])


def _notes(request: Request, found: VendorState, process_type: str) -> tuple[str, ...]:
    inventory, absent = found.inventory, found.absent
    notes = [*found.faults]
    # Files that may be missing are so on most hosts, as each distribution has folders of its own: `info` lists them.
    if absent:
        notes.append(f"{request.flag}: this host has no {some(absent)}")
    if request.devices == (ALL,) and inventory.patterns and not found.nodes():
        notes.append(f"{request.flag}=all brings no device: this host has none")
    if inventory.selinux_type and process_type not in ("", inventory.selinux_type):
        needs = f"{inventory.file} says that containers need the SELinux type {inventory.selinux_type}"
        denied = "'oci-gpu-hook selinux explain' shows what was denied"
        notes.append(f"{needs}, and this one has {quoted(process_type)}: {denied}")
    return tuple(notes)


def _unknown(name: str, found: VendorState) -> RequestError:
    devices = found.devices
    if devices:
        here = f"this host has {len(devices)}: {some([device.names[-1] for device in devices])}"
    elif any([pattern.each for pattern in found.inventory.patterns]):
        here = "this host has none"
    else:
        here = "its file names none, so that 'all' is what can be asked for"
    hint = "the container's author must ask for one that exists; 'oci-gpu-hook info' lists them"
    return RequestError(f"unknown device '{name}' of {found.inventory.flag}: {here}", hint)
