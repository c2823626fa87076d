# SPDX-License-Identifier: Apache-2.0
"""What a CDI spec can say of each kind of operation: the rest is for the hook that the spec starts.  Pure."""

from __future__ import annotations

from oci_gpu_hook.operations.cgroup import OpenCgroup
from oci_gpu_hook.operations.device import Device
from oci_gpu_hook.operations.mount import Mount
from oci_gpu_hook.operations.systemd import TellSystemd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.operations.operation import Operation

    # A list of a CDI spec's containerEdits (deviceNodes, mounts), and one item of it.
    Edit = tuple[str, dict[str, object]]

_OPTIONS = ("rbind", "rprivate")


def of(operation: Operation) -> list[Edit] | None:
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
