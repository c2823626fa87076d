# SPDX-License-Identifier: Apache-2.0
"""One vendor's hardware and driver on this host as they are now: what was saved, and what is looked up at each start.

Device nodes are looked up as NVIDIA's are: /dev says which there are, /proc/devices and sysfs what they are.  Reads
only, and never opens a device: stat does not wake one.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.driver import nodes, proc
from oci_gpu_hook.driver.nodes import DeviceLink, DeviceNode
from oci_gpu_hook.formats import glob
from oci_gpu_hook.formats.decimal import beginning
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel.filetypes import is_character_device, is_socket
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.request.selectors import bus_id
from oci_gpu_hook.vendors import vendorinventory, vendorrules
from oci_gpu_hook.vendors.vendorinventory import DevicePattern, Vendor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from oci_gpu_hook.vendors.vendorinventory import Identity, See

    # A node, its group, its class in sysfs, its PCI function's address and its further name, "" for none.
    Match = tuple[DeviceNode, str, str, str, str]

# The kernel's own index of character devices, by their numbers (Documentation/ABI/stable/sysfs-dev).
_BY_NUMBER = "/sys/dev/char"
PCI = "/sys/bus/pci/devices"
_UDEV = "/run/udev/data"
_BY_PATH = "/dev/dri/by-path"
# amdgpu says there which of its nodes are in use (Linux, drivers/gpu/drm/amd/amdkfd/kfd_topology.c).
_TOPOLOGY = "/sys/devices/virtual/kfd/kfd/topology/nodes"
_MISC_DEVICES = "/proc/misc"
# A host with 16 GPUs has a hundred nodes of theirs.
_MAX_NODES, _MAX_DIGITS = 4096, 9


class VendorDevice(NamedTuple):
    """A device that a request can name, first by its index if it has one; each node with its group."""

    names: tuple[str, ...]
    nodes: tuple[tuple[DeviceNode, str], ...]

    def address(self) -> str:
        """Its PCI function's, as `Gpu.bus_id`; "" for what has none."""
        return next(filter(None, map(bus_id, self.names)), "")


class VendorState(NamedTuple):
    """What can change while the saved inventory stays true, beside it.  common: the nodes that every request gets;
    unmet: what the kernel lacks; unmatched, absent: the device patterns without a node, those that are required and the
    others; faults: of sockets, too; links: further names of nodes; unclaimed: nodes with such a name that are of no
    device.
    """

    inventory: Vendor
    devices: tuple[VendorDevice, ...] = ()
    common: tuple[tuple[DeviceNode, str], ...] = ()
    sockets: tuple[tuple[str, str], ...] = ()
    unmet: tuple[str, ...] = ()
    unmatched: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    links: tuple[DeviceLink, ...] = ()
    unclaimed: tuple[str, ...] = ()

    def nodes(self) -> tuple[DeviceNode, ...]:
        return tuple([node for node, _ in (*self.common, *[pair for it in self.devices for pair in it.nodes])])

    def lacking(self) -> list[str]:
        return [*self.unmet, *self.inventory.lacking, *[f"{pattern} is missing" for pattern in self.unmatched]]


def saved_or_new(host: HostRoot, name: str, file: str, describe: Callable[[See], Vendor]) -> Vendor:
    found = vendorinventory.read_saved(host, name, file)
    if found is not None:
        return found
    from oci_gpu_hook.vendors import vendorsurvey

    places: dict[str, Identity] = {}
    vendor = describe(lambda path: places.setdefault(path, vendorinventory.identity(host, path)))
    survey = vendorsurvey.Survey(host, vendor, places)
    if host.remember:
        try:
            survey.save(name)
        except OSError:
            pass  # this start has its inventory either way
    return survey.found


def vendor_state(host: HostRoot, inventory: Vendor) -> VendorState:
    """What is there now; devices in the order of their PCI addresses, or of their names if they have none."""
    majors = proc.character_majors(host)
    single: list[Match] = []
    common: dict[tuple[DeviceNode, str], None] = {}
    unmatched: list[str] = []
    absent: list[str] = []
    others: list[str] = []
    for pattern in inventory.patterns:
        matching, refused, unfit = _matching(host, pattern, majors)
        others += unfit
        if not matching:
            shown = f"{_written(pattern)} (not given: {refused})" if refused else _written(pattern)
            (unmatched if pattern.required else absent).append(shown)
        if pattern.each:
            single += matching
        else:
            common.update(dict.fromkeys([(node, group) for node, group, *_ in matching]))
    claimed = {node.path for node, _ in common} | {it[0].path for it in single}
    sockets, faults = _sockets(host, inventory)
    found = VendorState(inventory, _devices(single), tuple(common), sockets, _unmet(host, inventory), tuple(unmatched))
    found = found._replace(absent=tuple(dict.fromkeys(absent)), faults=(*inventory.faults, *faults))
    unclaimed = tuple([path for path in dict.fromkeys(others) if path not in claimed])
    return found._replace(links=_links(host) if claimed else (), unclaimed=unclaimed)


