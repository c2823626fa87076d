# SPDX-License-Identifier: Apache-2.0
"""Which of the host's devices a request names: GPUs, MIG devices and device nodes.  Pure."""

from __future__ import annotations

from oci_gpu_hook.driver.inventory import DriverInventory, MigDevice
from oci_gpu_hook.driver.nodes import DeviceNode
from oci_gpu_hook.driver.proc import Gpu
from oci_gpu_hook.errors import DriverError, RequestError, quoted
from oci_gpu_hook.planning.plan import Held
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.request.selectors import Request, is_mig
from oci_gpu_hook.request.words import ALL, FEATURES, MIG_MANAGEMENT, NONE

_LIST_HINT = "the container's author must ask for one that exists; 'oci-gpu-hook info' lists them"
# Who else than the author can have named a device, by the source of the request.
_ASSIGNED = {
    "swarm": "the node's administrator must run 'oci-gpu-hook configure docker --swarm GPU' and restart dockerd",
    "mounts": "the node's administrator must restart the device plugin that assigned it",
}
# A device plugin that names devices in the variable is not seen; no author knows a GPU of a cluster by its UUID.
_UUID_HINT = f"{_LIST_HINT}; if a device plugin assigned it, the node's administrator must restart that plugin"
# A rootless engine's start may not read what root saved, nor ask for a refresh: see oci-gpu-hook-sharing(7), MIG.
_REFRESH_HINT = "root must run 'oci-gpu-hook inventory refresh'; a rootless engine asks for MIG-GPU-UUID/gi/ci"
_CAP = "/dev/nvidia-caps/nvidia-cap"


class Selection(NamedTuple):
    """In NVML's order, each with its selector; gpus: those of the MIG devices too."""

    gpus: tuple[tuple[Gpu, str], ...]
    mig_devices: tuple[tuple[MigDevice, str], ...]


def families(request: Request) -> tuple[str, ...]:
    wanted = list(request.features)
    if "display" in request.capabilities:
        wanted.append("modeset")
    if "display" in request.capabilities or "graphics" in request.capabilities:
        wanted.append("dri")
    # A spec of management has given channels, whose numbers are compared.
    if request.imex_channels or request.source == "cdi":
        wanted.append("imex")
    named = (*request.devices, *request.nodes)
    if request.mig_config or request.mig_monitor or any([name == ALL or is_mig(name) for name in named]):
        wanted.append("caps")
    return tuple(wanted)


def select(request: Request, inventory: DriverInventory) -> Selection:
    if request.devices == (NONE,):
        return Selection((), ())
    if not inventory.gpus:
        raise DriverError("the NVIDIA driver is loaded but drives no GPU", "look at the kernel's log on this host")
    if request.devices == (ALL,):
        return Selection(
            tuple([(gpu, ALL) for gpu in inventory.gpus]), tuple([(device, ALL) for device in inventory.mig_devices])
        )
    if request.nodes:
        return _of_nodes(request.nodes, inventory)
    wanted, there = len(request.devices), len(inventory.gpus)
    # dockerd makes indices of a number of GPUs (``--gpus 9``).
    if wanted > max(there, 1) and request.devices == tuple(map(str, range(wanted))):
        why = f"{wanted} GPUs are asked for (0 to {wanted - 1}), and this host has {there}"
        raise RequestError(why, "the container's author must ask for fewer")
    gpus: dict[int, str] = {}
    mig_devices: dict[MigDevice, str] = {}
    # GPUs come before MIG devices: a GPU that is requested itself is whole, even if its MIG devices are requested too.
    for selector in sorted(request.devices, key=is_mig):
        if is_mig(selector):
            device = _find_mig(selector, inventory, request.source)
            mig_devices.setdefault(device, selector)
            gpus.setdefault(device.gpu, selector)
        else:
            gpus.setdefault(_find_gpu(selector, inventory.gpus, request.source).nvml_index, selector)
    return Selection(
        tuple([(gpu, gpus[gpu.nvml_index]) for gpu in inventory.gpus if gpu.nvml_index in gpus]),
        tuple([(device, mig_devices[device]) for device in inventory.mig_devices if device in mig_devices]),
    )


