# SPDX-License-Identifier: Apache-2.0
"""What NVML reads of each GPU now, for ``metrics --gpus`` and ``features``: sensors, counters, memory, MIG devices."""

from __future__ import annotations

from typing import Any, NamedTuple

from oci_gpu_hook.driver.inventory import DriverInventory
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.gpus import nvml

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


class MigReading(NamedTuple):
    """One MIG device; attributes: by gpu-feature-discovery's names."""

    uuid: str
    attributes: dict[str, int]


class GpuReading(NamedTuple):
    """One GPU that has answered to the end.

    bus_id: with the eight-digit domain, in lower case; values: those of `RANGES` that it supports and that can be true.
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


def ask_for_readings(root: HostRoot, found: DriverInventory, seconds: float) -> Readings:
    """What NVML reads of the GPUs that have answered in time; for the rest see `nvml.ask_nvml`."""
    program = "from oci_gpu_hook.node.gpus import nvml, readings; nvml.answer(readings.read_gpu)"
    version, cuda, listed, rows = nvml.ask_nvml(program, root, found, seconds, whole=False)
    return Readings(version, cuda, listed, tuple(map(_reading, rows)))


def _reading(row: dict[str, Any]) -> GpuReading:
    values = {name: value for name, value in row["values"].items() if RANGES[name][0] <= value <= RANGES[name][1]}
    if values.get("memory_used", 0) > values.get("memory_total", 0):
        values.pop("memory_used")
    return GpuReading(row["uuid"], row["bus_id"], values, tuple([MigReading(*device) for device in row["mig"]]))


def read_gpu(pynvml: Any, gpu: Any) -> dict[str, Any]:
    """In the child: what a GPU answers; NVMLError if it is lost meanwhile."""
    gone = [getattr(pynvml, f"NVML_ERROR_{name}", None) for name in _GONE]
    values = {}
    for name, question in _questions(pynvml).items():
        try:
            values[name] = int(question(gpu))
        except pynvml.NVMLError as err:
            if err.value in gone:
                raise

    def attributes(device: Any) -> tuple[dict[str, int]]:
        has = pynvml.nvmlDeviceGetAttributes(device)
        return ({name: int(getattr(has, key)) for name, key in _ATTRIBUTES.items()},)

    found = nvml.mig_devices(pynvml, gpu, attributes) if values.get("mig_enabled") else []
    return {"values": values, "mig": [device[1:] for device in found]}


def _questions(pynvml: Any) -> dict[str, Any]:
    """How each value is asked for, by its name in `RANGES`; those first that cost least."""
    corrected, uncorrected = (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
    volatile, aggregate = pynvml.NVML_VOLATILE_ECC, pynvml.NVML_AGGREGATE_ECC
    errors = pynvml.nvmlDeviceGetTotalEccErrors
    # The newer name came with driver 535, and the older one will go some day.
    events = getattr(pynvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None)
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
        "clocks_event": events or pynvml.nvmlDeviceGetCurrentClocksEventReasons,
        "utilization": lambda gpu: pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
        "memory_utilization": lambda gpu: pynvml.nvmlDeviceGetUtilizationRates(gpu).memory,
        "pcie_replays": pynvml.nvmlDeviceGetPcieReplayCounter,
        "ecc_corrected": lambda gpu: errors(gpu, corrected, volatile),
        "ecc_uncorrected": lambda gpu: errors(gpu, uncorrected, volatile),
        "ecc_corrected_aggregate": lambda gpu: errors(gpu, corrected, aggregate),
        "ecc_uncorrected_aggregate": lambda gpu: errors(gpu, uncorrected, aggregate),
        **({"recovery_action": lambda gpu: _field(pynvml, gpu, recovery)} if recovery is not None else {}),
    }


def _field(pynvml: Any, handle: Any, number: int) -> int:
    """A field value that is an unsigned int; NVMLError if it is not supported."""
    (field,) = pynvml.nvmlDeviceGetFieldValues(handle, [number])
    if field.nvmlReturn:
        raise pynvml.NVMLError(field.nvmlReturn)
    return int(field.value.uiVal)
