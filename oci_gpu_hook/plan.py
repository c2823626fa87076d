# SPDX-License-Identifier: Apache-2.0
"""request x inventory x container -> an ordered list of operations.  Pure: the same values give the same plan.

Everything is decided here: which devices, which files, where they go, what is required, and why each is there.  Right
of this room nothing is decided any more.  Must not look at the host, at the container or at the clock, and imports
the rooms that do only for the type checker.
"""

from __future__ import annotations

from oci_gpu_hook.errors import ConfigError, DriverError, RequestError
from oci_gpu_hook.oci import DeviceRule
from oci_gpu_hook.operations import (
    AllowDevices,
    CacheEntry,
    Device,
    File,
    Labels,
    LdCache,
    Mount,
    Relabel,
    Tmpfs,
)
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Union

    from oci_gpu_hook.config import Config
    from oci_gpu_hook.host.inventory import DriverInventory
    from oci_gpu_hook.host.nodes import DeviceNode
    from oci_gpu_hook.host.proc import Gpu
    from oci_gpu_hook.request import Request
    from oci_gpu_hook.rootfs import Container

    Operation = Union[Mount, Device, Tmpfs, LdCache, Relabel, AllowDevices]

_READ_ONLY = ("ro", "nosuid", "nodev")
_READ_ONLY_DATA = ("ro", "nosuid", "nodev", "noexec")
_SOCKET = ("nosuid", "nodev", "noexec")

_PROC_DRIVER = "/proc/driver/nvidia"
_MODIFY_DEVICE_FILES = "ModifyDeviceFiles:"
_BINARY_FOLDER = "/usr/bin"
_INSTALL_HINT = "whoever installs the driver must install all parts of one version"


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
    inventory: DriverInventory,
    config: Config,
    labels: Labels,
) -> Plan:
    """The plan; RequestError, DriverError or ConfigError where the request cannot be met."""
    gpus = select(request, inventory)
    _check_driver(request, inventory)
    nodes = _nodes(request, inventory, gpus)
    cgroup, notes = _allow_devices(container, config, nodes)
    if container.dev_is_hosts:
        notes += ("the container's /dev is the host's own: no node is made in it",)
    operations = (
        *_devices(container, nodes),
        *_libraries(container, request, inventory),
        *_binaries(request, inventory),
        *_firmware(inventory),
        *_ipc(request, inventory),
        *_proc_driver(inventory, gpus),
        *_ld_cache(container, request, inventory),
        *labels.operations,
        # Last: the cgroup is the one thing that does not vanish with the mount namespace.
        *cgroup,
    )
    version = inventory.driver_version
    return Plan(container, request, version, operations, (*notes, *labels.notes), labels.context)


def make_labels(container: Container, labels: Labels) -> Plan:
    """The plan for a container that asks for no GPU, where the administrator has labels put right for all."""
    return Plan(container, None, "", labels.operations, labels.notes, labels.context)


def select(request: Request, inventory: DriverInventory) -> tuple[tuple[Gpu, str], ...]:
    """The requested GPUs in NVML's order, each with the selector that asked for it."""
    if request.devices == ("none",):
        return ()
    if not inventory.gpus:
        raise DriverError(
            "the NVIDIA driver is loaded but drives no GPU", "look at the kernel's log on this host"
        )
    if request.devices == ("all",):
        return tuple([(gpu, "all") for gpu in inventory.gpus])
    asked: dict[int, str] = {}
    for selector in request.devices:
        asked.setdefault(_find(selector, inventory.gpus).nvml_index, selector)
    return tuple(
        [(gpu, asked[gpu.nvml_index]) for gpu in inventory.gpus if gpu.nvml_index in asked]
    )


def _find(selector: str, gpus: tuple[Gpu, ...]) -> Gpu:
    for gpu in gpus:
        if selector in (str(gpu.nvml_index), gpu.uuid, gpu.bus_id):
            return gpu
    have = "index 0" if len(gpus) == 1 else f"indices 0 to {len(gpus) - 1}"
    raise RequestError(
        f"unknown device '{selector}': this host has {have}",
        "the container's author must ask for one that exists; 'oci-gpu-hook info' lists them",
    )


def _check_driver(request: Request, inventory: DriverInventory) -> None:
    """A required library that is missing, or there in another version only, stops the container."""
    for misfit in inventory.misfits:
        if misfit.capability in request.capabilities:
            found = f"is there as {misfit.found}" if misfit.found else "is missing"
            raise DriverError(
                f"the kernel module is {inventory.driver_version}, but {misfit.name} {found}",
                _INSTALL_HINT,
            )


def _nodes(
    request: Request, inventory: DriverInventory, gpus: tuple[tuple[Gpu, str], ...]
) -> tuple[tuple[DeviceNode, str], ...]:
    """Exactly the requested devices, each with its reason."""
    host = {node.path: node for node in inventory.devices}
    wanted = [("/dev/nvidiactl", "control device: every request")]
    for gpu, selector in gpus:
        wanted.append(
            (
                f"/dev/nvidia{gpu.minor}",
                f"GPU {gpu.nvml_index}, {gpu.model}: asked for as {selector}",
            )
        )
    if "compute" in request.capabilities:
        wanted += [
            ("/dev/nvidia-uvm", "unified memory: compute"),
            ("/dev/nvidia-uvm-tools", "unified memory: compute"),
        ]
    missing = [path for path, _ in wanted if path not in host]
    if missing:
        raise DriverError(
            f"the kernel has no driver for {missing[0]}: nvidia-uvm is not loaded",
            "whoever installs the driver must load it: modprobe nvidia-uvm",
        )
    return tuple([(host[path], reason) for path, reason in wanted])


