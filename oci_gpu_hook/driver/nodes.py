# SPDX-License-Identifier: Apache-2.0
"""Device nodes, and the sockets of NVIDIA's services: what can change while the driver stays loaded.

They are looked up at every start.  Reads only, and never opens a device: stat does not wake a GPU.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.driver import proc
from oci_gpu_hook.driver.proc import Gpu
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel.filetypes import is_character_device, is_folder
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.request.words import FEATURES

CONTROL = "/dev/nvidiactl"
MODESET = "/dev/nvidia-modeset"
UVM, UVM_TOOLS = "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"
CAPS_FOLDER, IMEX_FOLDER = "/dev/nvidia-caps", "/dev/nvidia-caps-imex-channels"

# The module's own numbers: nv-chardev-numbers.h in its sources, and the kernel's admin-guide/devices.txt.
GPU_MAJOR, CONTROL_MINOR, MODESET_MINOR = 195, 255, 254
DRM_MAJOR = 226

_PERMISSIONS, _DEFAULT_MODE = 0o7777, 0o666

# The last ones are of other drivers.
FAMILIES = ("modeset", "caps", "imex", "dri", *[feature.name for feature in FEATURES])

# Socket, or folder of sockets, and the capability whose libraries use it.
IPC_PATHS = (
    ("/var/run/nvidia-persistenced/socket", "utility"),
    ("/var/run/nvidia-fabricmanager/socket", "utility"),
    ("/tmp/nvidia-mps", "compute"),
)

# MPS's pipes, and the user beside root whose they may be.
MPS = ("/tmp/nvidia-mps", 0)


class DeviceNode(NamedTuple):
    """present: after a boot some nodes are missing until a first program makes them; family: one of `FAMILIES`, "" for
    a node that every request needs; gpu: the nvml_index of its one GPU.
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
    path: str
    to: str
    node: str


class IpcPath(NamedTuple):
    """A socket, or a folder of sockets, of one of NVIDIA's services.  source: its path on the host; owner: the user
    whose it may be beside root; fault: why it cannot be trusted, else "".
    """

    path: str
    capability: str
    source: str
    folder: bool
    owner: int = 0
    fault: str = ""


def devices(host: HostRoot, gpus: tuple[Gpu, ...]) -> tuple[DeviceNode, ...]:
    nodes = [device(host, CONTROL, GPU_MAJOR, CONTROL_MINOR)]
    nodes += [device(host, f"/dev/nvidia{gpu.minor}", GPU_MAJOR, gpu.minor, "", gpu.nvml_index) for gpu in gpus]
    uvm = proc.character_major(host, "nvidia-uvm")
    if uvm is not None:
        nodes += [device(host, UVM, uvm, 0), device(host, UVM_TOOLS, uvm, 1)]
    return tuple(nodes)


def is_container(host: HostRoot) -> bool:
    # What systemd, and podman and CRI-O, leave in a container for its programs.
    paths = ("/run/systemd/container", "/run/.containerenv")
    return proc.is_masked(host) or any([host.stat(path) for path in paths])


