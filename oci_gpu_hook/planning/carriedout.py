# SPDX-License-Identifier: Apache-2.0
"""What a CDI spec of ours can say of a plan, and what is left to the hook once an engine has carried one out.  Pure."""

from __future__ import annotations

from oci_gpu_hook.errors import DriverError
from oci_gpu_hook.operations import Device, Mount, OpenCgroup, TellSystemd
from oci_gpu_hook.planning import selection
from oci_gpu_hook.request.words import ALL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.asking import Spec
    from oci_gpu_hook.driver.inventory import DriverInventory
    from oci_gpu_hook.operations import Operation
    from oci_gpu_hook.planning.plan import Plan
    from oci_gpu_hook.request.bundle import Bundle
    from oci_gpu_hook.vendors.vendorhost import VendorState

    # A list of a CDI spec's containerEdits (deviceNodes, mounts), and one item of it.
    Edit = tuple[str, dict[str, object]]

_OPTIONS = ("rbind", "rprivate")


def apart(plan: Plan, spec: Spec, bundle: Bundle) -> Plan:
    """The plan with what the spec has done apart, and with the spec's names of the devices in place of their nodes.

    DriverError if the spec was made for another driver.
    """
    request, fault, words = plan.request, "", ""
    # An engine does not say by which names it was asked, and nodes say little to who reads the record.
    if spec.vendor and request is not None:
        from oci_gpu_hook.planning import vendorshare

        (asked,), (found,) = request.vendors, plan.vendors
        words = f" --vendor {asked.flag}"
        indices = [device.names[0] for device, _ in vendorshare.of_nodes(asked.devices, found)]
        request = request._replace(vendors=(asked._replace(devices=tuple(indices or [ALL])),))
        fault = _vendors_misfit(spec.driver, found, plan.operations, bundle)
    elif request is not None and plan.inventory is not None:
        inventory = plan.inventory
        request = request._replace(devices=_gpus(request.devices, inventory))
        fault = misfit(spec.driver, inventory.driver_version)
    if fault:
        raise DriverError(fault, f"write it again with 'oci-gpu-hook cdi generate{words}'")
    done = [operation for operation in plan.operations if edits_of(operation) is not None]
    left = [operation for operation in plan.operations if edits_of(operation) is None]
    return plan._replace(request=request, operations=tuple(left), done=tuple(done))


def misfit(version: str, driver_version: str) -> str:
    """Why a spec for the driver `version` does not fit the host's, in a sentence; "" if it does."""
    if version == driver_version:
        return ""
    here = driver_version or "unknown"
    return f"the CDI spec is for driver {version or 'unknown'}, the host has {here}"


def _gpus(nodes: tuple[str, ...], inventory: DriverInventory) -> tuple[str, ...]:
    """The spec's names of the devices whose nodes the engine has made."""
    found = selection.of_nodes(nodes, inventory)
    divided = {device.gpu for device, _ in found.mig_devices}
    gpus = [str(gpu.nvml_index) for gpu, _ in found.gpus if gpu.nvml_index not in divided]
    mig_devices = [
        f"{device.gpu}:{device.number}" if device.number is not None else device.uuid or ALL
        for device, _ in found.mig_devices
    ]
    return tuple(dict.fromkeys([*gpus, *mig_devices]))


def _vendors_misfit(version: str, found: VendorState, operations: tuple[Operation, ...], bundle: Bundle) -> str:
    """Why a spec that an engine has carried out does not fit the host, in a sentence; "" if it does.

    version: of the driver that it was made for.  Not every vendor says its driver's version, so each mount that the
    spec should have said is looked for.
    """
    different = misfit(version, found.inventory.version)
    if different:
        return different
    there = {destination for _, destination in bundle.bindings()}
    for operation in operations:
        for key, edit in edits_of(operation) or ():
            if key == "mounts" and edit["containerPath"] not in there:
                return f"the CDI spec does not have {edit['hostPath']}, which the host has"
    return ""


def edits_of(operation: Operation) -> list[Edit] | None:
    """What a spec says of an operation, [] if the engine does it unasked; None if the hook must do it."""
    if isinstance(operation, Device):
        return [("deviceNodes", _node(operation))]
    # /proc/driver/nvidia is a filesystem that the hook makes.
    if isinstance(operation, Mount) and not operation.target.startswith("/proc/"):
        # A mount for each name: a spec has no links, and a hook that makes them would be one more program.
        options = [*operation.options, *_OPTIONS]
        return [
            ("mounts", {"hostPath": operation.source, "containerPath": path, "options": options})
            for path in operation.paths()
        ]
    # The engine opens the cgroup for the device nodes of a spec, and tells systemd of them.
    return [] if isinstance(operation, (OpenCgroup, TellSystemd)) else None


def _node(device: Device) -> dict[str, object]:
    return {
        "path": device.path,
        "type": device.type,
        "major": device.major,
        "minor": device.minor,
        "fileMode": device.mode,
        "uid": device.uid,
        "gid": device.gid,
        "permissions": device.access,
    }
