# SPDX-License-Identifier: Apache-2.0
"""``info --topology``: how near this host's GPUs are to one another, as ``any:2`` goes by it, and who holds each."""

from __future__ import annotations

from typing import Any

from oci_gpu_hook.cli import accelerators
from oci_gpu_hook.cli.render import columns
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.gpus import hardware, holdercount
from oci_gpu_hook.planning import placement
from oci_gpu_hook.request.selectors import AnyOf
from oci_gpu_hook.request.settings import Settings

# By how many of the other one it reaches by NVLink, and how many are of its NUMA node.
_WORDS = {(1, 1): "NVLink", (1, 0): "NVLink", (0, 1): "node", (0, 0): "-"}
_NVML = "NVLinks are not known, as NVML was not asked: run 'oci-gpu-hook inventory refresh'"


def describe_topology(host: HostRoot, settings: Settings) -> tuple[dict[str, Any], list[str]]:
    accelerators.check_is_server(host)
    found, most = hardware.nvidia(host, settings.driver_root), settings.gpu_holders
    gpus = placement.gpus(host, settings, AnyOf(2))
    counted = {it.key: it for it in holdercount.count_holders(host, found, most)}
    rows, document = [("GPU", *[gpu.held.name for gpu in gpus], "NUMA", "HOLDERS")], []
    for gpu in gpus:
        near = [_WORDS[placement.near(gpu, (other,))] if other is not gpu else "x" for other in gpus]
        holders, why = [lease.id for lease in counted[gpu.held.key].leases], counted[gpu.held.key].unhealthy
        said = f"{len(holders)} of {most}" if most else "not counted"
        node = str(gpu.node) if gpu.node >= 0 else "-"
        rows.append((gpu.held.name, *near, node, f"{said}, not healthy: {why}" if why else said))
        document.append(
            {
                **{"gpu": gpu.held.name, "address": gpu.held.address, "numa_node": gpu.node},
                "nvlinks": [other.held.name for other in gpus if other.held.key in gpu.peers],
                **{"holders": holders, "unhealthy": why},
            }
        )
    lines = columns(rows) if gpus else ["each GPU is divided into MIG devices, which are near to none"]
    is_asked = any([gpu.brand for gpu in found.gpus])
    return {"gpu_holders": most, "gpus": document}, [*lines, *([] if is_asked else [_NVML])]
