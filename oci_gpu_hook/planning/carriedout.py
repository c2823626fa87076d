# SPDX-License-Identifier: Apache-2.0
"""What a CDI spec of ours can say of a plan, and what is left to the hook once an engine has carried one out.  Pure."""

from __future__ import annotations

from oci_gpu_hook.errors import DriverError
from oci_gpu_hook.operations import Device, Mount, OpenCgroup, TellSystemd
from oci_gpu_hook.request.words import ALL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.asking import Spec
    from oci_gpu_hook.operations import Operation
    from oci_gpu_hook.planning.plan import Held, Plan
    from oci_gpu_hook.request.bundle import Bundle

    # A list of a CDI spec's containerEdits (deviceNodes, mounts), and one item of it.
    Edit = tuple[str, dict[str, object]]


def apart(plan: Plan, holds: Held, spec: Spec, bundle: Bundle) -> Plan:
    """The plan with what the spec has done apart, and with names of the devices in place of their nodes.

    An engine does not say by which names it was asked.  DriverError if the spec was made for another driver.
    """
    request, fault, words = plan.request, "", ""
    names = tuple([name for _, name in holds])
    if spec.vendor and request is not None:
        (asked,), (found,) = request.vendors, plan.vendors
        words = f" --vendor {asked.flag}"
        request = request._replace(vendors=(asked._replace(devices=names or (ALL,)),))
        # Not every vendor says its driver's version.
        fault = misfit(spec.driver, found.inventory.version) or _unsaid(plan.operations, bundle)
    elif request is not None and plan.inventory is not None:
        request = request._replace(devices=names)
        fault = misfit(spec.driver, plan.inventory.driver_version)
    if fault:
        raise DriverError(fault, f"write it again with 'oci-gpu-hook cdi generate{words}'")
    done = [operation for operation in plan.operations if edits_of(operation) is not None]
    left = [operation for operation in plan.operations if edits_of(operation) is None]
    return plan._replace(request=request, operations=tuple(left), done=tuple(done))


def misfit(version: str, driver_version: str) -> str:
    """Why a spec for the driver `version` does not fit the host's, in a sentence; "" if it does."""
    if version == driver_version:
        return ""
    return f"the CDI spec is for driver {version or 'unknown'}, the host has {driver_version or 'unknown'}"


def _unsaid(operations: tuple[Operation, ...], bundle: Bundle) -> str:
    """The first mount that the spec should have said and has not, in a sentence; "" if there is none."""
    there = {destination for _, destination in bundle.bindings()}
    for operation in operations:
        for key, edit in edits_of(operation) or ():
            if key == "mounts" and edit["containerPath"] not in there:
                return f"the CDI spec does not have {edit['hostPath']}, which the host has"
    return ""


def edits_of(operation: Operation) -> list[Edit] | None:
    """What a spec says of an operation, [] if the engine does it unasked; None if the hook must do it."""
    if isinstance(operation, Device):
        numbers = {"type": operation.type, "major": operation.major, "minor": operation.minor}
        ids = {"fileMode": operation.mode, "uid": operation.uid, "gid": operation.gid}
        return [("deviceNodes", {"path": operation.path, **numbers, **ids, "permissions": operation.access})]
    # /proc/driver/nvidia is a filesystem that the hook makes.
    if isinstance(operation, Mount) and not operation.target.startswith("/proc/"):
        # A mount for each name: a spec has no links, and a hook that makes them would be one more program.
        options = [*operation.options, "rbind", "rprivate"]
        return [
            ("mounts", {"hostPath": operation.source, "containerPath": path, "options": options})
            for path in operation.paths()
        ]
    # The engine opens the cgroup for the device nodes of a spec, and tells systemd of them.
    return [] if isinstance(operation, (OpenCgroup, TellSystemd)) else None
