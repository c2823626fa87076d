# SPDX-License-Identifier: Apache-2.0
"""What NVML reads of each GPU now: its sensors, counters and memory, and what its MIG devices have.

pynvml (nvidia-ml-py) is called in a process of its own, by one thread for each GPU: one that hangs, or is lost while it
is asked, takes no other's answer with it.  For ``metrics --gpus`` and ``features``.  Must not be used by the hook.
"""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

from oci_gpu_hook.node.gpus import child
from oci_gpu_hook.node.gpus.nvml import NvmlUnavailable

# The values of a GPU in NVML's units (degrees Celsius, milliwatts, megahertz, bytes, percent), each with the least and
# the most that a GPU can have: what lies beyond is a mistake of a driver or of a failing board, and counts as not read.
_COUNT = (0, 1 << 53)
RANGES = {
    "temperature": (-50, 250),
    "power": (0, 100_000_000),
    "power_limit": (0, 100_000_000),
    "clock_sm": (0, 100_000),
    "clock_memory": (0, 100_000),
    "memory_total": (1, 1 << 50),
    "memory_used": (0, 1 << 50),
    "utilization": (0, 100),
    "memory_utilization": (0, 100),
    "clocks_event": (0, (1 << 64) - 1),
    "ecc_corrected": _COUNT,
    "ecc_uncorrected": _COUNT,
    "ecc_corrected_aggregate": _COUNT,
    "ecc_uncorrected_aggregate": _COUNT,
    "pcie_replays": _COUNT,
    "persistence": (0, 1),
    "mig_enabled": (0, 1),
    # nvmlDeviceGpuRecoveryAction_t: 0 for none, else a reset or a reboot.
    "recovery_action": (0, 100),
}
# Of a MIG device, by the names of gpu-feature-discovery; memory in MiB.
_ATTRIBUTES = {
    "memory": "memorySizeMB",
    "multiprocessors": "multiprocessorCount",
    "slices.gi": "gpuInstanceSliceCount",
    "slices.ci": "computeInstanceSliceCount",
    "engines.copy": "sharedCopyEngineCount",
    "engines.decoder": "sharedDecoderCount",
    "engines.encoder": "sharedEncoderCount",
    "engines.jpeg": "sharedJpegCount",
    "engines.ofa": "sharedOfaCount",
}
# After these nothing more is asked of a GPU: it has fallen off the bus, or NVML has gone away.
_GONE = ("GPU_IS_LOST", "RESET_REQUIRED", "UNINITIALIZED", "DRIVER_NOT_LOADED")
_MOST_MIG_DEVICES = 64


class MigReading(NamedTuple):
    """One MIG device; attributes: by gpu-feature-discovery's names."""

    uuid: str
    attributes: dict[str, int]


class GpuReading(NamedTuple):
    """One GPU that has answered to the end.

    uuid: as NVML says it; bus_id: with the eight-digit domain, in lower case; values: those of `RANGES` that it
    supports and that can be true.
    """

    uuid: str
    bus_id: str
    values: dict[str, int]
    mig: tuple[MigReading, ...]


class Readings(NamedTuple):
    """NVML's whole answer; listed: how many GPUs it lists, of which some may not have answered."""

    driver_version: str
    cuda_version: int
    listed: int
    gpus: tuple[GpuReading, ...]


def ask(library: str, seconds: float) -> Readings:
    """What NVML reads, NvmlUnavailable if it gives nothing.  `library`: as `nvml.ask` has it."""
    program = "from oci_gpu_hook.node.gpus import readings; readings.answer()"
    try:
        said = child.ask(program, seconds, library)
    except OSError as err:
        raise NvmlUnavailable(f"NVML cannot be asked: {err.strerror}") from err
    first, *rest = _documents(said.output) or [{}]
    if "error" in first:
        raise NvmlUnavailable(f"NVML cannot be asked: {first['error']}")
    try:
        version, cuda, listed = (str(first["driver_version"]), int(first["cuda"]), int(first["listed"]))
    except (KeyError, TypeError, ValueError):
        if said.status is None:
            raise NvmlUnavailable(f"NVML did not answer within {seconds:g} seconds") from None
        raise NvmlUnavailable("NVML ended without an answer: libnvidia-ml crashed") from None
    gpus = sorted([found for found in map(_reading, rest) if found], key=lambda gpu: gpu.bus_id)
    return Readings(version, cuda, listed, tuple(gpus))


def _documents(output: bytes) -> list[dict[str, Any]]:
    """The JSON objects of the lines that are whole: the last one may not be."""
    found = []
    for line in output.split(b"\n"):
        try:
            document = json.loads(line)
        except ValueError:
            continue
        if isinstance(document, dict):
            found.append(document)
    return found


def _reading(document: dict[str, Any]) -> GpuReading | None:
    """One GPU; None if the line is another's."""
    try:
        values = {name: int(value) for name, value in document["values"].items()}
        mig = [
            MigReading(str(uuid), {name: int(value) for name, value in attributes.items()})
            for uuid, attributes in document["mig"]
        ]
        uuid, bus_id = str(document["uuid"]), str(document["bus_id"])
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    true = {name: value for name, value in values.items() if _can_be(name, value)}
    if true.get("memory_used", 0) > true.get("memory_total", 0):
        true.pop("memory_used")
    return GpuReading(uuid, bus_id, true, tuple(mig))


