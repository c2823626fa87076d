# SPDX-License-Identifier: Apache-2.0
"""``nvidia-container-cli list`` and ``info``: the driver's files and GPUs in the form that NVIDIA's program prints.

Charliecloud copies what ``list`` names into an image's folder.  Must not open a GPU.
"""

from __future__ import annotations

from oci_gpu_hook.driver import inventory
from oci_gpu_hook.driver.nodes import IMEX_FOLDER
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.gpus import hardware
from oci_gpu_hook.planning import selection
from oci_gpu_hook.request import parse
from oci_gpu_hook.request.containercli import Call
from oci_gpu_hook.request.settings import Settings, read_settings
from oci_gpu_hook.request.words import ALL, CAPABILITIES, VISIBLE_DEVICES

# With any of these only what is named is listed; the last three name nothing, and a channel goes with everything.
_FILTERS = ("device", "libraries", "binaries", "ipcs", "firmwares", "compat32", "mig-config", "mig-monitor")
_INFO = ("Device Index", "Device Minor", "Model", "Brand", "GPU UUID", "Bus Location", "Architecture")


def paths(call: Call) -> list[str]:
    wanted = [name for name in _FILTERS if call.has(name)]
    root, driver_root = HostRoot(), read_settings(None, None).driver_root
    found = hardware.nvidia(root, driver_root)
    is_all = not wanted or "device" in wanted
    lines = _devices(root, driver_root, found, call) if is_all or call.has("imex-channel") else []
    lines = [path for path in lines if is_all or path.startswith(IMEX_FOLDER)]
    bits = (32, 64) if call.has("compat32") or not wanted else (64,)
    ipcs = inventory.with_nodes(root, found, driver_root=driver_root).ipc_paths
    parts = {
        "binaries": [it.path for it in found.binaries],
        "libraries": [it.path for it in found.libraries if it.bits in bits],
        "ipcs": [it.path for it in ipcs],
        "firmwares": [it.path for it in found.firmware],
    }
    lines += [path for name, found_paths in parts.items() if not wanted or name in wanted for path in found_paths]
    return [*dict.fromkeys(lines)]


def _devices(host: HostRoot, driver_root: str, found: inventory.DriverInventory, call: Call) -> list[str]:
    # A list gives nothing to a container.
    inputs = call.inputs()._replace(privileged=True)
    if not call.has("device"):
        inputs.environment[VISIBLE_DEVICES] = ALL
    request = parse.parse_request(inputs, Settings())[0]
    if request is None:
        return []
    request = request._replace(capabilities=CAPABILITIES)
    selected = selection.select(request, found)
    found = inventory.with_nodes(host, found, selection.families(request), request.imex_channels, driver_root)
    return [node.path for node, _ in selection.nodes(request, selected, found)]


def facts(call: Call) -> list[str]:
    found = hardware.nvidia(HostRoot(), read_settings(None, None).driver_root)
    versions = (("NVRM version", found.driver_version), ("CUDA version", found.cuda_version))
    gpus = [
        (it.nvml_index, it.minor, it.model, it.brand, it.uuid or "", it.bus_id, it.compute_capability)
        for it in found.gpus
    ]
    if call.has("csv"):
        heads = [",".join(name for name, _ in versions), ",".join(value for _, value in versions)]
        return [*heads, "", ",".join(_INFO), *[",".join(map(str, gpu)) for gpu in gpus]]
    lines = [f"{name + ':':16}{value}" for name, value in versions]
    for gpu in gpus:
        lines += ["", *[f"{name + ':':16}{value}" for name, value in zip(_INFO, gpu)]]
    return lines


COMMANDS = {"list": paths, "info": facts}
