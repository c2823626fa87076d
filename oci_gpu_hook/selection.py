# SPDX-License-Identifier: Apache-2.0
"""Which of the host's devices a request means: GPUs, MIG devices and device nodes.  Pure.

A selector that fits nothing is refused with what the host has instead; a driver that lacks what every request needs is
told to whoever installed it.  Must not know where anything goes in a container: that is `plan`'s business.
"""

from __future__ import annotations

from oci_gpu_hook.errors import DriverError, RequestError, quoted
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.host.inventory import DriverInventory, MigDevice
    from oci_gpu_hook.host.nodes import DeviceNode
    from oci_gpu_hook.host.proc import Gpu
    from oci_gpu_hook.request import Request

ALL = "all"
NONE = "none"

_LIST_HINT = "the container's author must ask for one that exists; 'oci-gpu-hook info' lists them"
_REFRESH_HINT = "run 'oci-gpu-hook inventory refresh' on this host"

# Feature of a request, the variable that asks for it, and what its devices are called.
_FEATURES = (
    ("gds", "NVIDIA_GDS", "/dev/nvidia-fs*"),
    ("mofed", "NVIDIA_MOFED", "/dev/infiniband/uverbs*"),
    ("gdrcopy", "NVIDIA_GDRCOPY", "/dev/gdrdrv"),
    ("nvswitch", "NVIDIA_NVSWITCH", "/dev/nvidia-nvswitch*"),
)


class Selection(NamedTuple):
    """The requested devices in NVML's order, each with the selector that asked for it.

    gpus: whole GPUs and the parents of the MIG devices; mig_devices: never without their parent.
    """

    gpus: tuple[tuple[Gpu, str], ...]
    mig_devices: tuple[tuple[MigDevice, str], ...]


def families(request: Request) -> tuple[str, ...]:
    """The families of device nodes, beyond those of every request, that must be looked up for this one."""
    wanted = list(request.features)
    if "display" in request.capabilities:
        wanted.append("modeset")
    if "display" in request.capabilities or "graphics" in request.capabilities:
        wanted.append("dri")
    if request.imex_channels:
        wanted.append("imex")
    if request.mig_config or request.mig_monitor or any([_may_be_mig(s) for s in request.devices]):
        wanted.append("caps")
    return tuple(wanted)


def select(request: Request, inventory: DriverInventory) -> Selection:
    """What the request's selectors mean on this host."""
    if request.devices == (NONE,):
        return Selection((), ())
    if not inventory.gpus:
        raise DriverError(
            "the NVIDIA driver is loaded but drives no GPU", "look at the kernel's log on this host"
        )
    if request.devices == (ALL,):
        return Selection(
            tuple([(gpu, ALL) for gpu in inventory.gpus]),
            tuple([(device, ALL) for device in inventory.mig_devices]),
        )
    if request.source == "cdi":
        return _of_nodes(request.devices, inventory)
    asked: dict[int, str] = {}
    asked_mig: dict[tuple[int, int, int], str] = {}
    # A GPU that is asked for by itself is whole, whatever MIG devices of it are asked for beside it.
    for selector in sorted(request.devices, key=_is_mig):
        if _is_mig(selector):
            device = _find_mig(selector, inventory)
            asked_mig.setdefault((device.gpu, device.gi, device.ci), selector)
            asked.setdefault(device.gpu, selector)
        else:
            asked.setdefault(_find_gpu(selector, inventory.gpus).nvml_index, selector)
    return Selection(
        tuple([(gpu, asked[gpu.nvml_index]) for gpu in inventory.gpus if gpu.nvml_index in asked]),
        tuple(
            [
                (device, asked_mig[device.gpu, device.gi, device.ci])
                for device in inventory.mig_devices
                if (device.gpu, device.gi, device.ci) in asked_mig
            ]
        ),
    )


