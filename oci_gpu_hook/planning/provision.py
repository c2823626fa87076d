# SPDX-License-Identifier: Apache-2.0
"""What a container gets from drivers, as operations.  Pure.

What NVIDIA's driver gives is decided here, with `selection` (which devices) and `placement` (which files, and where):
what is done, what is required, and why.  Other vendors' shares come from `vendors`; `join` makes one provision of all.
Containers with the same layout and request get the same; `plan` adds what depends on the one container.
"""

from __future__ import annotations

from oci_gpu_hook.errors import DriverError
from oci_gpu_hook.operations import Device, Mount, Symlink, Tmpfs
from oci_gpu_hook.planning import placement, selection
from oci_gpu_hook.planning.plan import Provision, Share
from oci_gpu_hook.request.words import MIG_MANAGEMENT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.container.layout import Layout
    from oci_gpu_hook.driver.inventory import DriverInventory
    from oci_gpu_hook.operations import Operation
    from oci_gpu_hook.planning.plan import Reasoned
    from oci_gpu_hook.planning.selection import Selection
    from oci_gpu_hook.request.parse import Request


_PROC_DRIVER = "/proc/driver/nvidia"
_MODIFY_DEVICE_FILES = "ModifyDeviceFiles:"
_INSTALL_HINT = "the administrator must install all parts of one version"

_PROFILE_FOLDER = "/etc/nvidia/nvidia-application-profiles-rc.d"
# The mask that it carries has 64 bits (NVIDIA's README, "Application Profiles", and EGLVisibleDGPUDevices).
_PROFILE_MINORS = 64


def of_nvidia(layout: Layout, request: Request, selected: Selection, inventory: DriverInventory) -> Share:
    """The share of NVIDIA's driver; DriverError if it cannot meet the request.

    selected: the requested devices.
    """
    _check_driver(request, inventory)
    nodes = selection.nodes(request, selected, inventory)
    libraries = placement.brought(layout, request, inventory)
    services, untrusted = placement.services(request, inventory)
    operations = (
        *_links(layout, nodes, inventory),
        *placement.libraries(libraries),
        *placement.files(request, inventory),
        *services,
        *_proc_driver(request, selected, inventory),
        *_application_profile(request, selected),
    )
    notes = (*selection.absent_features(request, inventory), *placement.left_out(layout, request), *untrusted)
    holds = selection.holds(selected, inventory)
    made = Share("NVIDIA's driver", nodes, operations, placement.entries(libraries), notes=notes, holds=holds)
    if layout.compat:
        from oci_gpu_hook.planning import compatibility

        gpus = tuple([gpu for gpu, _ in selected.gpus])
        versions = (inventory.driver_version, inventory.cuda_version)
        return compatibility.with_newer(made, layout.compat, versions, gpus, inventory.libraries)
    return made


def join(layout: Layout, version: str, shares: tuple[Share, ...]) -> Provision:
    """One provision of all shares; `version`: of NVIDIA's driver, "" without it.

    ConfigError if two of them want different things at one path: both are in files that an administrator put there.
    """
    if len(shares) > 1:
        from oci_gpu_hook.planning import vendorshare

        shares = vendorshare.apart(shares)
    operations: list[Operation] = []
    for share in shares:
        operations += [*_devices(layout, share.nodes), *share.operations]
    newer = tuple([entry for share in shares for entry in share.newer])
    entries = tuple([entry for share in shares for entry in share.entries])
    operations += placement.ld_cache(layout, newer, entries)
    devices = [(node.major, node.minor) for share in shares for node, _ in share.nodes]
    notes = tuple([note for share in shares for note in share.notes])
    holds = tuple([held for share in shares for held in share.holds])
    return Provision(version, tuple(dict.fromkeys(devices)), tuple(operations), notes, holds)


def _check_driver(request: Request, inventory: DriverInventory) -> None:
    """DriverError if a required library is missing, or installed in another version only."""
    for misfit in inventory.misfits:
        if misfit.capability in request.capabilities:
            found = f"is there as {misfit.found}" if misfit.found else "is missing"
            if misfit.found == inventory.driver_version:
                # A full disk can leave such a file.
                found = "of that version is cut off or no library"
            why = f"the kernel module is {inventory.driver_version}, but {misfit.name} {found}"
            raise DriverError(why, _INSTALL_HINT)