def nodes(request: Request, selection: Selection, inventory: DriverInventory) -> tuple[tuple[DeviceNode, str], ...]:
    """Exactly the requested ones, each with its reason; DriverError if the kernel has no driver for one."""
    available = {node.path: node for node in inventory.devices}
    wanted = [("/dev/nvidiactl", "control device: every request")]
    for gpu, selector in selection.gpus:
        wanted.append((f"/dev/nvidia{gpu.minor}", f"GPU {gpu.nvml_index}, {gpu.model}: asked for as {selector}"))
    if "compute" in request.capabilities:
        wanted += [("/dev/nvidia-uvm", "unified memory: compute"), ("/dev/nvidia-uvm-tools", "unified memory: compute")]
    if "display" in request.capabilities:
        wanted.append(("/dev/nvidia-modeset", "mode setting: display"))
    wanted += _mig_nodes(request, selection, inventory)
    wanted += _imex_nodes(request, inventory)
    wanted += _dri_nodes(request, selection, inventory)
    for feature in [it for it in FEATURES if it.name in request.features]:
        named = [node.path for node in inventory.devices if node.family == feature.name]
        wanted += [(path, f"asked for as {feature.variable}=enabled") for path in named]
    for path, reason in [it for it in wanted if it[0] not in available]:
        if path.startswith(_CAP):
            hint = "look at 'nvidia-smi mig -lgi' and the kernel's log on this host"
            raise DriverError(f"the kernel has no device for {path} ({reason})", hint)
        module = "nvidia-modeset" if "modeset" in path else "nvidia-uvm"
        hint = f"the administrator must load it: modprobe {module}"
        raise DriverError(f"the kernel has no driver for {path}: {module} is not loaded", hint)
    return tuple([(available[path], reason) for path, reason in wanted])


def absent_features(request: Request, inventory: DriverInventory) -> list[str]:
    families = {node.family for node in inventory.devices}
    lacking = [it for it in FEATURES if it.name in request.features and it.name not in families]
    absent = [f"{it.variable}=enabled brings nothing: this host has no {it.devices[0]}" for it in lacking]
    if request.imex_channels == (ALL,) and "imex" not in families:
        absent.append("asking for all IMEX channels brings nothing: this host has none")
    return absent


def _of_nodes(paths: tuple[str, ...], inventory: DriverInventory) -> Selection:
    gpus = [(gpu, f"/dev/nvidia{gpu.minor}") for gpu in inventory.gpus]
    # For a MIG device the engine must have made both capability nodes.
    whole = [it for it in inventory.mig_devices if {f"{_CAP}{it.gi_minor}", f"{_CAP}{it.ci_minor}"}.issubset(paths)]
    named = tuple([(it, f"{_CAP}{it.ci_minor}") for it in whole])
    return Selection(tuple([(gpu, path) for gpu, path in gpus if path in paths]), named)


def holds(selected: Selection, inventory: DriverInventory) -> tuple[Held, ...]:
    """The devices that a container holds, see `Provision`: of a GPU in MIG mode its MIG devices, unless it is alone."""
    bus_ids = {gpu.nvml_index: gpu.bus_id for gpu in inventory.gpus}
    divided = {device.gpu for device, _ in selected.mig_devices}
    whole = [gpu for gpu, _ in selected.gpus if gpu.nvml_index not in divided]
    held = [Held(it.bus_id, str(it.nvml_index), it.bus_id) for it in whole]
    # A MIG device made again with the same numbers has the same nodes: who held the one before can open it.
    held += [Held(f"{bus_ids[it.gpu]}/{it.gi}/{it.ci}", name_of(it, inventory)) for it, _ in selected.mig_devices]
    return tuple(held)


def name_of(device: MigDevice, inventory: DriverInventory) -> str:
    if device.number is not None:
        return f"{device.gpu}:{device.number}"
    (uuid,) = [gpu.uuid for gpu in inventory.gpus if gpu.nvml_index == device.gpu]
    return f"MIG-{uuid}/{device.gi}/{device.ci}"


