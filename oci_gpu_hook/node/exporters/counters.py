# SPDX-License-Identifier: Apache-2.0
"""Counters of starts in Prometheus's text format, from the lines that hooks write.  Pure.

A line that is incomplete, or that no hook of ours has written, is not counted.  Must not be on the hook's path.
"""

from __future__ import annotations

import re
from collections import Counter

from oci_gpu_hook.node.exporters import exposition as text_format
from oci_gpu_hook.report.records import OUTCOMES, REFUSALS, STEPS

# The upper bounds of the histogram, in seconds; a start takes some tens of milliseconds.
BUCKETS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)

_SUM = "microseconds"
_LINE = re.compile("([0-9]{1,12}) ([a-z]+) ([a-z-]+)")
_WHY = {"started": ("-",), "ignored": ("-",), "refused": tuple(REFUSALS.values()), "failed": STEPS}


def count(text: str) -> Counter[str]:
    """The counters of a spool's lines, which `entry.counted` has made."""
    found: Counter[str] = Counter()
    for line in text.split("\n"):
        match = _LINE.fullmatch(line)
        if match and match[3] in _WHY.get(match[2], ()):
            took = int(match[1])
            found[f"{match[2]} {match[3]}"] += 1
            found[_SUM] += took
            found[str(sum([took > bound * 1e6 for bound in BUCKETS]))] += 1
    return found


def exposition(totals: Counter[str]) -> str:
    """The whole .prom file; with zeros, as Prometheus notices an increase only of a counter that it has seen before."""
    starts = {outcome: sum([totals[f"{outcome} {why}"] for why in _WHY[outcome]]) for outcome in OUTCOMES}
    refusals = {why: totals[f"refused {why}"] for why in _WHY["refused"]}
    failures = {step: totals[f"failed {step}"] for step in _WHY["failed"]}
    lines = []
    for name, label, values, help in (
        ("starts_total", "outcome", starts, "Starts of containers that ask for GPUs or other accelerators."),
        ("refusals_total", "reason", refusals, "Starts that were refused, by reason."),
        ("failures_total", "step", failures, "Starts that failed, by the step."),
    ):
        lines += text_format.metric(name, help, text_format.COUNTER, [({label: key}, values[key]) for key in values])
    return "\n".join([*lines, *_histogram(totals)]) + "\n"


def _histogram(totals: Counter[str]) -> list[str]:
    name = "start_duration_seconds"
    help = "What the hook takes of a start, its interpreter's start included."
    lines = text_format.head(name, help, text_format.HISTOGRAM)
    so_far = 0
    for index, bound in enumerate((*BUCKETS, "+Inf")):
        so_far += totals[str(index)]
        lines.append(text_format.sample(f"{name}_bucket", {"le": str(bound)}, so_far))
    name = text_format.PREFIX + name
    return [*lines, f"{name}_sum {totals[_SUM] / 1e6:.6f}", f"{name}_count {so_far}"]
