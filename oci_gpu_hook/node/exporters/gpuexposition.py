# SPDX-License-Identifier: Apache-2.0
"""The metrics of GPUs that no other exporter has, in Prometheus's text format, from values.  Pure.

Who holds a GPU and whether it is healthy, and what the hook goes by: the driver, NVML, the inventory, the validation.
A GPU's sensors and counters are DCGM exporter's.  Must not look at anything.
"""

from __future__ import annotations

from oci_gpu_hook.node.engines.containermemory import MemoryUse
from oci_gpu_hook.node.exporters.exposition import GAUGE, gauge, metric
from oci_gpu_hook.node.gpus.holdercount import Counted
from oci_gpu_hook.node.machine.validationrecord import PASSED, SKIPPED, Validation
from oci_gpu_hook.record import NamedTuple

# More than one container for each of sixteen GPUs' MIG devices.
_MAX_HELD = 512


class NodeState(NamedTuple):
    """driver_version: of the kernel module, "" if none is loaded; gpus: how many it has; answers: whether NVML does;
    log_readable: whether the kernel's log is; fresh: whether the saved inventory is true; held: labels of each device
    with a container that holds it; counted: see `holdercount`; memory: labels of a container and a device, and what it
    has there; time, duration: when this was collected, and how long that took, in seconds.
    """

    driver_version: str
    gpus: int
    answers: bool
    log_readable: bool
    fresh: bool
    held: list[dict[str, str]]
    counted: tuple[Counted, ...]
    memory: list[tuple[dict[str, str], MemoryUse]]
    validation: Validation | None
    time: float
    duration: float


def exposition(node: NodeState) -> str:
    lines = [
        *gauge("driver_up", "Whether NVIDIA's kernel module is loaded.", int(bool(node.driver_version))),
        *(_of_gpus(node) if node.driver_version else ()),
        *_of_validation(node),
        *gauge("collected_timestamp_seconds", "When this was collected.", node.time),
        *gauge("collection_duration_seconds", "How long that took.", max(0.0, node.duration)),
    ]
    return "\n".join(lines) + "\n"


def _of_gpus(node: NodeState) -> list[str]:
    """Who holds which GPU, by UUID; leases and health by the names that requests use."""
    held = [(labels, 1) for labels in node.held[:_MAX_HELD]]
    leases = [({"device": it.title}, len(it.leases)) for it in node.counted]
    health = [({"device": it.title}, int(not it.unhealthy)) for it in node.counted]
    # Where the kernel counts it: its dmem controller.
    uses = node.memory[:_MAX_HELD]
    used = [(labels, use.used) for labels, use in uses]
    peaks = [(labels, use.peak) for labels, use in uses if use.peak]
    limits = [(labels, use.limit) for labels, use in uses if use.limit]
    return [
        *gauge("nvml_up", "Whether NVML answers, in time.", int(node.answers)),
        *gauge("kernel_log_readable", "Whether the kernel's log can be read.", int(node.log_readable)),
        *gauge("inventory_fresh", "Whether the saved inventory, which starts load, is true.", int(node.fresh)),
        *gauge("gpus", "The GPUs that the kernel module has.", node.gpus),
        *metric("gpu_container_info", "A container that holds a GPU, or a MIG device of it.", GAUGE, held),
        *metric("gpu_memory_used_bytes", "What a container has of a device's memory.", GAUGE, used),
        *metric("gpu_memory_peak_bytes", "The most that it had.", GAUGE, peaks),
        *metric("gpu_memory_limit_bytes", "What it may have at most.", GAUGE, limits),
        *metric("gpu_leases", "The containers that hold a device, as gpu-holders counts them.", GAUGE, leases),
        *metric("gpu_healthy", "Whether nothing is known against a device.", GAUGE, health),
    ]


def _of_validation(node: NodeState) -> list[str]:
    """The last validation, if it was of this driver, or of none as there is none."""
    last = node.validation
    if last is None or last.driver_version != node.driver_version:
        return []
    samples = [({"step": step.name}, int(step.outcome == PASSED)) for step in last.steps if step.outcome != SKIPPED]
    return [
        *metric("validation_passed", "Whether a step of the last validation has passed.", GAUGE, samples),
        *gauge("validation_timestamp_seconds", "When the last validation ended.", last.time),
    ]
