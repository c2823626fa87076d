# SPDX-License-Identifier: Apache-2.0
"""Which container holds which GPU, and which GPUs nobody holds: values in, values out.  Pure.

A container holds a GPU whose node it has and may open, by whatever name.  A GPU that is divided is held by MIG devices:
those whose two capabilities the container has as well.
"""

from __future__ import annotations

from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.driver.inventory import DriverInventory, MigDevice
    from oci_gpu_hook.host.contained import Contained


class Share(NamedTuple):
    """A GPU, or one of its MIG devices.

    name: what a request calls it, ``0`` or ``0:1``; mig: whether it is a MIG device; uuid: "" where it is not known.
    """

    name: str
    gpu: int
    mig: bool
    uuid: str
    model: str


class Holder(NamedTuple):
    """A container that has nodes of GPUs; denied: those that its device cgroup does not let it open."""

    container: Contained
    held: tuple[Share, ...]
    denied: tuple[Share, ...]
    is_certain: bool


class Division(NamedTuple):
    """Device numbers of a share: all of them are needed."""

    share: Share
    numbers: tuple[tuple[int, int], ...]


def divisions(inventory: DriverInventory) -> tuple[Division, ...]:
    """What can be held: each GPU, or its MIG devices where it has any."""
    nodes = {
        node.gpu: (node.major, node.minor)
        for node in inventory.devices
        if node.gpu is not None and not node.family
    }
    majors = [node.major for node in inventory.devices if node.family == "caps"]
    found = []
    for gpu in inventory.gpus:
        number = nodes.get(gpu.nvml_index)
        if number is None:
            continue
        parts = [item for item in inventory.mig_devices if item.gpu == gpu.nvml_index]
        for part in parts if majors else ():
            caps = ((majors[0], part.gi_minor), (majors[0], part.ci_minor))
            found.append(Division(_mig(part, gpu.model), (number, *caps)))
        if not parts or not majors:
            share = Share(str(gpu.nvml_index), gpu.nvml_index, False, gpu.uuid or "", gpu.model)
            found.append(Division(share, (number,)))
    return tuple(found)


def holders(
    divided: tuple[Division, ...], containers: tuple[Contained, ...]
) -> tuple[tuple[Holder, ...], tuple[Share, ...]]:
    """The containers that have a GPU's nodes, in the order given, and what none of them holds."""
    found = []
    for container in containers:
        verdicts = {(node.major, node.minor): node.allowed for node in container.nodes}
        held: list[Share] = []
        denied: list[Share] = []
        certain = True
        for share, numbers in divided:
            answers = [verdicts.get(number, "missing") for number in numbers]
            if "missing" in answers:
                continue
            certain = certain and None not in answers
            (denied if False in answers else held).append(share)
        if held or denied:
            found.append(Holder(container, tuple(held), tuple(denied), certain))
    taken = {share for holder in found for share in holder.held}
    return tuple(found), tuple([share for share, _ in divided if share not in taken])


def _mig(device: MigDevice, model: str) -> Share:
    name = f"{device.gpu}:{device.number}"
    if device.number is None:
        # Only NVML knows its number: the instances tell it from others.
        name = f"{device.gpu} (instances {device.gi}/{device.ci})"
    return Share(name, device.gpu, True, device.uuid or "", device.profile or model)
