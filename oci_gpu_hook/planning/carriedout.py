# SPDX-License-Identifier: Apache-2.0
"""The plan of a container whose engine has carried out a CDI spec of ours: what is done, and what is left.  Pure."""

from __future__ import annotations

from oci_gpu_hook.errors import DriverError
from oci_gpu_hook.planning import cdiedits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.asking import Spec
    from oci_gpu_hook.planning.plan import Plan
    from oci_gpu_hook.request.bundle import Bundle


def apart(plan: Plan, spec: Spec, bundle: Bundle) -> Plan:
    """The plan with what the spec has done apart, and with the spec's names of the devices in place of their nodes.

    DriverError if the spec was made for another driver.
    """
    request, words = plan.request, ""
    misfit = ""
    if spec.vendor and request is not None:
        from oci_gpu_hook.planning import cdivendor

        (asked,), (found,) = request.vendors, plan.found.vendors
        words = f" --vendor {asked.flag}"
        request = request._replace(vendors=(asked._replace(devices=cdivendor.asked(asked.devices, found)),))
        targets = [destination for _, destination in bundle.bindings()]
        misfit = cdivendor.misfit(spec.driver, found, plan.operations, targets)
    elif request is not None and plan.found.inventory is not None:
        from oci_gpu_hook.planning import cdi

        inventory = plan.found.inventory
        # Nodes say little to who reads the record.
        request = request._replace(devices=cdi.asked(request.devices, inventory))
        misfit = cdi.misfit(spec.driver, inventory.driver_version)
    if misfit:
        raise DriverError(misfit, f"write it anew with 'oci-gpu-hook cdi generate{words}'")
    done = [operation for operation in plan.operations if cdiedits.of(operation) is not None]
    left = [operation for operation in plan.operations if cdiedits.of(operation) is None]
    return plan._replace(request=request, operations=tuple(left), done=tuple(done))