def nodes(
    request: Request, selection: Selection, inventory: DriverInventory
) -> tuple[tuple[DeviceNode, str], ...]:
    """Exactly the requested device nodes, each with its reason; DriverError where the kernel has no driver for one."""
    host = {node.path: node for node in inventory.devices}
    wanted = [
        ("/dev/nvidiactl", "control device: every request"),
        *[
            (
                f"/dev/nvidia{gpu.minor}",
                f"GPU {gpu.nvml_index}, {gpu.model}: asked for as {selector}",
            )
            for gpu, selector in selection.gpus
        ],
    ]
    if "compute" in request.capabilities:
        wanted += [
            ("/dev/nvidia-uvm", "unified memory: compute"),
            ("/dev/nvidia-uvm-tools", "unified memory: compute"),
        ]
    if "display" in request.capabilities:
        wanted.append(("/dev/nvidia-modeset", "mode setting: display"))
    wanted += _mig_nodes(request, selection, inventory)
    wanted += _imex_nodes(request, inventory)
    wanted += _dri_nodes(request, selection, inventory)
    wanted += [
        (node.path, f"asked for as {variable}=enabled")
        for feature, variable, _ in _FEATURES
        if feature in request.features
        for node in inventory.devices
        if node.family == feature
    ]
    for path, reason in wanted:
        if path not in host:
            raise _no_driver_for(path, reason)
    return tuple([(host[path], reason) for path, reason in wanted])


def absent_features(request: Request, inventory: DriverInventory) -> tuple[str, ...]:
    """A sentence for each feature that was asked for and whose devices this host has not; all IMEX channels are one."""
    if not request.features and request.imex_channels != (ALL,):
        return ()
    have = {node.family for node in inventory.devices}
    absent = [
        f"{variable}=enabled brings nothing: this host has no {device}"
        for feature, variable, device in _FEATURES
        if feature in request.features and feature not in have
    ]
    if request.imex_channels == (ALL,) and "imex" not in have:
        absent.append("asking for all IMEX channels brings nothing: this host has none")
    return tuple(absent)


def _of_nodes(paths: tuple[str, ...], inventory: DriverInventory) -> Selection:
    """The devices whose nodes an engine has given: of a MIG device, that is both of its capabilities' nodes."""
    gpus = [(gpu, f"/dev/nvidia{gpu.minor}") for gpu in inventory.gpus]
    caps = "/dev/nvidia-caps/nvidia-cap"
    mig_devices = [(item, f"{caps}{item.ci_minor}") for item in inventory.mig_devices]
    return Selection(
        tuple([(gpu, path) for gpu, path in gpus if path in paths]),
        tuple(
            [
                (item, path)
                for item, path in mig_devices
                if path in paths and f"{caps}{item.gi_minor}" in paths
            ]
        ),
    )


def _may_be_mig(selector: str) -> bool:
    return selector == ALL or _is_mig(selector)


def _is_mig(selector: str) -> bool:
    """``MIG-...`` or ``gpu:mig`` (a PCI bus id has more colons), or a MIG capability's node."""
    return selector.startswith(("MIG-", "/dev/nvidia-caps/")) or selector.count(":") == 1


def _find_gpu(selector: str, gpus: tuple[Gpu, ...]) -> Gpu:
    for gpu in gpus:
        if selector in (str(gpu.nvml_index), gpu.uuid, gpu.bus_id):
            return gpu
    have = "index 0" if len(gpus) == 1 else f"indices 0 to {len(gpus) - 1}"
    raise RequestError(f"unknown device '{selector}': this host has {have}", _LIST_HINT)


def _find_mig(selector: str, inventory: DriverInventory) -> MigDevice:
    """The MIG device by its UUID, by ``gpu:mig``, or by the older ``MIG-GPU-<uuid>/<gi>/<ci>``."""
    gpu, _, number = selector.partition(":")
    parent = _find_gpu(gpu, inventory.gpus) if number else None
    uuids = {item.nvml_index: item.uuid for item in inventory.gpus}
    unnumbered = False
    for device in inventory.mig_devices:
        if parent is not None and device.gpu != parent.nvml_index:
            continue
        unnumbered = unnumbered or (device.number if number else device.uuid) is None
        names = (
            device.uuid,
            f"{device.gpu}:{device.number}",
            f"MIG-{uuids[device.gpu]}/{device.gi}/{device.ci}",
        )
        if selector in names:
            return device
    raise _unknown_mig(selector, parent, inventory, unnumbered)


