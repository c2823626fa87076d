# SPDX-License-Identifier: Apache-2.0
"""The step ``driver``: whether NVML answers in time, and knows the GPUs that the kernel module knows.

What files, nodes and modules say is `node.diagnosis.drivercheck`'s.  Must not judge that again.
"""

from __future__ import annotations

from oci_gpu_hook.driver.facts import Facts
from oci_gpu_hook.driver.inventory import DriverInventory
from oci_gpu_hook.node.diagnosis import FAIL, PASS, Finding
from oci_gpu_hook.node.diagnosis.remedy import KERNELS_LOG, REBOOT
from oci_gpu_hook.node.gpus import nvml

_CHECK = "NVML"


def ask(library: str, seconds: float) -> tuple[Facts | None, list[Finding]]:
    """NVML's answer, None if there is none, and what is to be said of that; library: see `nvml.ask`."""
    try:
        return nvml.facts(library, seconds), []
    except nvml.NvmlUnavailable as err:
        return None, [Finding(_CHECK, FAIL, str(err), KERNELS_LOG)]


def agree(found: DriverInventory, facts: Facts) -> list[Finding]:
    """Whether NVML says of version, GPUs and MIG devices what the kernel says; found: `survey` with these facts."""
    if facts.driver_version != found.driver_version:
        seen = f"NVML is of version {facts.driver_version}, the kernel module of {found.driver_version}"
        return [Finding(_CHECK, FAIL, seen, REBOOT)]
    kernels = {gpu.bus_id: gpu.uuid for gpu in found.gpus}
    theirs = {gpu.bus_id: gpu.uuid for gpu in facts.gpus}
    wrong = []
    missing = [bus_id for bus_id in kernels if bus_id not in theirs]
    if missing:
        wrong.append(f"NVML lacks {len(missing)} of the kernel's {len(kernels)} GPUs: {missing[0]}")
    unknown = [bus_id for bus_id in theirs if bus_id not in kernels]
    if unknown:
        wrong.append(f"NVML lists {unknown[0]}, which the kernel does not")
    for bus_id in [bus_id for bus_id in theirs if kernels.get(bus_id)]:
        if theirs[bus_id] != kernels[bus_id]:
            wrong.append(f"{bus_id} is {theirs[bus_id]} for NVML, {kernels[bus_id]} for the kernel")
            break
    unnamed = [device for device in found.mig_devices if device.uuid is None]
    if unnamed and not missing:
        wrong.append(f"NVML lacks {len(unnamed)} of the kernel's MIG devices")
    if wrong:
        return [Finding(_CHECK, FAIL, sentence, KERNELS_LOG) for sentence in wrong]
    seen = f"CUDA {facts.cuda_version}; it knows the kernel's GPUs ({len(kernels)})"
    if found.mig_devices:
        seen += f" and MIG devices ({len(found.mig_devices)})"
    return [Finding(_CHECK, PASS, seen)]
