# SPDX-License-Identifier: Apache-2.0
"""request x inventory x container -> what of the driver the container is given, as operations.  Pure.

Everything about the driver is decided here, with `selection` (which devices) and `placement` (which files, and where):
what is done, what is required, and why each is there.  It is the same for every container that asks the same and is
laid out alike, so of a container nothing but that is looked at; `plan` adds the rest.  Must not look at the host.
"""

from __future__ import annotations

from oci_gpu_hook import placement, selection
from oci_gpu_hook.errors import DriverError
from oci_gpu_hook.operations import Device, File, Mount, Symlink, Tmpfs
from oci_gpu_hook.plan import Provision

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.host.inventory import DriverInventory
    from oci_gpu_hook.host.nodes import DeviceNode
    from oci_gpu_hook.request import Request
    from oci_gpu_hook.rootfs import Container
    from oci_gpu_hook.selection import Selection

    Reasoned = tuple[tuple[DeviceNode, str], ...]

_PROC_DRIVER = "/proc/driver/nvidia"
_MODIFY_DEVICE_FILES = "ModifyDeviceFiles:"
_INSTALL_HINT = "whoever installs the driver must install all parts of one version"

_PROFILE_FOLDER = "/etc/nvidia/nvidia-application-profiles-rc.d"
# The mask that it carries has 64 bits (NVIDIA's README, "Application Profiles", and EGLVisibleDGPUDevices).
_PROFILE_MINORS = 64


def make(
    container: Container, request: Request, chosen: Selection, inventory: DriverInventory
) -> Provision:
    """What `request`, whose devices are `chosen`, is given; DriverError where it cannot be met."""
    _check_driver(request, inventory)
    nodes = selection.nodes(request, chosen, inventory)
    libraries = placement.given(container, request, inventory)
    operations = (
        *_devices(container, nodes),
        *_links(container, nodes, inventory),
        *placement.libraries(libraries),
        *placement.files(request, inventory),
        *placement.sockets(request, inventory),
        *_proc_driver(request, chosen, inventory),
        *_application_profile(request, chosen),
        *placement.ld_cache(container, request, inventory, libraries),
    )
    notes = (
        *selection.absent_features(request, inventory),
        *placement.left_out(container, request),
    )
    devices = tuple([(node.major, node.minor) for node, _ in nodes])
    return Provision(inventory.driver_version, devices, operations, notes)


def _check_driver(request: Request, inventory: DriverInventory) -> None:
    """A required library that is missing, or there in another version only, stops the container."""
    for misfit in inventory.misfits:
        if misfit.capability in request.capabilities:
            found = f"is there as {misfit.found}" if misfit.found else "is missing"
            if misfit.found == inventory.driver_version:
                # As a full disk leaves it.
                found = "of that version is cut off or no library"
            raise DriverError(
                f"the kernel module is {inventory.driver_version}, but {misfit.name} {found}",
                _INSTALL_HINT,
            )


def _devices(container: Container, nodes: Reasoned) -> tuple[Device, ...]:
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
                # A display server needs modeset and CUDA does not; a host without one may never have made the node.
                required=node.family != "modeset",
                reason=reason,
            )
            for node, reason in nodes
        ]
    )


def _links(
    container: Container, nodes: Reasoned, inventory: DriverInventory
) -> tuple[Symlink, ...]:
    """The names by PCI address of the DRM nodes that are there: programs find a GPU's node by them."""
    given = {node.path for node, _ in nodes}
    if container.dev_is_hosts:
        return ()
    return tuple(
        [
            Symlink(link.path, link.to, False, f"name by PCI address of {link.node}")
            for link in inventory.links
            if link.node in given
        ]
    )


