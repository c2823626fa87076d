# SPDX-License-Identifier: Apache-2.0
"""Which container holds which GPU or other device, and which of them are free: values in, values out.  Pure.

A container can move its nodes, or make others elsewhere.  So it holds a GPU that its device cgroup allows, if it has
the node, or if that cgroup does not allow every device.  A GPU that is divided is held by MIG devices: those whose two
capabilities the container has as well.  Another vendor's device is held by any of its nodes.  A container that may open
no node to compute or draw by, such as a device plugin, watches NVIDIA's and leaves them free.
"""

from __future__ import annotations

from oci_gpu_hook.driver.inventory import DriverInventory
from oci_gpu_hook.driver.nodes import GPU_MAJOR
from oci_gpu_hook.node.engines.containerdevices import ContainerDevices, Wanted
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.vendors.vendorhost import VendorState


class HeldShare(NamedTuple):
    """A GPU, one of its MIG devices, or another vendor's device, or all of its devices if a request can name no one.
    name: what asks for it, ``0``, ``0:1``, ``OCI_AMD=0`` or ``OCI_SOLARFLARE``; uuid: "" if it is not known; flag: of
    the other vendor, "" for NVIDIA; names: all that a request can call that one's.
    """

    name: str
    gpu: int = -1
    mig: bool = False
    uuid: str = ""
    model: str = ""
    flag: str = ""
    names: tuple[str, ...] = ()


class Holder(NamedTuple):
    """denied: those whose nodes it has, and may not open; is_certain: whether the device cgroup could be read; hidden:
    those of `held` no node of which was found; watches: whether it may open no node to use NVIDIA's by.
    """

    container: ContainerDevices
    held: tuple[HeldShare, ...]
    denied: tuple[HeldShare, ...]
    is_certain: bool
    hidden: tuple[HeldShare, ...] = ()
    watches: bool = False

    def keeps(self) -> tuple[HeldShare, ...]:
        """What is not free because of it."""
        return tuple([share for share in self.held if share.flag or not self.watches])


class Holders(NamedTuple):
    """free: what no container holds or could open; privileged: the containers that may open every device, and can make
    the nodes; open: what no container holds, and those could open.
    """

    holding: tuple[Holder, ...]
    free: tuple[HeldShare, ...]
    privileged: tuple[ContainerDevices, ...] = ()
    open: tuple[HeldShare, ...] = ()


# Major and minor of each device.
Numbers = frozenset[tuple[int, int]]
# A share, and device numbers of it: all of them are needed.
Division = tuple[HeldShare, tuple[tuple[int, int], ...]]


def divisions(inventory: DriverInventory) -> tuple[Division, ...]:
    """What can be held: each GPU, or its MIG devices where it has any."""
    majors = [node.major for node in inventory.devices if node.family == "caps"]
    found: list[Division] = []
    for gpu in inventory.gpus:
        number = (GPU_MAJOR, gpu.minor)
        parts = [item for item in inventory.mig_devices if item.gpu == gpu.nvml_index] if majors else []
        for it in parts:
            caps = ((majors[0], it.gi_minor), (majors[0], it.ci_minor))
            # Only NVML knows its number: the instances tell it from others.
            shown = f"{it.gpu} (instances {it.gi}/{it.ci})" if it.number is None else f"{it.gpu}:{it.number}"
            share = HeldShare(shown, it.gpu, True, it.uuid or "", it.profile or gpu.model)
            found.append((share, (number, *caps)))
        if not parts:
            share = HeldShare(str(gpu.nvml_index), gpu.nvml_index, False, gpu.uuid or "", gpu.model)
            found.append((share, (number,)))
    return tuple(found)


def to_use(inventory: DriverInventory) -> Numbers:
    """The numbers of nodes to compute or draw by, beside the GPUs' own; none if unified memory has none here."""
    found = [it for it in inventory.devices if it.family in ("dri", "modeset") or it.path == "/dev/nvidia-uvm"]
    is_loaded = "/dev/nvidia-uvm" in [it.path for it in found]
    return frozenset([(it.major, it.minor) for it in found if is_loaded])


def what_to_find(divided: tuple[Division, ...], nodes: tuple[tuple[str, int, int], ...], uses: Numbers) -> Wanted:
    """nodes: paths of the host and numbers of other vendors' nodes; uses: `to_use`."""
    others = {(major, minor) for _, major, minor in nodes}
    numbers = dict.fromkeys([number for _, needed in divided for number in needed])
    majors = dict.fromkeys([number[0] for number in numbers if number not in others])
    return Wanted(tuple(majors), nodes, (*numbers, *uses))


def of_vendor(found: VendorState) -> tuple[Division, ...]:
    flag = found.inventory.flag
    shares = [(HeldShare(f"{flag}={it.names[0]}", flag=flag, names=it.names), it.nodes) for it in found.devices]
    # Beside devices these are what every request gets, such as /dev/kfd, and stand for none.
    shares = shares or [(HeldShare(flag, flag=flag), found.common)]
    return tuple([(share, ((node.major, node.minor),)) for share, nodes in shares for node, _ in nodes])


def holders(divided: tuple[Division, ...], containers: tuple[ContainerDevices, ...], uses: Numbers) -> Holders:
    """The containers that have devices, in the order given, and what none of them has; uses: `to_use`."""
    found = [_holder(divided, container, uses) for container in containers]
    holding = tuple([holder for holder in found if holder.held or holder.denied])
    taken = {share for holder in holding for share in holder.keeps()}
    left = tuple(dict.fromkeys([share for share, _ in divided if share not in taken]))
    privileged = tuple([item for item in containers if item.is_open and item.makes_nodes])
    return Holders(holding, () if privileged else left, privileged, left if privileged else ())


def _holder(divided: tuple[Division, ...], container: ContainerDevices, uses: Numbers) -> Holder:
    there = {(node.major, node.minor): node.allowed for node in container.nodes}
    found = [(share, [there.get(it) for it in numbers]) for share, numbers in divided if there.keys() >= {*numbers}]
    opened = [share for share, answers in found if False not in answers]
    given = [share for share, numbers in divided if not container.is_open and container.allowed.issuperset(numbers)]
    hidden = tuple(dict.fromkeys([share for share in given if share not in opened]))
    held = (*dict.fromkeys(opened), *hidden)
    denied = tuple(dict.fromkeys([share for share, answers in found if False in answers and share not in held]))
    is_certain = not [1 for _, answers in found if None in answers]
    # Its device cgroup was read, and keeps from it all that it could use NVIDIA's GPUs by.
    is_read = bool(container.allowed) and not container.is_open and is_certain
    watches = bool(uses) and is_read and not container.allowed & uses
    return Holder(container, held, denied, is_certain, hidden, watches)
