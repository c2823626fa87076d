# SPDX-License-Identifier: Apache-2.0
"""request x provision x container -> an ordered list of operations.  Pure: the same values give the same plan.

What the driver gives is decided before (`provision`); what depends on this one container joins it here: its device
cgroup and its labels.  Right of this room nothing is decided any more.  Must not look at the host, at the container or
at the clock, and imports the rooms that do only for the type checker.
"""

from __future__ import annotations

from oci_gpu_hook.errors import ConfigError
from oci_gpu_hook.oci import DeviceRule
from oci_gpu_hook.operations import AllowDevices, DeviceAllow
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.config import Config
    from oci_gpu_hook.operations import Labels, Operation
    from oci_gpu_hook.request import Request
    from oci_gpu_hook.rootfs import Container

# Of a host without SELinux: as operations.Labels has them.
_NO_LABELS = ("", (), ())


class Provision(NamedTuple):
    """What of the driver a container is given.

    devices: major and minor of each, which the device cgroup is to be opened for; notes: what is left out, and why.
    """

    driver_version: str
    devices: tuple[tuple[int, int], ...]
    operations: tuple[Operation, ...]
    notes: tuple[str, ...]


class Plan(NamedTuple):
    """What will be done for one container.

    request: None where it asks for no GPU, and driver_version is "" then; notes: what is left out, and why; label: the
    SELinux label of all that is made, "" for none.
    """

    container: Container
    request: Request | None
    driver_version: str
    operations: tuple[Operation, ...]
    notes: tuple[str, ...]
    label: str = ""


def make(
    container: Container,
    request: Request,
    given: Provision,
    config: Config,
    labels: Labels | None,
) -> Plan:
    """The plan for `request`, which is given all of `given`; ConfigError where the settings forbid it.

    labels: None on a host without SELinux.
    """
    context, relabelled, left_alone = labels or _NO_LABELS
    cgroup, notes = _allow_devices(container, config, given.devices)
    if container.dev_is_hosts:
        notes += ("the container's /dev is the host's own: no node is made in it",)
    # Last: the cgroup is the one thing that does not vanish with the mount namespace.
    operations = (*given.operations, *relabelled, *cgroup)
    notes = (*given.notes, *notes, *left_alone)
    return Plan(container, request, given.driver_version, operations, notes, context)


def make_labels(container: Container, labels: Labels | None) -> Plan:
    """The plan for a container that asks for no GPU, where the administrator has labels put right for all."""
    context, relabelled, left_alone = labels or _NO_LABELS
    return Plan(container, None, "", relabelled, left_alone, context)


def _allow_devices(
    container: Container, config: Config, devices: tuple[tuple[int, int], ...]
) -> tuple[tuple[AllowDevices | DeviceAllow, ...], tuple[str, ...]]:
    if config.device_cgroup == "off":
        return (), ("the device cgroup is left alone: device-cgroup = off",)
    cgroup = container.device_cgroup
    if cgroup.reason:
        if config.device_cgroup == "on":
            raise ConfigError(
                f"device-cgroup is on, but {cgroup.reason}",
                "the administrator can set device-cgroup = auto",
            )
        return (), (f"the device cgroup is left alone: {cgroup.reason}",)
    rules = tuple([DeviceRule("c", major, minor, "rw", True) for major, minor in devices])
    reason = "the requested devices, no others"
    opened = AllowDevices(cgroup.version, cgroup.path, cgroup.top, rules, True, reason)
    scope = container.scope
    if scope is None:
        return (opened,), ()
    # Without it the container works, until systemd puts its own rules in force again.
    reason = "survives daemon-reload and updates of the container"
    return (opened, DeviceAllow(scope.name, rules, scope.allowed, False, reason)), ()
