# SPDX-License-Identifier: Apache-2.0
"""What the bench calls met: a goal is judged by what was measured beside it, and a failed start is no figure."""

from __future__ import annotations

from typing import Any

from tests.bench import figures
from tests.bench.variants import variants


def sample(hook: float, *, run: float = 30.0, memory: int = 8000, said: str = "") -> list[Any]:
    """A start as it comes back from the node."""
    return [run, hook, hook, memory, False, said]


def measured() -> dict[str, list[list[Any]]]:
    """P is 10 ms; every hook of ours takes 17."""
    samples = {row.key: [sample(17.0), sample(17.0), sample(17.0)] for row in variants(False)}
    samples["bare"] = [sample(9.0), sample(10.0), sample(30.0)]
    samples["none"] = [sample(0.0, run=20.0)]
    return samples


def test_a_goal_is_met_up_to_its_figure_and_not_beyond() -> None:
    samples = measured()
    rows = figures.rows(variants(False), samples)
    assert [rows[key]["met"] for key in ("gpu-1", "no-request", "true")] == [True, False, None]
    samples["gpu-1"] = [sample(17.1)]
    assert figures.rows(variants(False), samples)["gpu-1"]["met"] is False


def test_a_failed_start_is_counted_and_not_measured() -> None:
    samples = measured()
    samples["gpu-1"] += [sample(0.1, said="no GPU")]
    row = figures.rows(variants(False), samples)["gpu-1"]
    assert (row["failed"], row["starts"], row["said"]) == (1, 4, "no GPU")
    assert row["hook"]["median"] == 17.0
