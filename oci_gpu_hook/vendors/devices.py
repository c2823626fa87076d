# SPDX-License-Identifier: Apache-2.0
"""The device nodes of one vendor as they are now, by the patterns of its file.

They are looked up at every start, as NVIDIA's are: /dev says which nodes there are, /proc/devices and sysfs what they
are.  Nodes of one PCI function are one device.  Reads only, and never opens a device: stat does not wake one.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.driver import nodes, proc
from oci_gpu_hook.driver.nodes import DeviceNode
from oci_gpu_hook.formats import glob
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel.filetypes import is_character_device
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.vendors import allowed
from oci_gpu_hook.vendors.vendor import DevicePattern

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.vendors.vendorinventory import VendorInventory

# The kernel's own index of character devices, by their numbers (Documentation/ABI/stable/sysfs-dev).
_BY_NUMBER = "/sys/dev/char"
_PCI = "/sys/bus/pci/devices"
_UDEV = "/run/udev/data"
# Devices of many small drivers, each with a minor of its own (Documentation/admin-guide/devices.txt).
_MISC = 10
_MISC_DEVICES = "/proc/misc"
# A host with 16 GPUs has a hundred nodes of theirs.
_MOST_NODES = 4096
_MOST_DIGITS = 9
_HEX = frozenset("0123456789abcdef")


class Device(NamedTuple):
    """One of the devices that a request can name.

    names: its index, its PCI address, and whatever else it is called; nodes: each with its group.
    """

    names: tuple[str, ...]
    nodes: tuple[tuple[DeviceNode, str], ...]


class Devices(NamedTuple):
    """A vendor's devices.

    common: the nodes that every request gets; lacking, absent: the patterns of which no node is there, of those that
    are required and of the others.
    """

    devices: tuple[Device, ...]
    common: tuple[tuple[DeviceNode, str], ...]
    lacking: tuple[str, ...]
    absent: tuple[str, ...]


def look(root: HostRoot, inventory: VendorInventory) -> Devices:
    """The vendor's devices, in the order of their PCI addresses, or of their names where they have none."""
    majors = proc.character_majors(root)
    found: dict[tuple[object, ...], list[tuple[DeviceNode, str]]] = {}
    names: dict[tuple[object, ...], dict[str, None]] = {}
    common: list[tuple[DeviceNode, str]] = []
    lacking: list[str] = []
    absent: list[str] = []
    for group, pattern in inventory.patterns:
        matching = _matching(root, pattern, majors)
        if not matching:
            (lacking if pattern.required else absent).append(written(pattern))
        for node, address in matching:
            if not pattern.each:
                common.append((node, group))
                continue
            name = _further_name(root, node, pattern)
            key = _key(node, address, name)
            found.setdefault(key, []).append((node, group))
            called = names.setdefault(key, {})
            called.update(dict.fromkeys([word for word in (address, name) if word]))
            called[node.path.rpartition("/")[2]] = None
    devices = [
        Device((str(index), *names[key]), tuple(dict.fromkeys(found[key]))) for index, key in enumerate(sorted(found))
    ]
    return Devices(tuple(devices), tuple(dict.fromkeys(common)), tuple(lacking), tuple(dict.fromkeys(absent)))


def written(pattern: DevicePattern) -> str:
    """A pattern for people."""
    words = [pattern.path or "a device"]
    if pattern.major:
        words.append(f"of driver {pattern.major}")
    if pattern.pci:
        words.append(f"of PCI {' or '.join(pattern.pci)}")
    words += [f"with {key}={value}" for key, value in pattern.properties]
    return " ".join(words)


def _matching(root: HostRoot, pattern: DevicePattern, majors: dict[str, int]) -> list[tuple[DeviceNode, str]]:
    """The nodes that a pattern means, each with its PCI address, "" for none."""
    found = []
    for path in _paths(root, pattern, majors):
        status = root.stat(path)
        if status is None or not is_character_device(status):
            continue
        major, minor = posix.major(status.st_rdev), posix.minor(status.st_rdev)
        if pattern.major and majors.get(pattern.major) != major:
            continue
        if allowed.device_number(major, minor) or _is_forbidden(root, major, minor, majors):
            continue
        address = _pci_address(root.link(f"{_BY_NUMBER}/{major}:{minor}") or "")
        if _is_of_pci(root, pattern, address) and _has_properties(root, pattern, major, minor):
            found.append((nodes.device(root, path, major, minor), address))
    return found


