# SPDX-License-Identifier: Apache-2.0
"""One vendor's hardware and driver on this host as they are now: what was saved, and what is looked up at each start.

Device nodes are looked up as NVIDIA's are: /dev says which there are, /proc/devices and sysfs what they are.  Nodes of
one PCI function are one device.  Reads only, and never opens a device: stat does not wake one.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.driver import nodes, proc
from oci_gpu_hook.driver.nodes import DeviceNode
from oci_gpu_hook.formats import glob
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel.filetypes import is_character_device, is_socket
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.request.selectors import bus_id
from oci_gpu_hook.vendors import allowed, vendorinventory
from oci_gpu_hook.vendors.vendorinventory import DevicePattern, VendorInventory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from oci_gpu_hook.vendors.vendorinventory import Identity, See, Vendor

# The kernel's own index of character devices, by their numbers (Documentation/ABI/stable/sysfs-dev).
_BY_NUMBER = "/sys/dev/char"
PCI = "/sys/bus/pci/devices"
_UDEV = "/run/udev/data"
_MISC_DEVICES = "/proc/misc"
# A host with 16 GPUs has a hundred nodes of theirs.
_MOST_NODES = 4096
_MOST_DIGITS = 9


class VendorDevice(NamedTuple):
    """A device that a request can name; each node with its group."""

    names: tuple[str, ...]
    nodes: tuple[tuple[DeviceNode, str], ...]


class VendorState(NamedTuple):
    """What can change while the saved inventory stays true, beside it.

    common: the nodes that every request gets; unmet: a sentence for each thing that the kernel lacks; unmatched,
    absent: the device patterns without a node, those that are required and the others; faults: the inventory's, and a
    sentence for each socket that others than root could have made.
    """

    inventory: VendorInventory
    devices: tuple[VendorDevice, ...] = ()
    common: tuple[tuple[DeviceNode, str], ...] = ()
    sockets: tuple[tuple[str, str], ...] = ()
    unmet: tuple[str, ...] = ()
    unmatched: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()

    def nodes(self) -> tuple[DeviceNode, ...]:
        return tuple([node for node, _ in (*self.common, *[pair for it in self.devices for pair in it.nodes])])

    def lacking(self) -> list[str]:
        return [*self.unmet, *self.inventory.lacking, *[f"{pattern} is missing" for pattern in self.unmatched]]


def saved_or_new(root: HostRoot, name: str, file: str, describe: Callable[[See], Vendor]) -> VendorInventory:
    found = vendorinventory.read_saved(root, name, file)
    if found is not None:
        return found
    from oci_gpu_hook.vendors import vendorsurvey

    places: dict[str, Identity] = {}
    vendor = describe(lambda path: places.setdefault(path, vendorinventory.identity(root, path)))
    survey = vendorsurvey.Survey(root, vendor, places)
    if root.remember:
        try:
            survey.save(name)
        except OSError:
            pass  # this start has its inventory either way
    return survey.found


def vendor_state(root: HostRoot, inventory: VendorInventory) -> VendorState:
    """What is there now; devices in the order of their PCI addresses, or of their names if they have none."""
    majors = proc.character_majors(root)
    # Names and nodes of each device, used as sets that keep their order.
    found: dict[tuple[object, ...], tuple[dict[str, None], dict[tuple[DeviceNode, str], None]]] = {}
    common: dict[tuple[DeviceNode, str], None] = {}
    unmatched: list[str] = []
    absent: list[str] = []
    for pattern in inventory.patterns:
        matching, refused = _matching(root, pattern, majors)
        if not matching:
            shown = f"{_written(pattern)} (not given: {refused})" if refused else _written(pattern)
            (unmatched if pattern.required else absent).append(shown)
        for node, address in matching:
            if not pattern.each:
                common[node, pattern.group] = None
                continue
            name = root.text(f"{_BY_NUMBER}/{node.major}:{node.minor}/{pattern.name}").strip() if pattern.name else ""
            names, nodes_of = found.setdefault(_key(node, address, name), ({}, {}))
            names.update(dict.fromkeys([word for word in (address, name, node.path.rpartition("/")[2]) if word]))
            nodes_of[node, pattern.group] = None
    ordered = [found[key] for key in sorted(found)]
    devices = [VendorDevice((str(index), *names), tuple(of_it)) for index, (names, of_it) in enumerate(ordered)]
    sockets, faults = _sockets(root, inventory)
    return VendorState(
        inventory,
        tuple(devices),
        tuple(common),
        sockets,
        _unmet(root, inventory),
        tuple(unmatched),
        tuple(dict.fromkeys(absent)),
        (*inventory.faults, *faults),
    )


def _sockets(root: HostRoot, inventory: VendorInventory) -> tuple[tuple[tuple[str, str], ...], list[str]]:
    sockets, faults = [], []
    for path, group in inventory.sockets:
        found, status = root.source(path), root.stat(path)
        if found is None or status is None:
            continue
        # A link of root's own may lead to what no vendor's file may name.
        fault = found[1] or allowed.host_path(root.real(path)) or ("" if is_socket(status) else "it is not a socket")
        if fault:
            faults.append(f"the host's {path} is left out: {fault}")
        else:
            sockets.append((path, group))
    return tuple(sockets), faults


def _unmet(root: HostRoot, inventory: VendorInventory) -> tuple[str, ...]:
    unmet = [f"the kernel's module {it} is not loaded" for it in inventory.modules if not is_loaded(root, it)]
    release = posix.uname().release
    if inventory.kernel and _numbers(release) < _numbers(inventory.kernel):
        unmet.insert(0, f"kernel {inventory.kernel} (this is {release})")
    return tuple(unmet)


def is_loaded(root: HostRoot, module: str) -> bool:
    """Whether the kernel has a module; one that is built in is seen, too, if it has parameters or a version."""
    return root.stat(f"/sys/module/{module.replace('-', '_')}") is not None


def _numbers(release: str) -> tuple[int, ...]:
    """5, 14 and 0 of ``5.14.0-503.el9.x86_64``; 6.12-rc1 and 6.12 are 6.12.0."""
    found = []
    for part in release.split("-", maxsplit=1)[0].split(".")[:3]:
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits or len(digits) > _MOST_DIGITS:
            break
        found.append(int(digits))
    return (*found, 0, 0, 0)[:3]


def pci_ids(root: HostRoot, address: str, *names: str) -> list[str]:
    """What sysfs says of a PCI function: ``vendor``, ``device`` or ``class``, in hexadecimal without ``0x``."""
    return [root.text(f"{PCI}/{address}/{name}").strip()[2:] for name in names]


def _written(pattern: DevicePattern) -> str:
    words = [pattern.path or "a device"]
    words += [f"of driver {pattern.major}"] if pattern.major else []
    words += [f"of PCI {' or '.join(pattern.pci)}"] if pattern.pci else []
    words += [f"with {key}={value}" for key, value in pattern.udev]
    return " ".join(words)


def _matching(
    root: HostRoot, pattern: DevicePattern, majors: dict[str, int]
) -> tuple[list[tuple[DeviceNode, str]], str]:
    """The nodes that a pattern means, each with its PCI address, "" for none; and why another one is not given."""
    found, refused = [], ""
    for path in _paths(root, pattern, majors):
        status = root.stat(path)
        if status is None:
            continue
        major, minor = posix.major(status.st_rdev), posix.minor(status.st_rdev)
        why = refusal(root, path, status, majors)
        refused = why or refused
        if why or (pattern.major and majors.get(pattern.major) != major):
            continue
        link = root.link(f"{_BY_NUMBER}/{major}:{minor}") or ""
        # The PCI function that a device in sysfs belongs to is the last one in the path.
        address = next(filter(bus_id, reversed(link.split("/"))), "")
        if _fits(root, pattern, f"{major}:{minor}", address):
            found.append((nodes.device(root, path, major, minor), address))
    return found, refused


def refusal(root: HostRoot, path: str, status: posix.stat_result, majors: dict[str, int]) -> str:
    """Why a node may not be given: by its path, its type, its number, and its driver, as many numbers are dynamic."""
    major, minor = posix.major(status.st_rdev), posix.minor(status.st_rdev)
    if not is_character_device(status):
        return "it is not a character device"
    if why := allowed.device_path(path) or allowed.device_number(major, minor):
        return why
    drivers = [name for name, number in majors.items() if number == major]
    if major == allowed.MISC:
        words = [line.split(None, 1) for line in root.text(_MISC_DEVICES).splitlines()]
        drivers = [pair[1] for pair in words if len(pair) == 2 and pair[0] == str(minor)]
    return next(filter(None, map(allowed.driver, drivers)), "")


def _paths(root: HostRoot, pattern: DevicePattern, majors: dict[str, int]) -> list[str]:
    if pattern.path:
        return glob.expanded(pattern.path, root.names, _MOST_NODES)
    major = f"{majors.get(pattern.major, -1)}:" if pattern.major else ""
    numbers = [name for name in root.names(_BY_NUMBER) if name.startswith(major)]
    words = [word for number in numbers for word in root.text(f"{_BY_NUMBER}/{number}/uevent").split()]
    return [allowed.DEV + word[len("DEVNAME=") :] for word in words if word.startswith("DEVNAME=")]


def _fits(root: HostRoot, pattern: DevicePattern, number: str, address: str) -> bool:
    if pattern.pci:
        vendor, device = pci_ids(root, address, "vendor", "device") if address else ("", "")
        if vendor not in pattern.pci and f"{vendor}:{device}" not in pattern.pci:
            return False
    lines = root.text(f"{_UDEV}/c{number}").splitlines() if pattern.udev else []
    return all([f"E:{key}={value}" in lines for key, value in pattern.udev])


def _key(node: DeviceNode, address: str, name: str) -> tuple[object, ...]:
    """What the nodes of one device share, in an order that people expect: by address, else by number.

    One PCI function may have several devices, with further names in sysfs.  Without an address the nodes of one folder
    with one number are one device: hl0 and hl_controlD0.
    """
    if address:
        return (0, bus_id(address), name)
    folder, _, file = node.path.rpartition("/")
    called = name or file
    digits = called[len(called.rstrip("0123456789")) :]
    if not digits or len(digits) > _MOST_DIGITS:
        return (2, (), node.path)
    return (1, (int(digits),), f"{folder}/{name}")