def _proc_driver(
    request: Request, chosen: Selection, inventory: DriverInventory
) -> tuple[Tmpfs | Mount, ...]:
    """A /proc/driver/nvidia that shows the requested GPUs and MIG devices only.

    With ModifyDeviceFiles at 1 the driver's libraries would make nodes for every GPU of the host themselves.
    """
    shown = [*_proc_gpus(chosen), *_proc_mig(request, chosen)]
    folders = [path for path, _, is_folder in shown if is_folder] or ["gpus"]
    texts = [File(name, _masked(name, text), 0o444) for name, text in inventory.proc_files]
    points = [(path, reason) for path, reason, is_folder in shown if not is_folder]
    folders += dict.fromkeys([path.rpartition("/")[0] for path, _ in points])
    cover = Tmpfs(
        path=_PROC_DRIVER,
        options=placement.READ_ONLY_DATA,
        folders=tuple(folders),
        files=(*texts, *[File(path, "", 0o444) for path, _ in points]),
        required=True,
        reason="hides the other GPUs; libraries make no nodes",
    )
    paths = [(f"{_PROC_DRIVER}/{path}", reason, is_folder) for path, reason, is_folder in shown]
    return (
        cover,
        *[
            Mount(path, path, placement.READ_ONLY_DATA, True, reason, is_folder)
            for path, reason, is_folder in paths
        ],
    )


def _proc_gpus(chosen: Selection) -> list[tuple[str, str, bool]]:
    """Path below /proc/driver/nvidia, reason, and whether it is a folder, of each GPU."""
    return [
        (f"gpus/{gpu.proc}", f"GPU {gpu.nvml_index}: asked for as {selector}", True)
        for gpu, selector in chosen.gpus
    ]


def _proc_mig(request: Request, chosen: Selection) -> list[tuple[str, str, bool]]:
    """The same of the MIG devices' capability files; all of them where MIG itself is managed."""
    for asked, variable in (
        (request.mig_config, "NVIDIA_MIG_CONFIG_DEVICES"),
        (request.mig_monitor, "NVIDIA_MIG_MONITOR_DEVICES"),
    ):
        if asked:
            return [("capabilities", f"all MIG capabilities: {variable}=all", True)]
    minors = {gpu.nvml_index: gpu.minor for gpu, _ in chosen.gpus}
    shown: dict[str, str] = {}
    for device, selector in chosen.mig_devices:
        instance = f"capabilities/gpu{minors[device.gpu]}/mig/gi{device.gi}"
        reason = f"MIG device {device.gi}/{device.ci} of GPU {device.gpu}: asked for as {selector}"
        for path in (f"{instance}/access", f"{instance}/ci{device.ci}/access"):
            shown.setdefault(path, reason)
    return [(path, reason, False) for path, reason in shown.items()]


def _masked(name: str, text: str) -> str:
    if name != "params":
        return text
    lines = [
        f"{_MODIFY_DEVICE_FILES} 0" if line.startswith(_MODIFY_DEVICE_FILES) else line
        for line in text.split("\n")
    ]
    return "\n".join(lines)


def _application_profile(request: Request, chosen: Selection) -> tuple[Tmpfs, ...]:
    """EGL's own list of GPUs: without it EGL tries the nodes of all that the host has."""
    drawing = "graphics" in request.capabilities or "display" in request.capabilities
    minors = [gpu.minor for gpu, _ in chosen.gpus if gpu.minor < _PROFILE_MINORS]
    if not drawing or not minors:
        return ()
    mask = 0
    for minor in minors:
        mask |= 1 << minor
    text = (
        '{"profiles": [{"name": "_container_", "settings": ["EGLVisibleDGPUDevices", '
        f'{mask:#x}]}}], "rules": [{{"pattern": [], "profile": "_container_"}}]}}\n'
    )
    return (
        Tmpfs(
            path=_PROFILE_FOLDER,
            options=placement.READ_ONLY_DATA,
            folders=(),
            files=(File("10-container.conf", text, 0o444),),
            # The image or a pod may have put something of its own at /etc/nvidia, read-only.
            required=False,
            reason="EGL sees the requested GPUs only: graphics or display",
        ),
    )
