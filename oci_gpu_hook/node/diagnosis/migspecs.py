# SPDX-License-Identifier: Apache-2.0
"""Whether the MIG devices that a CDI spec names are still those that the host has.  Pure.

An engine makes the nodes that stand in the spec: a name that is stale gives another device than it says, or one that
is no longer there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oci_gpu_hook.errors import quoted

if TYPE_CHECKING:
    from oci_gpu_hook.driver.inventory import MigDevice
    from oci_gpu_hook.node.engines.cdispecs import Device

_CAPS = "/dev/nvidia-caps/nvidia-cap"
# The kernel module's first minors are of what is no instance's: the fabric's management, MIG's, and its monitoring.
_FIRST_OF_INSTANCES = 3
# As nvidia-ctk writes a MIG device's number with --device-name-strategy=type-index.
_TYPE = "mig"


def stale_name(named: tuple[Device, ...], mig_devices: tuple[MigDevice, ...]) -> str:
    """What is wrong with the first name that is stale, in a clause; "" if none is.

    Where NVML was not asked the names say nothing, and only the nodes are judged.
    """
    minors = {minor for item in mig_devices for minor in (item.gi_minor, item.ci_minor)}
    by_name = _by_name(mig_devices)
    for device in named:
        name = device.name[len(_TYPE) :] if device.name.startswith(_TYPE) else device.name
        nodes = frozenset([it for it in device.capabilities if it >= _FIRST_OF_INSTANCES])
        gone = sorted(nodes - minors)
        if gone:
            return f"gives {_CAPS}{gone[0]} for {quoted(device.name)}, and no MIG device has it now"
        if not by_name or not _is_migs(name):
            continue
        if name not in by_name:
            return f"names {quoted(device.name)}, which no MIG device is called now"
        if nodes and nodes != by_name[name]:
            return f"gives the nodes of another MIG device for {quoted(device.name)}"
    return ""


def _by_name(mig_devices: tuple[MigDevice, ...]) -> dict[str, frozenset[int]]:
    """The capabilities' minors of each MIG device by its names; nothing where NVML has not named them all."""
    if any([item.uuid is None or item.number is None for item in mig_devices]):
        return {}
    pairs = [(item, frozenset((item.gi_minor, item.ci_minor))) for item in mig_devices]
    return {name: minors for item, minors in pairs for name in (str(item.uuid), f"{item.gpu}:{item.number}")}


def _is_migs(name: str) -> bool:
    """Whether a name is one that only NVML knows: ``0:1`` or ``MIG-`` and a UUID.

    Not ``MIG-GPU-<uuid>/<gi>/<ci>`` of drivers before R470: that is a place, and its nodes are judged.
    """
    if "/" in name:
        return False
    gpu, _, number = name.partition(":")
    return name.startswith("MIG-") or (gpu.isdecimal() and number.isdecimal())
