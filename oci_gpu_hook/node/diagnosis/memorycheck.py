# SPDX-License-Identifier: Apache-2.0
"""Findings about limits of device memory, where the settings have any: whether this host can hold containers to them.

Values in, findings out: the caller has looked.
"""

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
    """where: of the first line that sets gpu-memory, ``FILE:LINE``, "" for none.

    regions: see `read_regions`; gpus: what people call each, by its PCI address; booleans: SELinux's, None if no policy
    of ours is loaded.
    """
    if not where:
        return []
    file, _, line = where.rpartition(":")
    unknown = [name for address, name in gpus.items() if address not in (regions or {})]
    is_share, by_nvml = settings.gpu_memory == "share", settings.gpu_memory_by == "nvml"
    is_uncounted = is_share and not settings.gpu_holders
    is_set, off = f"gpu-memory is {'share' if is_share else 'set'}", "gpu-memory = off"
    faults = (
        (is_uncounted, f"{is_set}, and gpu-holders is not set", f"gpu-holders = NUMBER, or {off}"),
        (cgroups != "v2", f"{is_set}, and this host has cgroup v1", off),
        (not by_nvml and regions is None, f"{is_set}, and this kernel has no dmem controller", off),
        (not by_nvml and not regions, f"{is_set}, and the kernel counts no device's memory", off),
        (
            unknown and (not by_nvml or is_share),
            f"{is_set}, and the kernel does not count the memory of {listed(unknown)}",
            off,
        ),
    )
    for is_fault, seen, note in faults:
        if is_fault:
            edit = command("vi", f"+{line}", file, note=note)
            return [failed(_CHECK, f"{seen}: a container with a GPU is refused", edit)]
    for is_needed, boolean, what in ((unknown, NVMLS_BOOLEAN, "load NVML"), (regions, BOOLEAN, "limit it")):
        if is_needed and booleans[boolean] is False:
            return [failed(_CHECK, f"{boolean} is off: the hook may not {what}", "setsebool", "-P", boolean, "on")]
    of_kernel = [f"the kernel can limit that of {len(regions)} devices"] if regions else []
    of_nvml = [f"NVML that of {listed(unknown)}, if the driver is of R615 or later"] if unknown else []
    return [passed(_CHECK, ", ".join([*of_kernel, *of_nvml]) or "there is no GPU to limit it of")]
