# SPDX-License-Identifier: Apache-2.0
"""What comes and goes while the driver stays: device nodes and the sockets of NVIDIA's services.

Looked up at every start, never saved: a service starts, an administrator changes a mode, and no stamp would tell.
Those that every request needs always, the other families only where they are asked for.  Reads only, and never opens
a device: stat alone does not wake a GPU.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.host import proc
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

CONTROL = "/dev/nvidiactl"
MODESET = "/dev/nvidia-modeset"
UVM = "/dev/nvidia-uvm"
UVM_TOOLS = "/dev/nvidia-uvm-tools"
CAPS_FOLDER = "/dev/nvidia-caps"
IMEX_FOLDER = "/dev/nvidia-caps-imex-channels"

# The module's own numbers: nv-chardev-numbers.h in its sources, and the kernel's admin-guide/devices.txt.
GPU_MAJOR = 195
CONTROL_MINOR = 255
MODESET_MINOR = 254
DRM_MAJOR = 226

_FILE_TYPE = 0o170000
_CHARACTER_DEVICE = 0o020000
_FOLDER = 0o040000
_PERMISSIONS = 0o7777
_DEFAULT_MODE = 0o666

# Families whose nodes other drivers make, wherever they have made them: folder and beginning of the name.
_AS_FOUND = {
    "nvswitch": (("/dev", "nvidia-nvswitch"),),
    "gds": (("/dev", "nvidia-fs"),),
    "gdrcopy": (("/dev", "gdrdrv"),),
    "mofed": (("/dev/infiniband", "uverbs"), ("/dev/infiniband", "rdma_cm")),
}
FAMILIES = ("modeset", "caps", "imex", "dri", *_AS_FOUND)

# Socket or folder, and the capability whose libraries speak through it.
IPC_PATHS = (
    ("/var/run/nvidia-persistenced/socket", "utility"),
    ("/var/run/nvidia-fabricmanager/socket", "utility"),
    ("/tmp/nvidia-mps", "compute"),
)


class DeviceNode(NamedTuple):
    """A character device of the host; permissions as the host's node has them.

    present: whether the host's /dev has the node (a fresh boot lacks some until a first tool makes them).
    family: "" for what every request needs, else one of `FAMILIES`; gpu: the GPU's nvml_index where it is one's own.
    """

    path: str
    major: int
    minor: int
    mode: int
    uid: int
    gid: int
    present: bool
    family: str = ""
    gpu: int | None = None


class DeviceLink(NamedTuple):
    """Another name of a node: where the link lies, its text, and the node's path."""

    path: str
    to: str
    node: str


class IpcPath(NamedTuple):
    """A socket, or a folder of sockets, of one of NVIDIA's services; source: where on the host it lies."""

    path: str
    capability: str
    source: str
    folder: bool


def devices(root: HostRoot, gpus: tuple[proc.Gpu, ...]) -> tuple[DeviceNode, ...]:
    """The control device, a node for each of `gpus`, and the unified memory devices where their driver is loaded."""
    nodes = [device(root, CONTROL, GPU_MAJOR, CONTROL_MINOR)]
    nodes += [
        device(root, f"/dev/nvidia{gpu.minor}", GPU_MAJOR, gpu.minor, "", gpu.nvml_index)
        for gpu in gpus
    ]
    uvm = proc.character_majors(root).get("nvidia-uvm")
    if uvm is not None:
        nodes += [device(root, UVM, uvm, 0), device(root, UVM_TOOLS, uvm, 1)]
    return tuple(nodes)


def of_families(
    root: HostRoot,
    families: Iterable[str],
    gpus: tuple[proc.Gpu, ...],
    caps_minors: Iterable[int],
    channels: Iterable[str],
) -> tuple[DeviceNode, ...]:
    """The nodes of further families.

    caps_minors: of the MIG capabilities; channels: IMEX channels to name beside those that the host's /dev has.
    """
    nodes: list[DeviceNode] = []
    for family in families:
        if family == "modeset":
            nodes.append(device(root, MODESET, GPU_MAJOR, MODESET_MINOR, family))
        elif family == "caps":
            nodes += _numbered(
                root, "nvidia-caps", f"{CAPS_FOLDER}/nvidia-cap", caps_minors, family
            )
        elif family == "imex":
            present = [name[len("channel") :] for name in root.names(IMEX_FOLDER)]
            wanted = {int(text) for text in (*present, *channels) if text.isdecimal()}
            chardev = "nvidia-caps-imex-channels"
            nodes += _numbered(root, chardev, f"{IMEX_FOLDER}/channel", sorted(wanted), family)
        elif family == "dri":
            nodes += [node for gpu in gpus for node in _drm(root, gpu)]
        else:
            nodes += _found(root, family)
    return tuple(nodes)