def _can_be(name: str, value: int) -> bool:
    least, most = RANGES.get(name, (1, 0))
    return least <= value <= most


def answer() -> None:
    """In the child: print one JSON object of NVML, and one of each GPU as soon as it has answered to the end."""
    import threading

    try:
        import pynvml
    except ImportError:
        _say({"error": "this Python has no pynvml, which is in nvidia-ml-py"})
        return
    try:
        pynvml.nvmlInit()
        listed = pynvml.nvmlDeviceGetCount()
        version = _text(pynvml.nvmlSystemGetDriverVersion())
        cuda = pynvml.nvmlSystemGetCudaDriverVersion()
    except pynvml.NVMLError as err:
        _say({"error": f"{type(err).__name__}: {err}"})
        return
    _say({"driver_version": version, "cuda": cuda, "listed": listed})
    threads = [threading.Thread(target=_tell, args=(pynvml, number)) for number in range(listed)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _say(document: dict[str, Any]) -> None:
    """One line, written at once: threads do not wait for one another."""
    os.write(1, json.dumps(document).encode() + b"\n")


def _tell(pynvml: Any, number: int) -> None:
    """Say what one GPU has answered; nothing of one that is lost meanwhile."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(number)
        values = {}
        for name, ask_for in _questions(pynvml).items():
            value = _asked(pynvml, ask_for, handle)
            if value is not None:
                values[name] = value
        document = {
            "uuid": _text(pynvml.nvmlDeviceGetUUID(handle)),
            "bus_id": _text(pynvml.nvmlDeviceGetPciInfo(handle).busId).lower(),
            "values": values,
            "mig": _mig(pynvml, handle) if values.get("mig_enabled") else [],
        }
    except pynvml.NVMLError:
        return
    _say(document)


def _questions(pynvml: Any) -> dict[str, Any]:
    """How each value is asked for, by its name in `RANGES`; those first that cost least."""
    corrected, uncorrected = (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
    volatile, aggregate = pynvml.NVML_VOLATILE_ECC, pynvml.NVML_AGGREGATE_ECC
    errors = pynvml.nvmlDeviceGetTotalEccErrors
    # The newer name came with driver 535, and the older one will go some day.
    events = getattr(
        pynvml,
        "nvmlDeviceGetCurrentClocksThrottleReasons",
        getattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", None),
    )
    # It came with driver 560.
    recovery = getattr(pynvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
    return {
        "persistence": pynvml.nvmlDeviceGetPersistenceMode,
        "mig_enabled": lambda gpu: pynvml.nvmlDeviceGetMigMode(gpu)[0],
        "memory_total": lambda gpu: pynvml.nvmlDeviceGetMemoryInfo(gpu).total,
        "memory_used": lambda gpu: pynvml.nvmlDeviceGetMemoryInfo(gpu).used,
        "temperature": lambda gpu: pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU),
        "power": pynvml.nvmlDeviceGetPowerUsage,
        "power_limit": pynvml.nvmlDeviceGetEnforcedPowerLimit,
        "clock_sm": lambda gpu: pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM),
        "clock_memory": lambda gpu: pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_MEM),
        "clocks_event": events,
        "utilization": lambda gpu: pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
        "memory_utilization": lambda gpu: pynvml.nvmlDeviceGetUtilizationRates(gpu).memory,
        "pcie_replays": pynvml.nvmlDeviceGetPcieReplayCounter,
        "ecc_corrected": lambda gpu: errors(gpu, corrected, volatile),
        "ecc_uncorrected": lambda gpu: errors(gpu, uncorrected, volatile),
        "ecc_corrected_aggregate": lambda gpu: errors(gpu, corrected, aggregate),
        "ecc_uncorrected_aggregate": lambda gpu: errors(gpu, uncorrected, aggregate),
        "recovery_action": (lambda gpu: _field(pynvml, gpu, recovery)) if recovery is not None else None,
    }


def _field(pynvml: Any, handle: Any, number: int) -> int:
    """A field value that is an unsigned int; NVMLError if it is not supported."""
    (field,) = pynvml.nvmlDeviceGetFieldValues(handle, [number])
    if field.nvmlReturn:
        raise pynvml.NVMLError(field.nvmlReturn)
    return int(field.value.uiVal)


def _asked(pynvml: Any, ask_for: Any, handle: Any) -> int | None:
    """One value, None if it is not supported; NVMLError if the GPU will answer nothing more."""
    if ask_for is None:
        return None
    try:
        return int(ask_for(handle))
    except pynvml.NVMLError as err:
        if err.value in [getattr(pynvml, f"NVML_ERROR_{name}", None) for name in _GONE]:
            raise
        return None


def _mig(pynvml: Any, handle: Any) -> list[tuple[str, dict[str, int]]]:
    """UUID and attributes of the MIG devices of a GPU in MIG mode; numbers may have gaps."""
    found = []
    most = min(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle), _MOST_MIG_DEVICES)
    for number in range(most):
        try:
            device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
            has = pynvml.nvmlDeviceGetAttributes(device)
            uuid = "MIG-" + _text(pynvml.nvmlDeviceGetUUID(device))[4:].lower()
            attributes = {name: int(getattr(has, key)) for name, key in _ATTRIBUTES.items()}
            found.append((uuid, attributes))
        except pynvml.NVMLError:
            continue
    return found


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