def _unknown_mig(
    selector: str, parent: Gpu | None, inventory: DriverInventory, unnumbered: bool
) -> RequestError | DriverError:
    if unnumbered and "/" not in selector:
        return DriverError(
            f"MIG device '{selector}' cannot be told from the others: only NVML knows their names",
            _REFRESH_HINT,
        )
    where = "this host" if parent is None else f"GPU {parent.nvml_index}"
    mine = [
        device
        for device in inventory.mig_devices
        if parent is None or device.gpu == parent.nvml_index
    ]
    have = f"{len(mine)} MIG device{'' if len(mine) == 1 else 's'}" if mine else "no MIG device"
    return RequestError(f"unknown MIG device '{selector}': {where} has {have}", _LIST_HINT)


def _mig_nodes(
    request: Request, selection: Selection, inventory: DriverInventory
) -> list[tuple[str, str]]:
    """The capability nodes: one for the GPU instance, one for the compute instance, each only once."""
    wanted: dict[str, str] = {}
    for device, selector in selection.mig_devices:
        name = f"GPU {device.gpu}, MIG {device.gi}/{device.ci}"
        for minor, what in (
            (device.gi_minor, "GPU instance"),
            (device.ci_minor, "compute instance"),
        ):
            reason = f"{what} of {name}: asked for as {selector}"
            wanted.setdefault(f"/dev/nvidia-caps/nvidia-cap{minor}", reason)
    for asked, managing, variable in (
        (request.mig_config, inventory.mig_config_minor, "NVIDIA_MIG_CONFIG_DEVICES"),
        (request.mig_monitor, inventory.mig_monitor_minor, "NVIDIA_MIG_MONITOR_DEVICES"),
    ):
        if not asked:
            continue
        if managing is None:
            raise RequestError(
                f"{variable} cannot be met: no GPU of this host supports MIG", _LIST_HINT
            )
        wanted.setdefault(f"/dev/nvidia-caps/nvidia-cap{managing}", f"asked for as {variable}=all")
    return list(wanted.items())


def _imex_nodes(request: Request, inventory: DriverInventory) -> list[tuple[str, str]]:
    present = dict.fromkeys([node.path for node in inventory.devices if node.family == "imex"])
    if request.imex_channels == (ALL,):
        return [(path, "IMEX channel: asked for as all") for path in present]
    wanted = []
    for channel in request.imex_channels:
        path = f"/dev/nvidia-caps-imex-channels/channel{channel}"
        if path not in present:
            raise RequestError(
                f"IMEX channel {quoted(channel)} cannot be given: this host's driver has no IMEX channels",
                _LIST_HINT,
            )
        wanted.append((path, f"IMEX channel: asked for as {channel}"))
    return wanted


def _dri_nodes(
    request: Request, selection: Selection, inventory: DriverInventory
) -> list[tuple[str, str]]:
    """Those of whole GPUs: a MIG device draws nothing, and its parent's nodes would open all of the GPU.

    A GPU that an engine has given does not tell whether it is whole; the nodes that came with it do.
    """
    whole = {gpu.nvml_index for gpu, selector in selection.gpus if not _is_mig(selector)}
    return [
        (node.path, f"DRM node of GPU {node.gpu}: graphics or display")
        for node in inventory.devices
        if node.family == "dri"
        and node.gpu in whole
        and (request.source != "cdi" or node.path in request.devices)
    ]


def _no_driver_for(path: str, reason: str) -> DriverError:
    if path.startswith("/dev/nvidia-caps/"):
        return DriverError(
            f"the kernel has no device for {path} ({reason})",
            "look at 'nvidia-smi mig -lgi' and the kernel's log on this host",
        )
    module = "nvidia-modeset" if "modeset" in path else "nvidia-uvm"
    return DriverError(
        f"the kernel has no driver for {path}: {module} is not loaded",
        f"whoever installs the driver must load it: modprobe {module}",
    )
