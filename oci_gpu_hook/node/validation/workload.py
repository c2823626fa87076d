# SPDX-License-Identifier: Apache-2.0
"""The step ``workload``: a vector addition on each GPU and MIG device, on the host, each in a process of its own.

A GPU that hangs or falls off the bus takes no other with it.  `vectoradd` is what runs there.  Must not open a GPU.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from oci_gpu_hook.driver.inventory import DriverInventory
from oci_gpu_hook.errors import plain
from oci_gpu_hook.node.diagnosis import FAIL, Finding, failed, passed, warned
from oci_gpu_hook.node.diagnosis.remedy import DOCTOR, KERNELS_LOG, REBOOT, command, then
from oci_gpu_hook.node.machine import childprocess
from oci_gpu_hook.node.validation.vectoradd import ELEMENTS

# What libcuda loads beside, which below a driver root no loader of the host finds.
LIBRARIES = ("libcuda", "libnvidia-ptxjitcompiler", "libnvidia-nvvm", "libnvidia-nvvm70", "libnvidia-gpucomp")
_AT_ONCE = 8
_PROGRAM = "from oci_gpu_hook.node.validation import vectoradd; vectoradd.answer()"

_WHO_HAS_IT = then(command("oci-gpu-hook", "containers"), command("nvidia-smi"))
_VALIDATE_DRIVER = command("oci-gpu-hook", "validate", "driver")
# By CUresult of cuda.h; of all others the kernel's log says more.
_REMEDIES = {
    2: _WHO_HAS_IT,  # OUT_OF_MEMORY
    46: _WHO_HAS_IT,  # DEVICE_UNAVAILABLE: another process has it for itself alone
    221: DOCTOR,  # JIT_COMPILER_NOT_FOUND
    802: command("systemctl", "restart", "nvidia-fabricmanager"),  # SYSTEM_NOT_READY
    803: REBOOT,  # SYSTEM_DRIVER_MISMATCH
}


class CudaDevice(NamedTuple):
    """What is computed on; check: what people call it; word: CUDA_VISIBLE_DEVICES, "" for CUDA's first device."""

    check: str
    word: str


# On a Jetson and WSL 2, whose devices only CUDA tells.
FIRST = (CudaDevice("GPU", ""),)


def devices(found: DriverInventory) -> tuple[list[CudaDevice], list[Finding]]:
    """The GPUs and MIG devices to compute on, and those on which that cannot be: CUDA has a MIG device by UUID only."""
    wanted, wrong = [], []
    for gpu in found.gpus:
        migs = [device for device in found.mig_devices if device.gpu == gpu.nvml_index]
        if not migs and gpu.in_mig_mode:
            seen = "it is in MIG mode and has no MIG device: nothing can compute on it"
            wrong.append(warned(f"GPU {gpu.nvml_index}", seen, "nvidia-smi", "mig", "-cgi", "...", "-C"))
        elif not migs:
            wanted.append(CudaDevice(f"GPU {gpu.nvml_index}", gpu.uuid or str(gpu.nvml_index)))
        for mig in migs:
            if mig.uuid is None:
                seen = f"GPU instance {mig.gi}, compute instance {mig.ci} has no UUID without NVML"
                wrong.append(failed(f"MIG of GPU {gpu.nvml_index}", seen, _VALIDATE_DRIVER))
            else:
                wanted.append(CudaDevice(f"MIG {gpu.nvml_index}:{mig.number}", mig.uuid))
    return wanted, wrong


def by_gpu(found: DriverInventory, computed: list[Finding]) -> dict[str, str]:
    """For each GPU that was computed on, by bus_id, what was wrong with it or with a MIG device of it; else ""."""
    buses = {str(gpu.nvml_index): gpu.bus_id for gpu in found.gpus}
    tested: dict[str, str] = {}
    for item in computed:
        bus = buses[item.check.split()[1].partition(":")[0]]
        tested[bus] = tested.get(bus) or (item.seen if item.level == FAIL else "")
    return tested


def rounds(wanted: Sequence[CudaDevice]) -> int:
    return -(-len(wanted) // _AT_ONCE)


def run(preload: str, mps_pipe_folder: str, wanted: Sequence[CudaDevice], seconds: float) -> Iterator[Finding]:
    """A finding for each device: some at once, as each may take all its time; preload: see `childprocess.python`."""
    # As NVML numbers them; nothing stays in a home folder.
    always = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_CACHE_DISABLE": "1", "CUDA_MPS_PIPE_DIRECTORY": mps_pipe_folder}
    for begin in range(0, len(wanted), _AT_ONCE):
        devices = wanted[begin : begin + _AT_ONCE]
        try:
            environments = [{**always, **({"CUDA_VISIBLE_DEVICES": it.word} if it.word else {})} for it in devices]
            said = childprocess.python(_PROGRAM, seconds, preload, environments)
        except OSError as err:
            seen = f"no process can be started: {err.strerror}"
            yield from [Finding(device.check, FAIL, seen) for device in devices]
        else:
            yield from [judge(device, it, seconds) for device, it in zip(devices, said)]


def judge(device: CudaDevice, said: childprocess.PythonOutput, seconds: float) -> Finding:
    *calls, last = said.output.decode("utf-8", "replace").splitlines() or [""]
    try:
        found = _answered(device, json.loads(last))
        if found.level == FAIL or said.status == 0:
            return found
        call = "exit"
    except (ValueError, KeyError, TypeError):
        call = last or (calls[-1] if calls else "the start of its process")
    if said.status is None:
        seen = f"no answer within {seconds:g} seconds: {plain(call)} does not return"
    elif said.status < 0:
        seen = f"the process was killed in {plain(call)}: {signal.strsignal(-said.status)}"
    else:
        seen = f"the process ended in {plain(call)} with status {said.status}"
    return failed(device.check, seen, KERNELS_LOG)


def _answered(device: CudaDevice, document: dict[str, Any]) -> Finding:
    remedy = KERNELS_LOG
    if "missing" in document:
        seen, remedy = f"libcuda cannot be loaded: {document['missing']}", DOCTOR
    elif "code" in document:
        call, name, text = (str(document[key]) for key in ("call", "name", "text"))
        seen = f"{call.partition('_v2')[0]} failed: {name} ({text.rstrip('.')})"
        remedy = _REMEDIES.get(document["code"], KERNELS_LOG)
    elif device.word.startswith("GPU-") and document["uuid"] != device.word[4:]:
        seen, remedy = f"CUDA gave GPU-{document['uuid']} in the place of {device.word}", _VALIDATE_DRIVER
    elif document["differs"]:
        count, at, expected, got = document["differs"]
        seen = f"{count} of {ELEMENTS} sums differ: the first is element {at}, {expected} was expected and {got} came"
    else:
        return passed(device.check, plain(f"Test PASSED: {ELEMENTS} elements on {document['device']}"))
    return failed(device.check, plain(seen), remedy)
