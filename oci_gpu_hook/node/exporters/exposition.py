# SPDX-License-Identifier: Apache-2.0
"""Prometheus's text format, version 0.0.4, and in it the metrics of GPUs that no other exporter has.  Pure.

Who holds a GPU, whether it is healthy, and what the hook goes by.  A GPU's sensors and counters are DCGM exporter's.
"""

from __future__ import annotations

from collections.abc import Iterable

from oci_gpu_hook.node.engines.containerdevices import MemoryUse
from oci_gpu_hook.node.gpus.holdercount import Counted
from oci_gpu_hook.node.machine.validationrecord import PASSED, SKIPPED, Validation

# Names are kept: people's rules and dashboards use them.
PREFIX = "oci_gpu_hook_"
GAUGE, COUNTER, HISTOGRAM = "gauge", "counter", "histogram"

# Of a label's value: containers and images have names that others give them.
_LONGEST = 200
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n"}


def metric(name: str, help: str, kind: str, samples: Iterable[tuple[dict[str, str], float]]) -> list[str]:
    """All lines of a metric, named without our prefix; none if it has no sample.  Of equal labels the first one counts:
    Prometheus refuses a text with two, and two containers may have one id.
    """
    lines: dict[str, str] = {}
    for line in [sample(name, labels, value) for labels, value in samples]:
        lines.setdefault(line.rpartition(" ")[0], line)
    return [*head(name, help, kind), *lines.values()] if lines else []


def gauge(name: str, help: str, value: float) -> list[str]:
    return metric(name, help, GAUGE, [({}, value)])


def head(name: str, help: str, kind: str) -> list[str]:
    return [f"# HELP {PREFIX}{name} {help}", f"# TYPE {PREFIX}{name} {kind}"]


def sample(name: str, labels: dict[str, str], value: float) -> str:
    """Of a whole number all digits are kept."""
    pairs = []
    for label, text in labels.items():
        shown = [it if it.isprintable() or it == "\n" else "?" for it in text[:_LONGEST]]
        pairs.append(f'{label}="{"".join([_ESCAPES.get(it, it) for it in shown])}"')
    number = value if isinstance(value, int) else f"{value:.10g}"
    return f"{PREFIX}{name}{{{','.join(pairs)}}} {number}" if pairs else f"{PREFIX}{name} {number}"


# More than one container for each of sixteen GPUs' MIG devices.
_MAX_HELD = 512


def of_gpus(
    *,
    driver_version: str,
    gpus: int,
    answers: bool,
    log_readable: bool,
    fresh: bool,
    held: list[dict[str, str]],
    counted: tuple[Counted, ...],
    memory: list[tuple[dict[str, str], MemoryUse]],
    validation: Validation | None,
    time: float,
    duration: float,
) -> str:
    """driver_version: of the kernel module, "" if none is loaded; gpus: how many it has; held: labels of each device
    with a container that holds it; counted: see `holdercount`; memory: labels of a container and a device, and what it
    has there; time, duration: when this was collected, and how long that took, in seconds.
    """
    lines = gauge("driver_up", "Whether NVIDIA's kernel module is loaded.", int(bool(driver_version)))
    if driver_version:
        lines += [
            *gauge("nvml_up", "Whether NVML answers, in time.", int(answers)),
            *gauge("kernel_log_readable", "Whether the kernel's log can be read.", int(log_readable)),
            *gauge("inventory_fresh", "Whether the saved inventory, which starts load, is true.", int(fresh)),
            *gauge("gpus", "The GPUs that the kernel module has.", gpus),
        ]
        # Who holds which GPU, by UUID; leases and health by the names that requests use.
        holding = [(labels, 1) for labels in held[:_MAX_HELD]]
        leases = [({"device": it.title}, len(it.leases)) for it in counted]
        health = [({"device": it.title}, int(not it.unhealthy)) for it in counted]
        lines += [
            *metric("gpu_container_info", "A container that holds a GPU, or a MIG device of it.", GAUGE, holding),
            *metric("gpu_leases", "The containers that hold a device, as gpu-holders counts them.", GAUGE, leases),
            *metric("gpu_healthy", "Whether nothing is known against a device.", GAUGE, health),
        ]
    lines += _of_memory(memory[:_MAX_HELD])
    # If it was of this driver, or of none as there is none.
    if validation and validation.driver_version == driver_version:
        steps = [({"step": it.name}, int(it.outcome == PASSED)) for it in validation.steps if it.outcome != SKIPPED]
        lines += metric("validation_passed", "Whether a step of the last validation has passed.", GAUGE, steps)
        lines += gauge("validation_timestamp_seconds", "When the last validation ended.", validation.time)
    lines += gauge("collected_timestamp_seconds", "When this was collected.", time)
    lines += gauge("collection_duration_seconds", "How long that took.", max(0.0, duration))
    return "\n".join(lines) + "\n"


def _of_memory(uses: list[tuple[dict[str, str], MemoryUse]]) -> list[str]:
    """Where the kernel counts it, by its dmem controller; of any vendor's devices."""
    used = [(labels, use.used) for labels, use in uses]
    peaks = [(labels, use.peak) for labels, use in uses if use.peak]
    limits = [(labels, use.limit) for labels, use in uses if use.limit]
    return [
        *metric("gpu_memory_used_bytes", "What a container has of a device's memory.", GAUGE, used),
        *metric("gpu_memory_peak_bytes", "The most that it had.", GAUGE, peaks),
        *metric("gpu_memory_limit_bytes", "What it may have at most.", GAUGE, limits),
    ]
