# SPDX-License-Identifier: Apache-2.0
"""What comes and goes while the driver stays: device nodes and the sockets of NVIDIA's services.

Looked up at every start, never saved: a service starts, an administrator changes a mode, and no stamp would tell.
Reads only, and never opens a device: stat alone does not wake a GPU.
"""

from __future__ import annotations

from oci_gpu_hook.host import proc
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.record import NamedTuple

CONTROL = "/dev/nvidiactl"
UVM = "/dev/nvidia-uvm"
UVM_TOOLS = "/dev/nvidia-uvm-tools"

# The module's own numbers: nv-chardev-numbers.h in its sources, and the kernel's admin-guide/devices.txt.
GPU_MAJOR = 195
CONTROL_MINOR = 255

_FILE_TYPE = 0o170000
_CHARACTER_DEVICE = 0o020000
_PERMISSIONS = 0o7777
_DEFAULT_MODE = 0o666

# Socket or folder, and the capability whose libraries speak through it.
IPC_PATHS = (
    ("/var/run/nvidia-persistenced/socket", "utility"),
    ("/var/run/nvidia-fabricmanager/socket", "utility"),
    ("/tmp/nvidia-mps", "compute"),
)


class DeviceNode(NamedTuple):
    """A character device of the host; permissions as the host's node has them.

    present: whether the host's /dev has the node (a fresh boot lacks some until a first tool makes them).
    """

    path: str
    major: int
    minor: int
    mode: int
    uid: int
    gid: int
    present: bool


class IpcPath(NamedTuple):
    """A socket, or a folder of sockets, of one of NVIDIA's services."""

    path: str
    capability: str


def devices(root: HostRoot, gpus: tuple[proc.Gpu, ...]) -> tuple[DeviceNode, ...]:
    """The control device, a node for each of `gpus`, and the unified memory devices where their driver is loaded."""
    nodes = [device(root, CONTROL, GPU_MAJOR, CONTROL_MINOR)]
    nodes += [device(root, f"/dev/nvidia{gpu.minor}", GPU_MAJOR, gpu.minor) for gpu in gpus]
    uvm = proc.character_majors(root).get("nvidia-uvm")
    if uvm is not None:
        nodes += [device(root, UVM, uvm, 0), device(root, UVM_TOOLS, uvm, 1)]
    return tuple(nodes)


def device(root: HostRoot, path: str, major: int, minor: int) -> DeviceNode:
    """One node: its numbers from the kernel, its owner, group and mode from the host's /dev where it is there."""
    status = root.stat(path)
    if status is None or status.st_mode & _FILE_TYPE != _CHARACTER_DEVICE:
        return DeviceNode(path, major, minor, _DEFAULT_MODE, 0, 0, present=False)
    mode = status.st_mode & _PERMISSIONS
    return DeviceNode(path, major, minor, mode, status.st_uid, status.st_gid, present=True)


def ipc_paths(root: HostRoot) -> tuple[IpcPath, ...]:
    """Those of `IPC_PATHS` that exist now."""
    return tuple(
        [IpcPath(path, capability) for path, capability in IPC_PATHS if root.stat(path) is not None]
    )
