# SPDX-License-Identifier: Apache-2.0
"""Prometheus's text format, version 0.0.4: the lines of a metric.  Pure.  Must not know any metric."""

from __future__ import annotations

from collections.abc import Iterable

# Names are kept: people's rules and dashboards use them.
PREFIX = "oci_gpu_hook_"
GAUGE, COUNTER, HISTOGRAM = "gauge", "counter", "histogram"

# Of a label's value: containers and images have names that others give them.
_LONGEST = 200
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n"}


def metric(name: str, help: str, kind: str, samples: Iterable[tuple[dict[str, str], float]]) -> list[str]:
    """All lines of a metric, named without our prefix, each once; none if it has no sample."""
    lines = dict.fromkeys([sample(name, labels, value) for labels, value in samples])
    return [*head(name, help, kind), *lines] if lines else []


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
