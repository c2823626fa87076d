# SPDX-License-Identifier: Apache-2.0
"""Counters of starts in Prometheus's text format, from the lines that hooks write.  Pure.

A line that is incomplete, or that no hook of ours has written, is not counted.  Must not be on the hook's path.
"""

from __future__ import annotations

from oci_gpu_hook.node.exporters import exposition as text_format
from oci_gpu_hook.report.entry import OUTCOMES, REFUSALS, STEPS

# The upper bounds of the histogram, in seconds; a start takes some tens of milliseconds.
BUCKETS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)

_SUM = "microseconds"
_WHAT = "GPUs or other accelerators"
_MOST_DIGITS = 12
_WHY = {"started": ("-",), "ignored": ("-",), "refused": tuple(REFUSALS.values()), "failed": STEPS}


def zeros() -> dict[str, int]:
    """All counters at 0: Prometheus notices an increase only of a counter that it has seen before."""
    keys = [f"{outcome} {why}" for outcome in OUTCOMES for why in _WHY[outcome]]
    return dict.fromkeys([*keys, *map(str, range(len(BUCKETS) + 1)), _SUM], 0)


def count(text: str, found: dict[str, int]) -> None:
    """Add the lines of a spool, which `entry.counted` has made, to the counters in `found`."""
    for line in text.split("\n"):
        took, _, kind = line.partition(" ")
        outcome, _, why = kind.partition(" ")
        if why not in _WHY.get(outcome, ()) or len(took) > _MOST_DIGITS or not (took.isascii() and took.isdigit()):
            continue
        found[kind] += 1
        found[_SUM] += int(took)
        bucket = sum([int(took) > bound * 1e6 for bound in BUCKETS])
        found[str(bucket)] += 1


def exposition(totals: dict[str, int]) -> str:
    """The whole .prom file."""
    starts = {outcome: sum([totals[f"{outcome} {why}"] for why in _WHY[outcome]]) for outcome in OUTCOMES}
    refusals = {why: totals[f"refused {why}"] for why in _WHY["refused"]}
    failures = {step: totals[f"failed {step}"] for step in _WHY["failed"]}
    lines = [
        *_counter("starts", f"Starts of containers that ask for {_WHAT}.", "outcome", starts),
        *_counter("refusals", "Starts that were refused, by reason.", "reason", refusals),
        *_counter("failures", "Starts that failed, by the step.", "step", failures),
        *_histogram(totals),
    ]
    return "\n".join(lines) + "\n"


def _counter(name: str, help: str, label: str, values: dict[str, int]) -> list[str]:
    """The lines of one counter, by the values of its label."""
    samples = [({label: value}, number) for value, number in values.items()]
    return text_format.metric(f"{name}_total", help, text_format.COUNTER, samples)


def _histogram(totals: dict[str, int]) -> list[str]:
    name = "start_duration_seconds"
    help = "What the hook takes of a start, its interpreter's start included."
    lines = text_format.head(name, help, text_format.HISTOGRAM)
    so_far = 0
    for index, bound in enumerate((*BUCKETS, "+Inf")):
        so_far += totals[str(index)]
        lines.append(text_format.sample(f"{name}_bucket", {"le": str(bound)}, so_far))
    name = text_format.PREFIX + name
    return [*lines, f"{name}_sum {totals[_SUM] / 1e6:.6f}", f"{name}_count {so_far}"]
