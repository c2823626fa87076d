# SPDX-License-Identifier: Apache-2.0
"""What an engine has done by a CDI spec of ours: whether it is still right, and what is left to the hook.  Pure.

A spec names nodes by their paths, and a path is another device's after a boot, an exchange of GPUs or of MIG devices.
Only those nodes are compared that the engine has made: it does not say by which names it was asked.
"""

from __future__ import annotations

from oci_gpu_hook.asking import Spec
from oci_gpu_hook.driver.inventory import DriverInventory
from oci_gpu_hook.driver.nodes import CAPS_FOLDER, DeviceNode
from oci_gpu_hook.errors import DriverError
from oci_gpu_hook.operations import Device, OpenCgroup, TellSystemd
from oci_gpu_hook.planning.plan import Plan, Provision
from oci_gpu_hook.request.bundle import BESIDE_GPUS, is_gpu
from oci_gpu_hook.request.selectors import bus_id
from oci_gpu_hook.request.words import ALL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.vendors.vendorhost import VendorState

    # Whose device each node is, by its path: parts with "/" between them, "" for what is not known.
    Meanings = dict[str, str]
    # Path and number of each node that the engine has made, None where the runtime looks it up.
    Given = tuple[tuple[str, object, object], ...]

_REFRESH = "root must run 'oci-gpu-hook inventory refresh' on this host"
_WRITE_AGAIN = "the administrator must write it again: 'oci-gpu-hook cdi generate --output FILE'"


def of_nvidia(found: DriverInventory) -> Meanings:
    """The nodes of GPUs, DRM and MIG: the GPU's address and UUID, then the instances and the MIG device's UUID."""
    gpus = {gpu.nvml_index: f"{gpu.bus_id}/{gpu.uuid or ''}" for gpu in found.gpus}
    meant = {node.path: gpus[node.gpu] for node in found.devices if node.gpu in gpus}
    for it in found.mig_devices:
        meant[f"{CAPS_FOLDER}/nvidia-cap{it.gi_minor}"] = f"{gpus[it.gpu]}/{it.gi}"
        meant[f"{CAPS_FOLDER}/nvidia-cap{it.ci_minor}"] = f"{gpus[it.gpu]}/{it.gi}/{it.ci}/{it.uuid or ''}"
    return meant


def of_vendor(found: VendorState) -> Meanings:
    addresses = [(next((name for name in it.names if bus_id(name)), ""), it) for it in found.devices]
    return {node.path: address for address, it in addresses if address for node, _ in it.nodes}


def check_spec(spec: Spec, found: Provision, given: Given, *, has_names: bool) -> None:
    """DriverError unless the nodes are still what the spec means by them, see `check`."""
    now = of_nvidia(found.inventory) if found.inventory else {}
    nodes = found.inventory.devices if found.inventory else ()
    for vendor in found.vendors:
        now.update(of_vendor(vendor))
        nodes = (*nodes, *vendor.nodes())
    if nodes:
        check(dict(spec.means), now, given, nodes, has_names=has_names)


def check(then: Meanings, now: Meanings, given: Given, nodes: tuple[DeviceNode, ...], *, has_names: bool) -> None:
    """DriverError unless each node is what the spec means; has_names: whether MIG devices' names must be known."""
    numbers = {node.path: [node.major, node.minor] for node in nodes}
    for path, *number in given:
        wanted = numbers.get(path, number)
        if number not in (wanted, [None, None]):
            made, right = [":".join(map(str, it)) for it in (number, wanted)]
            hint = f"the administrator must remove the host's {path} and have its driver make it again"
            raise DriverError(f"{path} was made as {made}, and the driver's is {right}", hint)
        is_one_gpus = is_gpu(path) or path.startswith(BESIDE_GPUS)
        if (path in then or (is_one_gpus and path in now)) and not _is_same(then.get(path, ""), now.get(path, "")):
            was, is_now = [f"device {it[path].strip('/')}" if it.get(path) else "not a device" for it in (then, now)]
            raise DriverError(f"{path} is {is_now} now, and was {was} when the CDI spec was written", _WRITE_AGAIN)
        # A MIG device that was made again has the same instances and nodes, and another name.
        name = then.get(path, "").rpartition("/")[2]
        if has_names and name.startswith("MIG-") and not now[path].endswith(name):
            raise DriverError(f"whether {path} is still {name} is not known: NVML was not asked since", _REFRESH)


def leave_to_engine(plan: Plan, spec: Spec, paths: tuple[str, ...]) -> Plan:
    """What the engine has done apart, and names in place of nodes; paths: in config.json: the runtime opens these."""
    request, names = plan.request, tuple([it.name for it in plan.provision.holds])
    if request is not None and spec.vendor:
        vendors = [it._replace(devices=names or (ALL,), nodes=()) for it in request.vendors]
        request = request._replace(vendors=tuple(vendors))
    elif request is not None:
        request = request._replace(devices=names, nodes=())
    missing = [it for it in plan.operations if isinstance(it, Device) and it.path not in paths]
    # One program allows all of them, or the engine has.
    kinds = (Device,) if missing else (Device, OpenCgroup, TellSystemd)
    done = [it for it in plan.operations if isinstance(it, kinds) and it not in missing]
    left = [it for it in plan.operations if it not in done]
    return plan._replace(request=request, operations=tuple(left), done=tuple(done))


def _is_same(then: str, now: str) -> bool:
    """Whether no part that both know differs: a GPU gets its UUID at its first use."""
    one, other = then.split("/"), now.split("/")
    return len(one) == len(other) and all([not a or not b or a == b for a, b in zip(one, other)]) and one[0] == other[0]
