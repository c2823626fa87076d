# SPDX-License-Identifier: Apache-2.0
"""The plan of a container whose engine has carried out a CDI spec of ours: what is done, and what is left.  Pure."""

from __future__ import annotations

from oci_gpu_hook.errors import DriverError
from oci_gpu_hook.planning import cdiedits, selection
from oci_gpu_hook.request.words import ALL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from oci_gpu_hook.asking import Spec
    from oci_gpu_hook.driver.inventory import DriverInventory
    from oci_gpu_hook.operations.operation import Operation
    from oci_gpu_hook.planning.plan import Plan
    from oci_gpu_hook.request.bundle import Bundle
    from oci_gpu_hook.vendors.vendorhost import VendorState


def apart(plan: Plan, spec: Spec, bundle: Bundle) -> Plan:
    """The plan with what the spec has done apart, and with the spec's names of the devices in place of their nodes.

    DriverError if the spec was made for another driver.
    """
    request, fault, words = plan.request, "", ""
    if spec.vendor and request is not None:
        (asked,), (found,) = request.vendors, plan.found.vendors
        words = f" --vendor {asked.flag}"
        request = request._replace(vendors=(asked._replace(devices=_vendors_devices(asked.devices, found)),))
        targets = [destination for _, destination in bundle.bindings()]
        fault = _vendors_misfit(spec.driver, found, plan.operations, targets)
    elif request is not None and plan.found.inventory is not None:
        inventory = plan.found.inventory
        # Nodes say little to who reads the record.
        request = request._replace(devices=_gpus(request.devices, inventory))
        fault = misfit(spec.driver, inventory.driver_version)
    if fault:
        raise DriverError(fault, f"write it anew with 'oci-gpu-hook cdi generate{words}'")
    done = [operation for operation in plan.operations if cdiedits.of(operation) is not None]
    left = [operation for operation in plan.operations if cdiedits.of(operation) is None]
    return plan._replace(request=request, operations=tuple(left), done=tuple(done))


def misfit(version: str, driver_version: str) -> str:
    """Why a spec for the driver `version` does not fit the host's, in a sentence; "" if it does."""
    if version == driver_version:
        return ""
    here = driver_version or "unknown"
    return f"the CDI spec is for driver {version or 'unknown'}, the host has {here}"


def _gpus(nodes: tuple[str, ...], inventory: DriverInventory) -> tuple[str, ...]:
    """The spec's names of the devices whose nodes the engine has made, which does not say by which it was asked."""
    found = selection.of_nodes(nodes, inventory)
    divided = {device.gpu for device, _ in found.mig_devices}
    gpus = [str(gpu.nvml_index) for gpu, _ in found.gpus if gpu.nvml_index not in divided]
    mig_devices = [
        f"{device.gpu}:{device.number}" if device.number is not None else device.uuid or ALL
        for device, _ in found.mig_devices
    ]
    return tuple(dict.fromkeys([*gpus, *mig_devices]))


def _vendors_devices(nodes: tuple[str, ...], found: VendorState) -> tuple[str, ...]:
    """The indices of the devices whose nodes the engine has made, which does not say by which names it was asked."""
    from oci_gpu_hook.planning import vendorshare

    return tuple([device.names[0] for device, _ in vendorshare.of_nodes(nodes, found)]) or (ALL,)


def _vendors_misfit(version: str, found: VendorState, operations: Iterable[Operation], targets: Iterable[str]) -> str:
    """Why a spec that an engine has carried out does not fit the host, in a sentence; "" if it does.

    version: of the driver that it was made for; targets: where the engine has mounted something.  Not every vendor says
    its driver's version, so each mount that the spec should have said is looked for.
    """
    different = misfit(version, found.inventory.version)
    if different:
        return different
    there = frozenset(targets)
    for operation in operations:
        for key, edit in cdiedits.of(operation) or ():
            if key == "mounts" and edit["containerPath"] not in there:
                return f"the CDI spec does not have {edit['hostPath']}, which the host has"
    return ""