def _devices(matching: list[Match]) -> tuple[VendorDevice, ...]:
    """Indices count those of the first one's class."""
    # Class, and names and nodes of each device, used as sets that keep their order.
    found: dict[tuple[object, ...], tuple[str, dict[str, None], dict[tuple[DeviceNode, str], None]]] = {}
    for node, group, kind, address, name in matching:
        _, names, nodes_of = found.setdefault(_key(node, address, name), (kind, {}, {}))
        names.update(dict.fromkeys([word for word in (address, name, node.path.rpartition("/")[2]) if word]))
        nodes_of[node, group] = None
    first = matching[0][2] if matching else ""
    ordered = enumerate(sorted(found, key=lambda key: (found[key][0] != first, key)))
    indexed = [([str(index)] if found[key][0] == first else [], found[key]) for index, key in ordered]
    return tuple([VendorDevice((*index, *names), tuple(of_it)) for index, (_, names, of_it) in indexed])


def _links(host: HostRoot) -> tuple[DeviceLink, ...]:
    texts = [(path, host.link(path)) for path in [f"{_BY_PATH}/{name}" for name in host.names(_BY_PATH)]]
    return tuple([DeviceLink(path, text, text.replace("..", "/dev/dri", 1)) for path, text in texts if text])


def _sockets(host: HostRoot, inventory: Vendor) -> tuple[tuple[tuple[str, str], ...], list[str]]:
    faults = {}
    for path, _ in inventory.sockets:
        found, status = host.source(path), host.stat(path)
        if found and status:
            # A link of root's own may lead to what no vendor's file may name.
            why = found[1] or vendorrules.fault_of_host_path(host.real(path))
            faults[path] = why or ("" if is_socket(status) else "it is not a socket")
    told = [f"the host's {path} is left out: {why}" for path, why in faults.items() if why]
    return tuple([(path, group) for path, group in inventory.sockets if faults.get(path) == ""]), told


def _unmet(host: HostRoot, inventory: Vendor) -> tuple[str, ...]:
    unmet = [f"the kernel's module {it} is not loaded" for it in inventory.modules if not is_loaded(host, it)]
    release = posix.uname().release
    # 6.12 is 6.12.0.
    now, least = [(*beginning(it), 0, 0, 0)[:3] for it in (release, inventory.kernel)]
    if now < least:
        unmet.insert(0, f"kernel {inventory.kernel} (this is {release})")
    return tuple(unmet)


def is_loaded(host: HostRoot, module: str) -> bool:
    """One that is built in is seen, too, if it has parameters or a version."""
    return host.stat(f"/sys/module/{module.replace('-', '_')}") is not None


def pci_ids(host: HostRoot, address: str, *names: str) -> list[str]:
    """What sysfs says of a PCI function: ``vendor``, ``device`` or ``class``, in hexadecimal without ``0x``."""
    return [host.text(f"{PCI}/{address}/{name}").strip()[2:] for name in names]


def _written(pattern: DevicePattern) -> str:
    more = [f"of driver {pattern.major}"] if pattern.major else []
    more += [f"of PCI {' or '.join(pattern.pci)}"] if pattern.pci else []
    return " ".join([pattern.path or "a device", *more, *[f"with {key}={value}" for key, value in pattern.udev]])


