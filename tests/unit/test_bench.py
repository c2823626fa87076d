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


def test_mounts_are_judged_by_what_the_same_hook_takes_beside_none() -> None:
    times = {0: 10.0, 500: 11.0, 2000: 13.6, 5000: 19.0}
    samples = {f"gpu-1 old {mounts}": [sample(it)] for mounts, it in times.items()}
    samples |= {f"candidate-gpu-1 old {mounts}": [sample(2 * it)] for mounts, it in times.items()}
    samples["gpu-1 old 500"].append(sample(99.0, said="no GPU"))
    rows = figures.mounts(samples)
    ours = [row for row in rows.values() if row["title"] == "1 GPU, old root"]
    assert [(row["mounts"], row["of_none"], row["met"]) for row in ours] == [
        (0, 1.0, None),
        (500, 1.1, True),
        (2000, 1.36, False),
        (5000, 1.9, True),
    ]
    assert {row["met"] for row in rows.values() if "candidate" in row["title"]} == {None}