def _devices(layout: Layout, nodes: Reasoned) -> list[Device]:
    if layout.dev_is_hosts:
        return []
    return [
        Device(
            path=node.path,
            type="c",
            major=node.major,
            minor=node.minor,
            access="rw",
            mode=node.mode,
            uid=node.uid,
            gid=node.gid,
            source=node.path if layout.user_namespace else "",
            # Display servers need modeset, CUDA does not; on a host without one the node may not exist.
            required=node.family != "modeset",
            reason=reason,
        )
        for node, reason in nodes
    ]


def _links(layout: Layout, nodes: Reasoned, inventory: DriverInventory) -> list[Symlink]:
    """The links by PCI address to the DRM nodes of `nodes`: programs find a GPU's node by them."""
    if layout.dev_is_hosts:
        return []
    paths = {node.path for node, _ in nodes}
    return [
        Symlink(link.path, link.to, False, f"name by PCI address of {link.node}")
        for link in inventory.links
        if link.node in paths
    ]


def _proc_driver(request: Request, selected: Selection, inventory: DriverInventory) -> list[Tmpfs | Mount]:
    """A /proc/driver/nvidia that shows the requested GPUs and MIG devices only.

    With ModifyDeviceFiles at 1 the driver's libraries would make nodes for every GPU of the host themselves.
    """
    # Paths below it, each with its reason.
    folders = {f"gpus/{gpu.proc}": f"GPU {gpu.nvml_index}: asked for as {selector}" for gpu, selector in selected.gpus}
    files: dict[str, str] = {}
    managed = [name for name, asked in zip(MIG_MANAGEMENT, (request.mig_config, request.mig_monitor)) if asked]
    if managed:
        folders["capabilities"] = f"all MIG capabilities: {managed[0]}=all"
    else:
        files = _mig_files(selected)
    texts = [(name, _masked(name, text), 0o444) for name, text in inventory.proc_files]
    cover = Tmpfs(
        path=_PROC_DRIVER,
        options=placement.READ_ONLY_DATA,
        folders=(*(folders or ["gpus"]), *dict.fromkeys([path.rpartition("/")[0] for path in files])),
        files=(*texts, *[(path, "", 0o444) for path in files]),
        required=True,
        reason="hides the other GPUs; libraries make no nodes",
    )
    mounts = []
    for name, reason in {**folders, **files}.items():
        path = f"{_PROC_DRIVER}/{name}"
        mounts.append(Mount(path, path, placement.READ_ONLY_DATA, True, reason, name in folders))
    return [cover, *mounts]


def _mig_files(selected: Selection) -> dict[str, str]:
    """The capability files of the MIG devices, each with its reason."""
    minors = {gpu.nvml_index: gpu.minor for gpu, _ in selected.gpus}
    files: dict[str, str] = {}
    for device, selector in selected.mig_devices:
        instance = f"capabilities/gpu{minors[device.gpu]}/mig/gi{device.gi}"
        reason = f"MIG device {device.gi}/{device.ci} of GPU {device.gpu}: asked for as {selector}"
        for path in (f"{instance}/access", f"{instance}/ci{device.ci}/access"):
            files.setdefault(path, reason)
    return files


def _masked(name: str, text: str) -> str:
    """The text of a file below /proc/driver/nvidia, with ModifyDeviceFiles set to 0."""
    if name != "params":
        return text
    masked = f"{_MODIFY_DEVICE_FILES} 0"
    return "\n".join([masked if line.startswith(_MODIFY_DEVICE_FILES) else line for line in text.split("\n")])


def _application_profile(request: Request, selected: Selection) -> list[Tmpfs]:
    """A profile that lists the GPUs for EGL: without it, EGL tries the nodes of all GPUs of the host."""
    drawing = "graphics" in request.capabilities or "display" in request.capabilities
    mask = sum({1 << gpu.minor for gpu, _ in selected.gpus if gpu.minor < _PROFILE_MINORS})
    if not drawing or not mask:
        return []
    text = (
        '{"profiles": [{"name": "_container_", "settings": ["EGLVisibleDGPUDevices", '
        f'{mask:#x}]}}], "rules": [{{"pattern": [], "profile": "_container_"}}]}}\n'
    )
    profile = Tmpfs(
        path=_PROFILE_FOLDER,
        options=placement.READ_ONLY_DATA,
        folders=(),
        files=(("10-container.conf", text, 0o444),),
        # The image or a pod may have put something of its own at /etc/nvidia, read-only.
        required=False,
        reason="EGL sees the requested GPUs only: graphics or display",
    )
    return [profile]
