# SPDX-License-Identifier: Apache-2.0
"""The metrics of GPUs and their driver in Prometheus's text format, from values.  Pure.

A series is there where its value is known: what NVML does not support, or did not say in time, is absent and never 0.
Must not look at anything.
"""

from __future__ import annotations

import re
from itertools import groupby

from oci_gpu_hook.driver.proc import Gpu
from oci_gpu_hook.node.exporters.exposition import COUNTER, GAUGE, gauge, metric
from oci_gpu_hook.node.gpus.kernellog import place
from oci_gpu_hook.node.gpus.leased import Counted
from oci_gpu_hook.node.gpus.readings import Readings
from oci_gpu_hook.node.machine.validated import PASSED, SKIPPED, Validation
from oci_gpu_hook.record import NamedTuple

# nvml.h: nvmlClocksEventReason*.
CLOCKS_EVENTS = {
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
    "display_clock_setting": 0x100,
}
# More than one container for each of sixteen GPUs' MIG devices.
_MOST_HELD = 512
_UUID = re.compile("GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Read(NamedTuple):
    """A metric of a value that NVML reads of a GPU: its unit is `scale` of ours; label: one more, if it has one."""

    metric: str
    help: str
    kind: str
    value: str
    scale: float = 1
    label: tuple[str, str] | None = None


_CLOCK = ("gpu_clock_hertz", "The clock of the GPU's multiprocessors, and of its memory.", GAUGE)
_ECC = ("gpu_ecc_errors_total", "ECC errors since the driver was loaded; an uncorrected one has lost data.", COUNTER)
_EVER = "ECC errors in the whole life of the GPU, as its board remembers them."
_ECC_EVER = ("gpu_ecc_errors_aggregate_total", _EVER, COUNTER)
_MEMORY_BUSY = "The share of time in which the memory was read or written."
READS = (
    Read("gpu_temperature_celsius", "The GPU's temperature.", GAUGE, "temperature"),
    Read("gpu_power_watts", "The power that the board draws.", GAUGE, "power", 1e-3),
    Read("gpu_power_limit_watts", "The power limit that is in force.", GAUGE, "power_limit", 1e-3),
    Read(*_CLOCK, "clock_sm", 1_000_000, ("clock", "sm")),
    Read(*_CLOCK, "clock_memory", 1_000_000, ("clock", "memory")),
    Read("gpu_memory_bytes", "The GPU's memory.", GAUGE, "memory_total"),
    Read("gpu_memory_used_bytes", "The memory in use.", GAUGE, "memory_used"),
    Read("gpu_utilization_ratio", "The share of time in which a kernel ran.", GAUGE, "utilization", 1e-2),
    Read("gpu_memory_utilization_ratio", _MEMORY_BUSY, GAUGE, "memory_utilization", 1e-2),
    Read(*_ECC, "ecc_corrected", 1, ("error", "corrected")),
    Read(*_ECC, "ecc_uncorrected", 1, ("error", "uncorrected")),
    Read(*_ECC_EVER, "ecc_corrected_aggregate", 1, ("error", "corrected")),
    Read(*_ECC_EVER, "ecc_uncorrected_aggregate", 1, ("error", "uncorrected")),
    Read("gpu_pcie_replays_total", "Packets that PCIe had to send again.", COUNTER, "pcie_replays"),
    Read("gpu_persistence_mode", "Whether the driver keeps the GPU ready.", GAUGE, "persistence"),
    Read("gpu_mig_mode", "Whether the GPU is in MIG mode.", GAUGE, "mig_enabled"),
)


class Held(NamedTuple):
    """A GPU, by its nvml_index, or a MIG device of it, that a container holds."""

    gpu: int
    mig_uuid: str
    container: str
    name: str
    pod: str
    namespace: str


class NodeReadings(NamedTuple):
    """What is told of a node.

    driver_version: of the kernel module, "" if none is loaded; gpus: those of the kernel's list; nvml: what NVML has
    answered, None for nothing; seen: UUIDs of the GPUs that were there since the boot, by PCI address; xids: XID errors
    by PCI address and number, None if the kernel's log cannot be read; fresh: whether the saved inventory is true;
    time, duration: when this was collected, and how long that took, in seconds; counted: see `leased`.
    """

    driver_version: str
    gpus: tuple[Gpu, ...]
    nvml: Readings | None
    seen: dict[str, str]
    xids: dict[tuple[str, int], int] | None
    held: tuple[Held, ...]
    fresh: bool
    validation: Validation | None
    time: float
    duration: float
    counted: tuple[Counted, ...] = ()


def exposition(node: NodeReadings) -> str:
    """The whole .prom file."""
    lines = [
        *_of_driver(node),
        *(_of_gpus(node) if node.driver_version else ()),
        *_of_validation(node),
        *gauge("collected_timestamp_seconds", "When this was collected.", node.time),
        *gauge("collection_duration_seconds", "How long that took.", max(0.0, node.duration)),
    ]
    return "\n".join(lines) + "\n"


def uuids(node: NodeReadings) -> dict[str, str]:
    """The UUID of each GPU of the kernel's list by its PCI address: the kernel's, or NVML's if that is one.

    A GPU whose UUID is unknown is left out, and so is each further one with the same.
    """
    told = {item.bus_id: item.uuid for item in node.nvml.gpus} if node.nvml else {}
    found: dict[str, str] = {}
    for gpu in node.gpus:
        uuid = gpu.uuid or "GPU-" + told.get(gpu.bus_id, "")[4:].lower()
        if _UUID.fullmatch(uuid) and uuid not in found.values():
            found[gpu.bus_id] = uuid
    return found


def _of_driver(node: NodeReadings) -> list[str]:
    lines = gauge("driver_up", "Whether NVIDIA's kernel module is loaded.", int(bool(node.driver_version)))
    if not node.driver_version:
        return lines
    cuda = node.nvml.cuda_version if node.nvml else 0
    info = {"version": node.driver_version, "cuda_version": f"{cuda // 1000}.{cuda % 1000 // 10}" if node.nvml else ""}
    return [
        *lines,
        *gauge("nvml_up", "Whether NVML answers, in time.", int(node.nvml is not None)),
        *metric("driver_info", "The driver, and the CUDA version that it has.", GAUGE, [(info, 1)]),
        *gauge("inventory_fresh", "Whether the saved inventory, which starts load, is true.", int(node.fresh)),
        *gauge("gpus", "The GPUs that the kernel module has.", len(node.gpus)),
    ]


def _of_gpus(node: NodeReadings) -> list[str]:
    known = uuids(node)
    answered = {item.bus_id: item for item in node.nvml.gpus} if node.nvml else {}
    infos = [
        {
            **{"uuid": known[gpu.bus_id], "index": str(gpu.nvml_index), "name": gpu.model, "pci_bus_id": gpu.bus_id},
            "driver_version": node.driver_version,
        }
        for gpu in node.gpus
        if gpu.bus_id in known
    ]
    lines = metric("gpu_info", "What a GPU is.", GAUGE, [(labels, 1) for labels in infos])
    if node.nvml is not None:
        # Without any answer nothing is known of a single GPU: nvml_up says so.
        up = {uuid: int(bus_id in answered) for bus_id, uuid in known.items()}
        up.update({uuid: 0 for uuid in node.seen.values() if uuid not in up})
        help = "Whether a GPU answers; 0 as well for one that is gone since the boot."
        lines += metric("gpu_up", help, GAUGE, [({"uuid": uuid}, value) for uuid, value in up.items()])
    readings = [(known[bus_id], answered[bus_id].values) for bus_id in known if bus_id in answered]
    for _, reads in groupby(READS, lambda read: (read.metric, read.help, read.kind)):
        lines += _of_reads([*reads], readings)
    clocks = [
        ({"uuid": uuid, "reason": reason}, int(bool(values["clocks_event"] & bit)))
        for uuid, values in readings
        if "clocks_event" in values
        for reason, bit in CLOCKS_EVENTS.items()
    ]
    lines += metric("gpu_clocks_event", "Whether this holds the clocks of a GPU down now.", GAUGE, clocks)
    return [*lines, *_held(node, known), *_xids(node, known), *_counted(node)]


def _of_reads(reads: list[Read], readings: list[tuple[str, dict[str, int]]]) -> list[str]:
    """One metric of all GPUs."""
    samples: list[tuple[dict[str, str], float]] = []
    for uuid, values in readings:
        for read in reads:
            value = values.get(read.value)
            if value is not None:
                labels = {"uuid": uuid, **dict([read.label] if read.label else [])}
                samples.append((labels, value if read.scale == 1 else value * read.scale))
    return metric(reads[0].metric, reads[0].help, reads[0].kind, samples)


def _held(node: NodeReadings, known: dict[str, str]) -> list[str]:
    """Who holds which GPU, so that a GPU's values can be joined with a pod."""
    by_index = {gpu.nvml_index: known.get(gpu.bus_id, "") for gpu in node.gpus}
    rows = [(by_index.get(item.gpu, ""), *item[1:]) for item in dict.fromkeys(node.held)]
    names = ("uuid", *Held._fields[1:])
    samples = [(dict(zip(names, row)), 1) for row in rows if row[0]][:_MOST_HELD]
    return metric("gpu_container_info", "A container that holds a GPU, or a MIG device of it.", GAUGE, samples)


def _xids(node: NodeReadings, known: dict[str, str]) -> list[str]:
    """The XID errors of GPUs that are there, or were."""
    named = {**node.seen, **{place(bus_id): uuid for bus_id, uuid in known.items()}}
    samples = [
        ({"uuid": named[pci], "xid": str(number)}, count)
        for (pci, number), count in sorted((node.xids or {}).items())
        if pci in named
    ]
    return [
        *gauge("kernel_log_readable", "Whether the kernel's log can be read.", int(node.xids is not None)),
        *metric("gpu_xid_errors_total", "XID errors in the kernel's log since the boot.", COUNTER, samples),
    ]


def _counted(node: NodeReadings) -> list[str]:
    """Leases and health, by the names that requests use."""
    leases = [({"device": it.title}, len(it.leases)) for it in node.counted]
    health = [({"device": it.title}, int(not it.unhealthy)) for it in node.counted]
    return [
        *metric("gpu_leases", "The containers that hold a device, as gpu-holders counts them.", GAUGE, leases),
        *metric("gpu_healthy", "Whether nothing is known against a device.", GAUGE, health),
    ]


def _of_validation(node: NodeReadings) -> list[str]:
    """The last validation, if it was of this driver, or of none as there is none."""
    last = node.validation
    if last is None or last.driver_version != node.driver_version:
        return []
    samples = [({"step": step.name}, int(step.outcome == PASSED)) for step in last.steps if step.outcome != SKIPPED]
    return [
        *metric("validation_passed", "Whether a step of the last validation has passed.", GAUGE, samples),
        *gauge("validation_timestamp_seconds", "When the last validation ended.", last.time),
    ]