def gpus_here(host: HostRoot, gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """Those that have a node, if this host is a container that got some of the GPUs alone; else all.  /proc shows a
    container all GPUs, unless our hook started it, and NVML there those that it can open.
    """
    # Without any node it was given none, as an agent that only looks.
    if not is_container(host) or not [it for it in host.names("/dev") if it.rstrip("0123456789") == "nvidia" != it]:
        return gpus
    wanted = [(gpu, posix.makedev(GPU_MAJOR, gpu.minor), host.stat(f"/dev/nvidia{gpu.minor}")) for gpu in gpus]
    return tuple([gpu for gpu, number, status in wanted if status is not None and status.st_rdev == number])


def of_families(
    host: HostRoot, families: tuple[str, ...], gpus: tuple[Gpu, ...], caps: tuple[int, ...], channels: tuple[str, ...]
) -> tuple[DeviceNode, ...]:
    """caps: minors of MIG's; channels: IMEX channels that are wanted even without a node on the host."""
    nodes: list[DeviceNode] = []
    for family in families:
        if family == "modeset":
            nodes.append(device(host, MODESET, GPU_MAJOR, MODESET_MINOR, family))
        elif family == "caps":
            nodes += _numbered(host, "nvidia-caps", f"{CAPS_FOLDER}/nvidia-cap", caps, family)
        elif family == "imex":
            present = [name[len("channel") :] for name in host.names(IMEX_FOLDER)]
            wanted = tuple(sorted({int(text) for text in (*present, *channels) if text.isdecimal()}))
            nodes += _numbered(host, "nvidia-caps-imex-channels", f"{IMEX_FOLDER}/channel", wanted, family)
        elif family == "dri":
            nodes += [node for gpu in gpus for node in _drm(host, gpu)]
        else:
            nodes += _nodes_of_other_drivers(host, family)
    return tuple(nodes)


def links(nodes: tuple[DeviceNode, ...], gpus: tuple[Gpu, ...]) -> tuple[DeviceLink, ...]:
    """The names by PCI address that udev gives DRM nodes (its 60-drm.rules)."""
    addresses: dict[int | None, str] = {gpu.nvml_index: gpu.proc for gpu in gpus}
    found = []
    for node in [node for node in nodes if node.family == "dri" and node.gpu in addresses]:
        name = node.path.rpartition("/")[2]
        kind = "render" if name.startswith("render") else "card"
        found.append(DeviceLink(f"/dev/dri/by-path/pci-{addresses[node.gpu]}-{kind}", f"../{name}", node.path))
    return tuple(found)


def device(host: HostRoot, path: str, major: int, minor: int, family: str = "", gpu: int | None = None) -> DeviceNode:
    status = host.stat(path)
    if status is None or not is_character_device(status):
        return DeviceNode(path, major, minor, _DEFAULT_MODE, 0, 0, False, family, gpu)
    mode = status.st_mode & _PERMISSIONS
    return DeviceNode(path, major, minor, mode, status.st_uid, status.st_gid, True, family, gpu)


def ipc_paths(host: HostRoot, driver_root: str = "/", mps: tuple[str, int] = MPS) -> tuple[IpcPath, ...]:
    """Those of `IPC_PATHS` that exist now, in the driver container or else on the host; mps: in place of `MPS`."""
    found = _ipc_paths(host, mps)
    prefix = driver_root.rstrip("/")
    if prefix and (at := host.stat(prefix)) and is_folder(at):
        # Links must be resolved inside the driver's root: /var/run can be an absolute link there.
        with HostRoot(host.path.rstrip("/") + host.real(prefix)) as driver:
            for path, ipc in _ipc_paths(driver, mps).items():
                found[path] = ipc._replace(source=prefix + driver.real(ipc.source))
    return tuple([found[path] for path, _ in IPC_PATHS if path in found])


def _ipc_paths(host: HostRoot, mps: tuple[str, int]) -> dict[str, IpcPath]:
    found = {}
    for path, capability in IPC_PATHS:
        source, owner = mps if path == MPS[0] else (path, 0)
        seen = host.source(source, owner, hold=True)
        if seen is not None:
            found[path] = IpcPath(path, capability, source, seen[0], owner, seen[1])
    return found


def _numbered(host: HostRoot, chardev: str, stem: str, minors: tuple[int, ...], family: str) -> list[DeviceNode]:
    major = proc.character_major(host, chardev)
    return [] if major is None else [device(host, f"{stem}{minor}", major, minor, family) for minor in minors]


def _drm(host: HostRoot, gpu: Gpu) -> list[DeviceNode]:
    """A GPU's card and render node, as its PCI device names them (Documentation/ABI, sysfs-class-drm)."""
    names = [(it, it.rstrip("0123456789")) for it in host.names(f"/sys/bus/pci/devices/{gpu.proc}/drm")]
    minors = [(it, int(it[len(kind) :])) for it, kind in names if kind in ("card", "renderD") and kind != it]
    return [device(host, f"/dev/dri/{it}", DRM_MAJOR, minor, "dri", gpu.nvml_index) for it, minor in minors]


def _nodes_of_other_drivers(host: HostRoot, family: str) -> list[DeviceNode]:
    places = [path.rstrip("*").rpartition("/") for it in FEATURES if it.name == family for path in it.devices]
    paths = [f"{at}/{name}" for at, _, start in places for name in host.names(at) if name.startswith(start)]
    numbers = [(path, status.st_rdev) for path in paths if (status := host.stat(path)) and is_character_device(status)]
    return [device(host, path, posix.major(number), posix.minor(number), family) for path, number in numbers]
