# SPDX-License-Identifier: Apache-2.0
"""What the host has and a plan leaves out, and why: for people who miss something in a container.  Pure.

The hook itself reports only what was requested and could not be given (`Plan.notes`).  Must not decide anything: it
reads the finished plan and the inventory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oci_gpu_hook.operations import Device, Mount, Service
from oci_gpu_hook.planning.provision import COMPAT32, brought_by
from oci_gpu_hook.request.words import FEATURES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oci_gpu_hook.driver.inventory import DriverInventory, Library
    from oci_gpu_hook.planning.plan import Plan
    from oci_gpu_hook.request.parse import Request
    from oci_gpu_hook.vendors.vendorhost import VendorState

_MOST_SHOWN = 3


def sentences(plan: Plan) -> tuple[str, ...]:
    """A sentence for each device and group of files that the host has and the container does not get."""
    found, inventory = [], plan.inventory
    if plan.request is not None and inventory is not None:
        found += [*_gpus(plan, inventory), *_files(plan, plan.request, inventory)]
    for vendor in plan.vendors:
        found += _of_vendor(plan, vendor)
    return tuple(found)


def _of_vendor(plan: Plan, found: VendorState) -> list[str]:
    """A sentence for each device of a vendor's that the container does not get, and for what else it may miss."""
    nodes = {operation.path for operation in plan.given() if isinstance(operation, Device)}
    flag = found.inventory.flag
    missing = []
    if not plan.layout.dev_is_hosts:
        missing = [
            f"{flag}={device.names[0]}, {device.names[-1]}: not asked for"
            for device in found.devices
            if nodes.isdisjoint([node.path for node, _ in device.nodes])
        ]
    absent = found.inventory.absent
    if absent:
        # Patterns: without their folders many are alike.
        more = f" and {len(absent) - _MOST_SHOWN} more" if len(absent) > _MOST_SHOWN else ""
        missing.append(f"{flag}: this host has no {', '.join(absent[:_MOST_SHOWN])}{more}")
    missing += [
        f"{flag}: programs may need {name}={value}, which no hook can set"
        for name, value in found.inventory.environment
    ]
    return missing


def _gpus(plan: Plan, inventory: DriverInventory) -> list[str]:
    nodes = {operation.path for operation in plan.given() if isinstance(operation, Device)}
    if plan.layout.dev_is_hosts:
        return []
    missing = [
        f"GPU {gpu.nvml_index}, {gpu.model}: not asked for"
        for gpu in inventory.gpus
        if f"/dev/nvidia{gpu.minor}" not in nodes
    ]
    missing += [
        f"MIG device {device.gi}/{device.ci} of GPU {device.gpu}: not asked for"
        for device in inventory.mig_devices
        if f"/dev/nvidia-caps/nvidia-cap{device.ci_minor}" not in nodes
    ]
    return missing


def _files(plan: Plan, request: Request, inventory: DriverInventory) -> list[str]:
    """One sentence for all files that are left out for the same reason."""
    sources = {operation.source for operation in plan.given() if isinstance(operation, (Mount, Service))}
    absent: dict[str, list[str]] = {}
    for library in inventory.libraries:
        if library.path not in sources:
            absent.setdefault(_why_library(library, request), []).append(library.path)
    for file in (*inventory.binaries, *inventory.files):
        if file.path not in sources:
            absent.setdefault(_why(file.capabilities), []).append(file.path)
    return [f"{_counted(paths)}: {why}" for why, paths in sorted(absent.items())]


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


def _counted(paths: Iterable[str]) -> str:
    names = [path.rpartition("/")[2] for path in paths]
    shown = ", ".join(names[:_MOST_SHOWN])
    return shown if len(names) <= _MOST_SHOWN else f"{shown} and {len(names) - _MOST_SHOWN} more"
