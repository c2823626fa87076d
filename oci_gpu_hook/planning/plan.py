# SPDX-License-Identifier: Apache-2.0
"""The plan: an ordered list of operations for one container: its provision, its device cgroup and labels.  Pure."""

from __future__ import annotations

from oci_gpu_hook.container.devicecgroup import DeviceCgroup
from oci_gpu_hook.container.layout import Layout
from oci_gpu_hook.errors import ConfigError
from oci_gpu_hook.formats.devicerule import DeviceRule
from oci_gpu_hook.operations import LimitMemory, OpenCgroup, TellSystemd
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.driver.inventory import DriverInventory
    from oci_gpu_hook.driver.nodes import DeviceNode
    from oci_gpu_hook.formats.ldcache import Entry
    from oci_gpu_hook.formats.scopeunit import ScopeUnit
    from oci_gpu_hook.operations import Operation
    from oci_gpu_hook.request.selectors import Request
    from oci_gpu_hook.vendors.vendorhost import VendorState

    Rules = tuple[DeviceRule, ...]
    # Operations, and notes.
    Steps = tuple[tuple[Operation, ...], tuple[str, ...]]
    Reasoned = tuple[tuple[DeviceNode, str], ...]


class Held(NamedTuple):
    """key: for leases and health; name: for requests; address: on PCI, as `Gpu.bus_id`, "" if it has none itself."""

    key: str
    name: str
    address: str = ""

    def title(self) -> str:
        flag, is_vendors, _ = self.key.partition("=")
        kind = f"{flag} device" if is_vendors else "MIG device" if "/" in self.key else "GPU"
        return f"{kind} {self.name}"


MAX_SHOWN = 3
LEFT_ALONE = "the device cgroup is left alone: device-cgroup = off"
DEV_IS_HOSTS = "the container's /dev is the host's own: no node is made in it"


def some(items: list[str] | tuple[str, ...], between: str = ", ", most: int = MAX_SHOWN) -> str:
    return between.join(items[:most]) + (f" and {len(items) - most} more" if len(items) > most else "")


class Container(NamedTuple):
    """rootfs: as config.json has it; own_mounts: where things may be made; is_layer: see `Rootfs`."""

    id: str
    bundle: str
    rootfs: str
    device_cgroup: DeviceCgroup
    scope: ScopeUnit | None = None
    own_mounts: tuple[int, ...] = ()
    is_layer: bool = False


class Provision(NamedTuple):
    """driver_version: of NVIDIA's, "" without it; devices: the numbers that the device cgroup must allow; notes: what
    is left out; holds: the devices that the container is a holder of; inventory, vendors: what was found of the
    drivers; chosen: a sentence for each choice that was left to the node.
    """

    driver_version: str = ""
    devices: tuple[tuple[int, int], ...] = ()
    operations: tuple[Operation, ...] = ()
    notes: tuple[str, ...] = ()
    holds: tuple[Held, ...] = ()
    inventory: DriverInventory | None = None
    vendors: tuple[VendorState, ...] = ()
    chosen: tuple[str, ...] = ()


class Share(NamedTuple):
    """giver: whose it is, for people; folder: its own in the container, "" for none; operations: all but nodes, that
    folder and ld.so.cache; texts: files of the folder, each by its name below it, and its content.
    """

    giver: str
    folder: str
    nodes: Reasoned
    operations: tuple[Operation, ...]
    entries: tuple[Entry, ...]
    notes: tuple[str, ...] = ()
    texts: tuple[tuple[str, str], ...] = ()
    holds: tuple[Held, ...] = ()


class Labels(NamedTuple):
    """The label of all that is made, the mounts to relabel, and why others are not relabelled."""

    context: str = ""
    operations: tuple[Operation, ...] = ()
    notes: tuple[str, ...] = ()


class Plan(NamedTuple):
    """request: None if it asks for no GPU, and then `provision` is empty; label: the SELinux label of all that is made,
    "" for none; done: what the engine has done by a CDI spec of ours.
    """

    container: Container
    layout: Layout
    request: Request | None
    operations: tuple[Operation, ...]
    notes: tuple[str, ...]
    label: str = ""
    provision: Provision = Provision()
    done: tuple[Operation, ...] = ()

    def given(self) -> tuple[Operation, ...]:
        return (*self.done, *self.operations)

    def of_restore(self) -> Plan:
        """What is left to do where a checkpoint brings all else back: what concerns the cgroup, which is new."""
        kept = tuple([it for it in self.operations if isinstance(it, (LimitMemory, OpenCgroup, TellSystemd))])
        return self._replace(operations=kept)


def make(
    container: Container, layout: Layout, request: Request, provision: Provision, labels: Labels, cgroup: Steps
) -> Plan:
    # The cgroup comes last: it alone outlives the mount namespace, and opens devices once their memory is limited.
    operations = (*provision.operations, *labels.operations, *cgroup[0])
    notes = (*provision.notes, *cgroup[1], *[DEV_IS_HOSTS] * layout.dev_is_hosts, *labels.notes)
    return Plan(container, layout, request, operations, notes, labels.context, provision)


def open_cgroup(container: Container, setting: str, devices: tuple[tuple[int, int], ...], fallback: Rules) -> Steps:
    """setting: device-cgroup, ConfigError if it forbids this; fallback: the rules of config.json."""
    if setting == "off":
        return (), (LEFT_ALONE,)
    cgroup, scope = container.device_cgroup, container.scope
    if cgroup.reason and setting == "on":
        raise ConfigError(f"device-cgroup is on, but {cgroup.reason}", "the administrator can set device-cgroup = auto")
    if cgroup.reason:
        return (), (f"the device cgroup is left alone: {cgroup.reason}",)
    rules = tuple([DeviceRule("c", major, minor, "rw") for major, minor in devices])
    reason, pinned = "the requested devices, no others", scope.pinned if scope else ""
    open_cgroup = OpenCgroup(cgroup.version, cgroup.path, cgroup.top, rules, fallback, True, reason, pinned)
    if scope is None or scope.allowed is None:
        return (open_cgroup,), ()
    reason = "survives daemon-reload and updates of the container"
    # Without it the container works, until systemd puts its own rules in force again.
    return (open_cgroup, TellSystemd(scope.name, rules, scope.allowed, required=False, reason=reason)), ()