def _is_forbidden(root: HostRoot, major: int, minor: int, majors: dict[str, int]) -> bool:
    """Whether the driver behind a number is one whose devices are never given: numbers of many are dynamic."""
    drivers = [name for name, number in majors.items() if number == major]
    if major == _MISC:
        lines = (root.read(_MISC_DEVICES) or b"").decode("ascii", "replace").splitlines()
        words = [line.split(None, 1) for line in lines]
        drivers = [pair[1] for pair in words if len(pair) == 2 and pair[0] == str(minor)]
    return any([allowed.driver(name) for name in drivers])


def _paths(root: HostRoot, pattern: DevicePattern, majors: dict[str, int]) -> list[str]:
    """Paths below /dev that may be meant: by the pattern's own path, else by all numbers that the kernel knows."""
    if not pattern.path:
        major = f"{majors.get(pattern.major, -1)}:" if pattern.major else ""
        numbers = [name for name in root.names(_BY_NUMBER) if name.startswith(major)]
        names = [_device_name(root, number) for number in numbers]
        return [f"/dev/{name}" for name in names if name and not allowed.device_path(f"/dev/{name}")]
    return glob.expanded(pattern.path, root.names, _MOST_NODES)


def _device_name(root: HostRoot, number: str) -> str:
    """The name below /dev that the kernel gives a device; "" where it says none, or none that is one."""
    lines = (root.read(f"{_BY_NUMBER}/{number}/uevent") or b"").decode("utf-8", "replace").split()
    found = [line[len("DEVNAME=") :] for line in lines if line.startswith("DEVNAME=")]
    return found[0] if found and ".." not in found[0].split("/") else ""


def _pci_address(link: str) -> str:
    """The address of the PCI function that a device in sysfs belongs to: the last one in the path; "" for none."""
    found = [part for part in link.split("/") if _is_address(part)]
    return found[-1] if found else ""


def _is_address(text: str) -> bool:
    """Whether it is ``0000:03:00.0``: domain, bus, slot and function, as the kernel writes them."""
    domain, _, rest = text.partition(":")
    bus, _, rest = rest.partition(":")
    slot, _, function = rest.partition(".")
    sizes = (len(domain) >= 4, len(bus) == 2, len(slot) == 2, len(function) == 1)
    return all(sizes) and _HEX.issuperset(domain + bus + slot + function)


def _is_of_pci(root: HostRoot, pattern: DevicePattern, address: str) -> bool:
    if not pattern.pci:
        return True
    if not address:
        return False
    vendor, device = [
        (root.read(f"{_PCI}/{address}/{name}") or b"").decode("ascii", "replace").strip()[2:]
        for name in ("vendor", "device")
    ]
    return vendor in pattern.pci or f"{vendor}:{device}" in pattern.pci


def _has_properties(root: HostRoot, pattern: DevicePattern, major: int, minor: int) -> bool:
    if not pattern.properties:
        return True
    text = (root.read(f"{_UDEV}/c{major}:{minor}") or b"").decode("utf-8", "replace")
    lines = text.splitlines()
    return all([f"E:{key}={value}" in lines for key, value in pattern.properties])


def _further_name(root: HostRoot, node: DeviceNode, pattern: DevicePattern) -> str:
    """What the device's folder in sysfs calls it, such as ``mlx5_0``."""
    if not pattern.name:
        return ""
    path = f"{_BY_NUMBER}/{node.major}:{node.minor}/{pattern.name}"
    return (root.read(path) or b"").decode("utf-8", "replace").strip()


def _key(node: DeviceNode, address: str, name: str) -> tuple[object, ...]:
    """What the nodes of one device share, in an order that people expect: by address, else by number.

    One PCI function may have several devices, which sysfs tells apart by their further names.  Without an address the
    nodes of one folder with one number are one device: hl0 and hl_controlD0.
    """
    if address:
        return (0, tuple([int(part, 16) for part in address.replace(".", ":").split(":")]), name)
    folder, _, file = node.path.rpartition("/")
    called = name or file
    digits = called[len(called.rstrip("0123456789")) :]
    if not digits or len(digits) > _MOST_DIGITS:
        return (2, (), node.path)
    return (1, (int(digits),), f"{folder}/{name}")