def links(nodes: Iterable[DeviceNode], gpus: tuple[proc.Gpu, ...]) -> tuple[DeviceLink, ...]:
    """The names by PCI address that udev gives DRM nodes (its 60-drm.rules)."""
    addresses = {gpu.nvml_index: gpu.proc for gpu in gpus}
    found = []
    for node in nodes:
        if node.family == "dri" and node.gpu is not None:
            name = node.path.rpartition("/")[2]
            kind = "render" if name.startswith("render") else "card"
            path = f"/dev/dri/by-path/pci-{addresses[node.gpu]}-{kind}"
            found.append(DeviceLink(path, f"../{name}", node.path))
    return tuple(found)


def device(
    root: HostRoot, path: str, major: int, minor: int, family: str = "", gpu: int | None = None
) -> DeviceNode:
    """One node: its numbers from the kernel, its owner, group and mode from the host's /dev where it is there."""
    status = root.stat(path)
    if status is None or status.st_mode & _FILE_TYPE != _CHARACTER_DEVICE:
        return DeviceNode(path, major, minor, _DEFAULT_MODE, 0, 0, False, family, gpu)
    mode = status.st_mode & _PERMISSIONS
    return DeviceNode(path, major, minor, mode, status.st_uid, status.st_gid, True, family, gpu)


def ipc_paths(root: HostRoot, driver_root: str = "/") -> tuple[IpcPath, ...]:
    """Those of `IPC_PATHS` that exist now: in a driver container, whose own services come first, or on the host."""
    found = {
        path: (path, _is_folder(status))
        for path, _ in IPC_PATHS
        if (status := root.stat(path)) is not None
    }
    prefix = driver_root.rstrip("/")
    if prefix and root.stat(prefix) is not None:
        # A root of its own: an absolute link in it, as /var/run is one, leads within it.
        driver = HostRoot(root.path.rstrip("/") + root.real(prefix))
        for path, _ in IPC_PATHS:
            if (status := driver.stat(path)) is not None:
                found[path] = prefix + driver.real(path), _is_folder(status)
        driver.close()
    return tuple(
        [IpcPath(path, capability, *found[path]) for path, capability in IPC_PATHS if path in found]
    )


def _is_folder(status: posix.stat_result) -> bool:
    return status.st_mode & _FILE_TYPE == _FOLDER


def _numbered(
    root: HostRoot, chardev: str, stem: str, minors: Iterable[int], family: str
) -> list[DeviceNode]:
    """Nodes of a driver with a major of its own; none where it is not loaded."""
    major = proc.character_majors(root).get(chardev)
    if major is None:
        return []
    return [device(root, f"{stem}{minor}", major, minor, family) for minor in minors]


def _drm(root: HostRoot, gpu: proc.Gpu) -> list[DeviceNode]:
    """A GPU's card and render node, as its PCI device names them (Documentation/ABI, sysfs-class-drm)."""
    found = []
    for name in root.names(f"/sys/bus/pci/devices/{gpu.proc}/drm"):
        number = name[len("card") :] if name.startswith("card") else name[len("renderD") :]
        if name.startswith(("card", "renderD")) and number.isdecimal():
            path = f"/dev/dri/{name}"
            found.append(device(root, path, DRM_MAJOR, int(number), "dri", gpu.nvml_index))
    return found


def _found(root: HostRoot, family: str) -> list[DeviceNode]:
    """The nodes of a family as they are in the host's /dev."""
    found = []
    for folder, beginning in _AS_FOUND[family]:
        for name in root.names(folder):
            path = f"{folder}/{name}"
            status = root.stat(path) if name.startswith(beginning) else None
            if status is not None and status.st_mode & _FILE_TYPE == _CHARACTER_DEVICE:
                major, minor = posix.major(status.st_rdev), posix.minor(status.st_rdev)
                found.append(device(root, path, major, minor, family))
    return found
