# SPDX-License-Identifier: Apache-2.0
"""A CDI spec of this host: the same plans as the hook's, as far as a spec can say them.  Pure.

What a spec can say, device nodes and mounts, the engine does; all else is done by the hook, which the spec itself
starts.  `edit_can_say` is the one line between the two, so both together are the plan, nothing more and nothing less.
Container Device Interface, SPEC.md, 0.5.0 (device names that begin with a digit).  Must not look at the host.
"""

from __future__ import annotations

from oci_gpu_hook.errors import quoted
from oci_gpu_hook.operations import AllowDevices, Device, DeviceAllow, Mount, mount_paths
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.host.inventory import DriverInventory
    from oci_gpu_hook.operations import Operation
    from oci_gpu_hook.plan import Plan

KIND = "nvidia.com/gpu"
VERSION = "0.5.0"
PROGRAM = "oci-gpu-hook"
STAGE = "createRuntime"

# The hook that is registered for every container leaves one with this value alone.
_ENVIRONMENT = ["NVIDIA_VISIBLE_DEVICES=void"]
# An empty one would be the container's own (CVE-2025-23266).  Without SHELL, bash asks the user database for it.
_HOOK_ENVIRONMENT = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "SHELL=/bin/bash"]
_HOOK_TIMEOUT = 30
_BIND = ("rbind", "rprivate")


class Hook(NamedTuple):
    """How the spec starts us: the program, the capabilities that the spec is for, the administrator's file.

    config: "" for the default one.
    """

    path: str
    capabilities: tuple[str, ...]
    config: str = ""


def edit_can_say(operation: Operation) -> bool:
    """Whether a CDI edit can say this; a cgroup rule follows from a device node, and systemd's too."""
    if isinstance(operation, Mount):
        # What lies in /proc/driver/nvidia lies in a filesystem that only the hook makes.
        return not operation.target.startswith("/proc/")
    return isinstance(operation, (Device, AllowDevices, DeviceAllow))


def names(inventory: DriverInventory) -> tuple[tuple[str, str], ...]:
    """Each device's name in the spec and the selector that it stands for: index, UUID, MIG device, ``all``."""
    found = []
    for gpu in inventory.gpus:
        found.append((str(gpu.nvml_index), str(gpu.nvml_index)))
        if gpu.uuid:
            found.append((gpu.uuid, gpu.uuid))
    for device in inventory.mig_devices:
        if device.number is not None:
            found.append((f"{device.gpu}:{device.number}", f"{device.gpu}:{device.number}"))
        if device.uuid:
            found.append((device.uuid, device.uuid))
    return (*found, ("all", "all"))


def nameless(inventory: DriverInventory) -> str:
    """A sentence on the MIG devices that a spec cannot name, ``all`` apart; "" where it names each."""
    left = [item for item in inventory.mig_devices if item.number is None and not item.uuid]
    if not left:
        return ""
    devices = f"{len(left)} MIG device{'' if len(left) == 1 else 's'}"
    return f"the CDI spec names {devices} by 'all' only: run 'oci-gpu-hook inventory refresh' first"


def document(common: Plan, devices: tuple[tuple[str, Plan], ...], hook: Hook) -> dict[str, object]:
    """The spec: `common` is the plan without a GPU, `devices` the plan of each name."""
    shared = _edits(common)
    arguments = [PROGRAM, STAGE, "--cdi", ",".join(hook.capabilities)]
    if hook.config:
        arguments += ["--config", hook.config]
    started = {
        "hookName": STAGE,
        "path": hook.path,
        "args": [*arguments, "--cdi-driver", common.driver_version],
        "env": _HOOK_ENVIRONMENT,
        "timeout": _HOOK_TIMEOUT,
    }
    return {
        "cdiVersion": VERSION,
        "kind": KIND,
        "devices": [
            {"name": name, "containerEdits": _without(_edits(plan), shared)}
            for name, plan in devices
        ],
        "containerEdits": {"env": _ENVIRONMENT, **shared, "hooks": [started]},
    }


def driver_of(spec: object) -> str:
    """The driver version that a spec of ours was made for; "" for a spec that is none of ours."""
    try:
        (hook,) = spec["containerEdits"]["hooks"]  # type: ignore[index]
        arguments = hook["args"]
        version = arguments[arguments.index("--cdi-driver") + 1]
        return str(version) if arguments[0] == PROGRAM else ""
    except (AttributeError, KeyError, IndexError, TypeError, ValueError):
        return ""


def misfit(version: str, inventory: DriverInventory) -> str:
    """Why a spec for the driver `version` does not fit the host, in a sentence; "" where it does."""
    if version == inventory.driver_version:
        return ""
    return f"the CDI spec is for driver {version or 'unknown'}, the host has {inventory.driver_version}"


def stale(spec: object, inventory: DriverInventory) -> str:
    """Why a spec no longer says what the host has, in a sentence; "" where it does."""
    different = misfit(driver_of(spec), inventory)
    if different:
        return different
    devices: object = spec.get("devices") if isinstance(spec, dict) else None
    named = [
        item.get("name")
        for item in (devices if isinstance(devices, list) else ())
        if isinstance(item, dict)
    ]
    there = [name for name, _ in names(inventory)]
    for name in named:
        if name not in there:
            return f"the CDI spec names {quoted(name)}, which the host has no longer"
    for name in there:
        if name not in named:
            return f"the CDI spec does not name {quoted(name)}, which the host has"
    return ""


def _edits(plan: Plan) -> dict[str, list[dict[str, object]]]:
    return {
        "deviceNodes": [_node(item) for item in plan.operations if isinstance(item, Device)],
        "mounts": [
            edit
            for item in plan.operations
            if isinstance(item, Mount) and edit_can_say(item)
            for edit in _mounts(item)
        ],
    }


def _without(
    edits: dict[str, list[dict[str, object]]], shared: dict[str, list[dict[str, object]]]
) -> dict[str, list[dict[str, object]]]:
    """What a device has beyond what all have; an empty list would be an edit that edits nothing."""
    own = {key: [item for item in items if item not in shared[key]] for key, items in edits.items()}
    return {key: items for key, items in own.items() if items}


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


def _mounts(mount: Mount) -> list[dict[str, object]]:
    """One for each name: a spec has no links, and a hook that makes them would be one more program."""
    return [
        {"hostPath": mount.source, "containerPath": path, "options": [*mount.options, *_BIND]}
        for path in mount_paths(mount)
    ]