def _devices(container: Container, nodes: tuple[tuple[DeviceNode, str], ...]) -> tuple[Device, ...]:
    if container.dev_is_hosts:
        return ()
    return tuple(
        [
            Device(
                path=node.path,
                type="c",
                major=node.major,
                minor=node.minor,
                access="rw",
                mode=node.mode,
                uid=node.uid,
                gid=node.gid,
                source=node.path if container.user_namespace else "",
                required=True,
                reason=reason,
            )
            for node, reason in nodes
        ]
    )


def _allow_devices(
    container: Container, config: Config, nodes: tuple[tuple[DeviceNode, str], ...]
) -> tuple[tuple[AllowDevices, ...], tuple[str, ...]]:
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
    rules = tuple([DeviceRule("c", node.major, node.minor, "rw") for node, _ in nodes])
    reason = "the requested devices, no others"
    return (AllowDevices(cgroup.version, cgroup.path, cgroup.top, rules, True, reason),), ()


def _libraries(
    container: Container, request: Request, inventory: DriverInventory
) -> tuple[Mount, ...]:
    """Each library under its versioned name, its SONAME and what else programs load it by.

    Mounts, not links: a link would stay in the image's layer and dangle, and could not be made in a read-only root.
    """
    mounts = []
    for library in inventory.libraries:
        capability = _first_common(library.capabilities, request.capabilities)
        if capability:
            for name in library.names:
                target = f"{container.library_folder}/{name}"
                reason = f"library: {capability}"
                mounts.append(Mount(library.path, target, _READ_ONLY, True, reason))
    return tuple(mounts)


def _binaries(request: Request, inventory: DriverInventory) -> tuple[Mount, ...]:
    return tuple(
        [
            Mount(
                source=binary.path,
                target=f"{_BINARY_FOLDER}/{binary.path.rpartition('/')[2]}",
                options=_READ_ONLY,
                required=False,
                reason=f"program: {binary.capability}",
            )
            for binary in inventory.binaries
            if binary.capability in request.capabilities
        ]
    )


def _firmware(inventory: DriverInventory) -> tuple[Mount, ...]:
    reason = "GPU system processor's firmware: every request"
    return tuple(
        [Mount(file.path, file.path, _READ_ONLY_DATA, False, reason) for file in inventory.firmware]
    )


def _ipc(request: Request, inventory: DriverInventory) -> tuple[Mount, ...]:
    return tuple(
        [
            Mount(ipc.path, ipc.path, _SOCKET, False, f"service of the host: {ipc.capability}")
            for ipc in inventory.ipc_paths
            if ipc.capability in request.capabilities
        ]
    )


def _proc_driver(
    inventory: DriverInventory, gpus: tuple[tuple[Gpu, str], ...]
) -> tuple[Tmpfs | Mount, ...]:
    """A /proc/driver/nvidia that shows the requested GPUs only.

    With ModifyDeviceFiles at 1 the driver's libraries would make nodes for every GPU of the host themselves.
    """
    files = tuple([File(name, _masked(name, text), 0o444) for name, text in inventory.proc_files])
    cover = Tmpfs(
        path=_PROC_DRIVER,
        options=_READ_ONLY_DATA,
        folders=tuple([f"gpus/{gpu.proc}" for gpu, _ in gpus]) or ("gpus",),
        files=files,
        required=True,
        reason="hides the other GPUs; libraries make no nodes",
    )
    return (
        cover,
        *[
            Mount(
                path, path, _READ_ONLY_DATA, True, f"GPU {gpu.nvml_index}: asked for as {selector}"
            )
            for gpu, selector in gpus
            for path in [f"{_PROC_DRIVER}/gpus/{gpu.proc}"]
        ],
    )


def _masked(name: str, text: str) -> str:
    if name != "params":
        return text
    lines = [
        f"{_MODIFY_DEVICE_FILES} 0" if line.startswith(_MODIFY_DEVICE_FILES) else line
        for line in text.split("\n")
    ]
    return "\n".join(lines)


def _ld_cache(
    container: Container, request: Request, inventory: DriverInventory
) -> tuple[LdCache, ...]:
    """Every name of every library but the versioned file's own, as ldconfig would list them."""
    entries = tuple(
        [
            CacheEntry(name, f"{container.library_folder}/{name}", library.flags)
            for library in inventory.libraries
            if _first_common(library.capabilities, request.capabilities)
            for name in library.names
            if name == library.soname or name != library.file
        ]
    )
    if container.loader == "musl" or not entries:
        return ()
    reason = "the loader and 'ldconfig -p' find the libraries"
    return (LdCache("/etc/ld.so.cache", entries, required=True, reason=reason),)


def _first_common(offered: tuple[str, ...], asked: tuple[str, ...]) -> str:
    return next((name for name in offered if name in asked), "")
