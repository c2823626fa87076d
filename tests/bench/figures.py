# SPDX-License-Identifier: Apache-2.0
"""From samples to figures: medians, percentiles, ratios, goals, slopes.  Pure.

Must not: judge by absolute times; only ratios within one pass mean anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, median, quantiles
from typing import Any

from tests.bench.variants import MEMORY_GOAL, REFERENCE, Variant


def spread(values: list[float]) -> dict[str, float]:
    """A measure as the table and the JSON have it; 0 for none."""
    if len(values) < 2:
        return dict.fromkeys(("median", "p90", "p99"), sum(values))
    hundredths = quantiles(values, n=100, method="inclusive")
    return {name: round(hundredths[share - 1], 4) for name, share in (("median", 50), ("p90", 90), ("p99", 99))}


def slope(points: Sequence[tuple[float, float]]) -> float:
    """By how much y grows with x: least squares."""
    middle_x, middle_y = mean(x for x, _ in points), mean(y for _, y in points)
    width = sum((x - middle_x) ** 2 for x, _ in points)
    return sum((x - middle_x) * (y - middle_y) for x, y in points) / width if width else 0.0


def ratio(value: float, to: float) -> float:
    """0 where there is nothing to compare with."""
    return round(value / to, 4) if to else 0.0


def runtime(samples: dict[str, list[list[Any]]]) -> dict[str, Any]:
    """One entry for each call, with what it takes beyond the first, in the second's: /bin/true and P."""
    found = {title: load(taken) for title, taken in samples.items()}
    true, bare, *_ = [row["run"]["median"] for row in found.values()]
    return {title: {**row, "added_in_p": ratio(row["run"]["median"] - true, bare)} for title, row in found.items()}


def rows(variants: Sequence[Variant], samples: dict[str, list[list[Any]]]) -> dict[str, Any]:
    """One entry for each variant, in their order.  A failed start counts as failed and nowhere else."""
    found = {variant.key: _row(variant, samples[variant.key]) for variant in variants}
    bare = found[REFERENCE]
    for row in found.values():
        for share in ("median", "p90"):
            row[f"{share}_in_p"] = ratio(row["hook"][share], bare["hook"]["median"])
        row["memory_ratio"] = ratio(row["memory"], bare["memory"])
        row["met"] = _met(row["median_in_p"], row["goal"])
        row["memory_met"] = _met(row["memory_ratio"], row["memory_goal"])
    return found


def _row(variant: Variant, samples: list[list[Any]]) -> dict[str, Any]:
    good = [sample for sample in samples if not sample[5]]
    return {
        **load(samples),
        "title": variant.title,
        "goal": variant.goal,
        # As that of time: of the starts that a node pays for again and again.
        "memory_goal": MEMORY_GOAL if variant.goal else 0.0,
        "saved": sum(1 for sample in good if sample[4]),
        "samples": [[round(value, 3) for value in sample[:3]] for sample in good],
    }


def _met(value: float, goal: float) -> bool | None:
    """None if there is no goal, or nothing to hold against it."""
    return value <= goal if goal and value else None


def load(samples: list[list[Any]]) -> dict[str, Any]:
    """What every part has of its samples."""
    good = [sample for sample in samples if not sample[5]]
    return {
        "starts": len(samples),
        "failed": len(samples) - len(good),
        "said": next((sample[5] for sample in samples if sample[5]), ""),
        "run": spread([sample[0] for sample in good]),
        "hook": spread([sample[1] for sample in good]),
        "cpu": spread([sample[2] for sample in good]),
        "memory": median([sample[3] for sample in good] or [0]),
    }
