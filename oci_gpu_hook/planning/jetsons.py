# SPDX-License-Identifier: Apache-2.0
"""The nodes of a Jetson's own GPU, and of GPUs on PCI beside it.

The lists of JetPack name the nodes of all GPUs that a board may have.  Where NVIDIA's module has more than one, index 0
is the integrated one, as NVML numbers them: on Thor the module drives it, at PCI address 0000:01:00.0; on Orin, which
has none, nvgpu does.  What /dev/nvidia2 is the lists do not say: the display of the integrated GPU.  Reads only.
"""

from __future__ import annotations

from oci_gpu_hook.driver.inventory import with_nodes
from oci_gpu_hook.driver.nodes import GPU_MAJOR, device
from oci_gpu_hook.errors import RequestError, quoted
from oci_gpu_hook.formats.decimal import decimal
from oci_gpu_hook.planning import selection
from oci_gpu_hook.planning.selection import Selection
from oci_gpu_hook.request.words import ALL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.driver.inventory import DriverInventory
    from oci_gpu_hook.driver.proc import Gpu
    from oci_gpu_hook.host.root import HostRoot
    from oci_gpu_hook.planning.plan import Reasoned
    from oci_gpu_hook.request.parse import Request

_INTEGRATED = "00000000:01:00.0"
_DISPLAY_MINOR = 2
# Of a UUID without a beginning, as Orin's is: 8-4-4-4-12.
_BARE_UUID = (8, 4, 4, 4, 12)
_HINT = "the container's author must ask for one that exists; index 0 is the integrated GPU"


def nodes(root: HostRoot, request: Request, inventory: DriverInventory, listed: Reasoned) -> Reasoned:
    """The nodes that a request brings, of those that the lists name and those of GPUs on PCI; RequestError."""
    others = tuple([gpu for gpu in inventory.gpus if gpu.bus_id != _INTEGRATED])
    integrated = next((gpu for gpu in inventory.gpus if gpu.bus_id == _INTEGRATED), None)
    if not others:
        return listed
    wants_integrated, chosen = _chosen(request.devices, integrated, others)
    of_gpus = {f"/dev/nvidia{gpu.minor}" for gpu in inventory.gpus}
    found = {node: reason for node, reason in listed if node.path not in of_gpus}
    if wants_integrated:
        if integrated is not None:
            path = f"/dev/nvidia{integrated.minor}"
            found.update({node: reason for node, reason in listed if node.path == path})
        display = device(root, f"/dev/nvidia{_DISPLAY_MINOR}", GPU_MAJOR, _DISPLAY_MINOR)
        if display.present and display.path not in of_gpus:
            found[display] = f"display of the integrated GPU: asked for as {wants_integrated}"
    if chosen:
        gpus = tuple([gpu for gpu, _ in chosen])
        looked = with_nodes(root, inventory, selection.families(request), request.imex_channels, gpus=gpus)
        for node, reason in selection.nodes(request, Selection(chosen, ()), looked):
            if node.path not in [known.path for known in found]:
                found[node] = reason
    return tuple(found.items())


def _chosen(
    devices: tuple[str, ...], integrated: Gpu | None, others: tuple[Gpu, ...]
) -> tuple[str, tuple[tuple[Gpu, str], ...]]:
    """The selector that asks for the integrated GPU, "" for none, and the others that are asked for, each with its."""
    if devices == (ALL,):
        return ALL, tuple([(gpu, ALL) for gpu in others])
    wants = ""
    chosen: dict[Gpu, str] = {}
    for selector in devices:
        index = decimal(selector)
        is_own = integrated is not None and selector in (integrated.uuid, integrated.bus_id)
        if index == 0 or is_own or tuple(map(len, selector.split("-"))) == _BARE_UUID:
            wants = selector
            continue
        named = [gpu for place, gpu in enumerate(others, 1) if index == place or selector in (gpu.uuid, gpu.bus_id)]
        if not named:
            raise RequestError(f"unknown device {quoted(selector)}: this Jetson has indices 0 to {len(others)}", _HINT)
        chosen.setdefault(named[0], selector)
    return wants, tuple([(gpu, chosen[gpu]) for gpu in others if gpu in chosen])