def _matching(host: HostRoot, pattern: DevicePattern, majors: dict[str, int]) -> tuple[list[Match], str, list[str]]:
    """The nodes that a pattern means, why another is not given, and those of its path that no PCI vendor has."""
    found, refused, others = [], "", []
    partitions: dict[int, str] | None = None
    for path in _paths(host, pattern, majors):
        status = host.stat(path)
        if status is None:
            continue
        major, minor = posix.major(status.st_rdev), posix.minor(status.st_rdev)
        if why := refusal(host, path, status, majors):
            refused = why
            continue
        place = f"{_BY_NUMBER}/{major}:{minor}"
        *above, device, kind, _ = (host.link(place) or "//").split("/")
        # The PCI function that a device in sysfs belongs to is the last one in the path.
        own = address = next(filter(bus_id, [device, *reversed(above)]), "")
        name = host.text(f"{place}/{pattern.name}").strip() if pattern.name else ""
        if not own and pattern.pci and kind == "drm":
            partitions = _partitions(host) if partitions is None else partitions
            address, name = partitions.get(minor, ""), name or device
        is_its = not pattern.major or pattern.major in _drivers(host, f"{major}:{minor}", majors)
        if is_its and _fits(host, pattern, f"{major}:{minor}", address):
            found.append((nodes.device(host, path, major, minor), pattern.group, kind, address, name))
        elif not (own and pattern.pci):
            others.append(path)
    return found, refused, others


def _partitions(host: HostRoot) -> dict[int, str]:
    """The PCI addresses of amdgpu's render nodes that are in use, by their minors: those of further partitions hang on
    no bus, and are there for partitions that are not.
    """
    found = {}
    for name in host.names(_TOPOLOGY):
        rows = [line.split() for line in host.text(f"{_TOPOLOGY}/{name}/properties").splitlines()]
        said = {row[0]: int(row[1]) for row in rows if len(row) == 2 and len(row[1]) < 20 and row[1].isdecimal()}
        minor, place = said.get("drm_render_minor", 0), said.get("location_id", 0)
        # A processor has no render node.  A function's number may be the partition's.
        if minor:
            found[minor] = f"{said.get('domain', 0):04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.0"
    return found


def refusal(host: HostRoot, path: str, status: posix.stat_result, majors: dict[str, int]) -> str:
    """Why a node may not be given: many numbers are dynamic, so its driver counts too."""
    major, minor = posix.major(status.st_rdev), posix.minor(status.st_rdev)
    if not is_character_device(status):
        return "it is not a character device"
    if why := vendorrules.fault_of_device_path(path) or vendorrules.fault_of_device_number(major, minor):
        return why
    return next(filter(None, map(vendorrules.fault_of_driver, _drivers(host, f"{major}:{minor}", majors))), "")


def _drivers(host: HostRoot, number: str, majors: dict[str, int]) -> list[str]:
    major, _, minor = number.partition(":")
    if major != str(vendorrules.MISC):
        return [name for name, its in majors.items() if str(its) == major]
    words = [line.split() for line in host.text(_MISC_DEVICES).splitlines()]
    return [pair[1] for pair in words if len(pair) == 2 and pair[0] == minor]


def _paths(host: HostRoot, pattern: DevicePattern, majors: dict[str, int]) -> list[str]:
    if pattern.path:
        return glob.expanded(pattern.path, host.names, _MAX_NODES)
    major = f"{majors.get(pattern.major, vendorrules.MISC)}:"
    numbers = [number for number in host.names(_BY_NUMBER) if number.startswith(major)]
    numbers = [number for number in numbers if pattern.major in _drivers(host, number, majors)]
    words = [word for number in numbers for word in host.text(f"{_BY_NUMBER}/{number}/uevent").split()]
    return [vendorrules.DEV + word[len("DEVNAME=") :] for word in words if word.startswith("DEVNAME=")]


def _fits(host: HostRoot, pattern: DevicePattern, number: str, address: str) -> bool:
    if pattern.pci:
        vendor, device = pci_ids(host, address, "vendor", "device") if address else ("", "")
        if vendor not in pattern.pci and f"{vendor}:{device}" not in pattern.pci:
            return False
    lines = host.text(f"{_UDEV}/c{number}").splitlines() if pattern.udev else []
    return all([f"E:{key}={value}" in lines for key, value in pattern.udev])


def _key(node: DeviceNode, address: str, name: str) -> tuple[object, ...]:
    """What the nodes of one device share, in an order that people expect: by address, else by number.  One PCI function
    may have several devices, with further names.  Else one folder and number are one device: hl0 and hl_controlD0.
    """
    if address:
        return (0, bus_id(address), len(name), name)
    folder, _, file = node.path.rpartition("/")
    called = name or file
    digits = called[len(called.rstrip("0123456789")) :]
    return (1, (int(digits),), f"{folder}/{name}") if 0 < len(digits) <= _MAX_DIGITS else (2, (), node.path)
