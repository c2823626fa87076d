# SPDX-License-Identifier: Apache-2.0
"""What an engine has done by a CDI spec of ours: whether it is still right, and what is left to the hook.  Pure."""

from __future__ import annotations

from oci_gpu_hook.operations import Device, OpenCgroup, TellSystemd
from oci_gpu_hook.planning import meanings
from oci_gpu_hook.request.words import ALL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.asking import Spec
    from oci_gpu_hook.driver.nodes import DeviceNode
    from oci_gpu_hook.planning.plan import Held, Plan, Provision


def check(spec: Spec, found: Provision, given: tuple[tuple[str, object, object], ...], *, has_names: bool) -> None:
    """DriverError unless the nodes that the engine has made are still what the spec means by them; see `meanings`."""
    now: dict[str, str] = {}
    nodes: list[DeviceNode] = []
    if found.inventory is not None:
        now.update(meanings.of_nvidia(found.inventory))
        nodes += found.inventory.devices
    for vendor in found.vendors:
        now.update(meanings.of_vendor(vendor))
        nodes += vendor.nodes()
    if nodes:
        meanings.check(dict(spec.means), now, given, nodes, has_names=has_names)


def apart(plan: Plan, holds: Held, spec: Spec, paths: tuple[str, ...]) -> Plan:
    """The plan with what the engine has done apart, and with names of the devices in place of their nodes.

    paths: of the nodes in config.json, for which the runtime opens the device cgroup, and tells systemd.  An engine
    does not say by which names it was asked.
    """
    request = plan.request
    names = tuple([name for _, name in holds])
    if request is not None and spec.vendor:
        request = request._replace(vendors=tuple([it._replace(devices=names or (ALL,)) for it in request.vendors]))
    elif request is not None and plan.inventory is not None:
        request = request._replace(devices=names)
    missing = [it for it in plan.operations if isinstance(it, Device) and it.path not in paths]
    # One program allows all of them, or the engine has.
    kinds = (Device,) if missing else (Device, OpenCgroup, TellSystemd)
    done = [it for it in plan.operations if isinstance(it, kinds) and it not in missing]
    left = [it for it in plan.operations if it not in done]
    return plan._replace(request=request, operations=tuple(left), done=tuple(done))
