# SPDX-License-Identifier: Apache-2.0
"""Findings about limits of device memory, where settings have any: whether this host can hold containers to them."""

from __future__ import annotations

from oci_gpu_hook.node.diagnosis import Finding, failed, listed, passed
from oci_gpu_hook.node.diagnosis.remedy import command
from oci_gpu_hook.request.settings import Settings

_CHECK = "GPU memory"
BOOLEAN, NVMLS_BOOLEAN = "oci_gpu_hook_limit_memory", "oci_gpu_hook_use_nvml"


def memory(
    where: str,
    regions: dict[str, dict[str, int]] | None,
    cgroups: str,
    gpus: dict[str, str],
    settings: Settings,
    booleans: dict[str, bool | None],
) -> list[Finding]:
    """where: of the first line that sets gpu-memory, ``FILE:LINE``, "" for none; regions: see `read_regions`; gpus:
    what people call each, by its PCI address; booleans: SELinux's, None if no policy of ours is loaded.
    """
    if not where:
        return []
    file, _, line = where.rpartition(":")
    unknown = [name for address, name in gpus.items() if address not in (regions or {})]
    is_share, needs_kernel = settings.gpu_memory == "share", settings.gpu_memory_by != "nvml"
    faults = (
        (is_share and not settings.gpu_holders, "gpu-holders is not set"),
        (cgroups != "v2", "this host has cgroup v1"),
        (needs_kernel and regions is None, "this kernel has no dmem controller"),
        (unknown and (needs_kernel or is_share), f"the kernel does not count the memory of {listed(unknown)}"),
    )
    for is_fault, why in faults:
        if is_fault:
            seen = f"gpu-memory is {'share' if is_share else 'set'}, and {why}: a container with a GPU is refused"
            return [failed(_CHECK, seen, command("vi", f"+{line}", file, note="gpu-memory = off"))]
    for is_needed, boolean, what in ((unknown, NVMLS_BOOLEAN, "load NVML"), (regions, BOOLEAN, "limit it")):
        if is_needed and booleans[boolean] is False:
            return [failed(_CHECK, f"{boolean} is off: the hook may not {what}", "setsebool", "-P", boolean, "on")]
    of_kernel = [f"the kernel can limit that of {len(regions)} devices"] if regions else []
    of_nvml = [f"NVML that of {listed(unknown)}, if the driver is of R615 or later"] if unknown else []
    return [passed(_CHECK, ", ".join([*of_kernel, *of_nvml]) or "there is no GPU to limit it of")]