def _find_gpu(selector: str, gpus: tuple[Gpu, ...], source: str) -> Gpu:
    for gpu in gpus:
        if selector in (str(gpu.nvml_index), gpu.uuid, gpu.bus_id):
            return gpu
    indices = ", ".join([str(gpu.nvml_index) for gpu in gpus])
    there, hint = f"{'index' if len(gpus) == 1 else 'indices'} {indices}", _LIST_HINT
    if selector.startswith("GPU-"):
        there, hint = f"{len(gpus)} GPU{'s' if len(gpus) > 1 else ''}, and none has this UUID", _UUID_HINT
    raise RequestError(f"unknown device '{selector}': this host has {there}", _ASSIGNED.get(source, hint))


def _find_mig(selector: str, inventory: DriverInventory, source: str) -> MigDevice:
    """The MIG device by its UUID, by ``gpu:mig``, or by the older ``MIG-GPU-<uuid>/<gi>/<ci>``."""
    gpu, _, number = selector.partition(":")
    parent = _find_gpu(gpu, inventory.gpus, source) if number else None
    uuids = {item.nvml_index: item.uuid for item in inventory.gpus}
    devices = [device for device in inventory.mig_devices if parent is None or device.gpu == parent.nvml_index]
    for device in devices:
        names = (device.uuid, f"{device.gpu}:{device.number}", f"MIG-{uuids[device.gpu]}/{device.gi}/{device.ci}")
        if selector in names:
            return device
    if "/" not in selector and None in [device.number if number else device.uuid for device in devices]:
        why = f"MIG device '{selector}' cannot be told from the others: only NVML knows their names"
        raise DriverError(why, _REFRESH_HINT)
    where = "this host" if parent is None else f"GPU {parent.nvml_index}"
    available = f"{len(devices) or 'no'} MIG device{'s' if len(devices) > 1 else ''}"
    raise RequestError(f"unknown MIG device '{selector}': {where} has {available}", _ASSIGNED.get(source, _LIST_HINT))


def _mig_nodes(request: Request, selection: Selection, inventory: DriverInventory) -> list[tuple[str, str]]:
    wanted: dict[str, str] = {}
    for device, selector in selection.mig_devices:
        name = f"GPU {device.gpu}, MIG {device.gi}/{device.ci}"
        for number, what in ((device.gi_minor, "GPU instance"), (device.ci_minor, "compute instance")):
            wanted.setdefault(f"{_CAP}{number}", f"{what} of {name}: asked for as {selector}")
    minors = (inventory.mig_config_minor, inventory.mig_monitor_minor)
    for variable, minor, is_requested in zip(MIG_MANAGEMENT, minors, (request.mig_config, request.mig_monitor)):
        if is_requested and minor is None:
            raise RequestError(f"{variable} cannot be met: no GPU of this host supports MIG", _LIST_HINT)
        if is_requested:
            wanted.setdefault(f"{_CAP}{minor}", f"asked for as {variable}=all")
    return list(wanted.items())


def _imex_nodes(request: Request, inventory: DriverInventory) -> list[tuple[str, str]]:
    present = dict.fromkeys([node.path for node in inventory.devices if node.family == "imex"])
    if request.imex_channels == (ALL,):
        return [(path, "IMEX channel: asked for as all") for path in present]
    wanted = [(it, f"/dev/nvidia-caps-imex-channels/channel{it}") for it in request.imex_channels]
    for channel, path in wanted:
        if path not in present:
            raise RequestError(f"IMEX channel {quoted(channel)} cannot be given: this host has none", _LIST_HINT)
    return [(path, f"IMEX channel: asked for as {channel}") for channel, path in wanted]


def _dri_nodes(request: Request, selection: Selection, inventory: DriverInventory) -> list[tuple[str, str]]:
    """The DRM nodes of whole GPUs: a MIG device cannot draw, and its parent's nodes would give access to the whole GPU.
    Nodes in a request do not tell whether a GPU is whole: only those count then that the engine has made.
    """
    whole = {gpu.nvml_index for gpu, selector in selection.gpus if not is_mig(selector)}
    found = [node for node in inventory.devices if node.family == "dri" and node.gpu in whole]
    given = [node for node in found if request.devices or node.path in request.nodes]
    return [(node.path, f"DRM node of GPU {node.gpu}: graphics or display") for node in given]
