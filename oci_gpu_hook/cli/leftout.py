# SPDX-License-Identifier: Apache-2.0
"""What the host has and a plan leaves out, and why: for people who miss something in a container.  Pure.

The hook itself reports only what was requested and could not be given (`Plan.notes`).  Must not decide anything: it
reads the finished plan and the inventory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oci_gpu_hook.node.diagnosis import listed
from oci_gpu_hook.operations import Device, Mount, Service
from oci_gpu_hook.planning.provision import COMPAT32, brought_by
from oci_gpu_hook.request.words import FEATURES

if TYPE_CHECKING:
    from oci_gpu_hook.driver.inventory import DriverInventory, Library
    from oci_gpu_hook.planning.plan import Plan
    from oci_gpu_hook.request.parse import Request


def sentences(plan: Plan) -> tuple[str, ...]:
    """A sentence for each device and group of files that the host has and the container does not get."""
    found, inventory = [], plan.inventory
    given = {operation.path for operation in plan.given() if isinstance(operation, Device)}
    if plan.request is not None and inventory is not None:
        found += [] if plan.layout.dev_is_hosts else _gpus(given, inventory)
        found += _files(plan, plan.request, inventory)
    for vendor in plan.vendors:
        flag, absent = vendor.inventory.flag, vendor.inventory.absent
        found += [
            f"{flag}={device.names[0]}, {device.names[-1]}: not asked for"
            for device in (() if plan.layout.dev_is_hosts else vendor.devices)
            if given.isdisjoint([node.path for node, _ in device.nodes])
        ]
        # Patterns: without their folders many are alike.
        found += [f"{flag}: this host has no {listed(absent)}"] if absent else []
        environment = [f"{name}={value}" for name, value in vendor.inventory.environment]
        found += [f"{flag}: programs may need {variable}, which no hook can set" for variable in environment]
    return tuple(found)


def _gpus(given: set[str], inventory: DriverInventory) -> list[str]:
    """A sentence for each GPU and MIG device without its node."""
    return [
        *[
            f"GPU {gpu.nvml_index}, {gpu.model}: not asked for"
            for gpu in inventory.gpus
            if f"/dev/nvidia{gpu.minor}" not in given
        ],
        *[
            f"MIG device {device.gi}/{device.ci} of GPU {device.gpu}: not asked for"
            for device in inventory.mig_devices
            if f"/dev/nvidia-caps/nvidia-cap{device.ci_minor}" not in given
        ],
    ]


def _files(plan: Plan, request: Request, inventory: DriverInventory) -> list[str]:
    """One sentence for all files that are left out for the same reason."""
    sources = {operation.source for operation in plan.given() if isinstance(operation, (Mount, Service))}
    files = (*inventory.binaries, *inventory.files)
    whys = [(item.path, _why_library(item, request)) for item in inventory.libraries]
    names: dict[str, list[str]] = {}
    for path, why in (*whys, *[(file.path, _why(file.capabilities)) for file in files]):
        if path not in sources:
            names.setdefault(why, []).append(path.rpartition("/")[2])
    return [f"{listed(found)}: {why}" for why, found in sorted(names.items())]


def _why_library(library: Library, request: Request) -> str:
    if brought_by(library, request):
        return "this container's loader runs no 32-bit programs"
    if library.bits == 64 or COMPAT32 in request.capabilities:
        return _why(library.capabilities)
    return f"{COMPAT32} and {_why(library.capabilities)}"


def _why(capabilities: tuple[str, ...]) -> str:
    """Why a file with these capabilities is left out; a feature has its own variable."""
    variables = [feature.variable for feature in FEATURES if feature.name in capabilities]
    if variables:
        return f"{' or '.join(variables)} is not 'enabled' or not accepted"
    return f"{' or '.join(capabilities)}, not in NVIDIA_DRIVER_CAPABILITIES or not allowed"
