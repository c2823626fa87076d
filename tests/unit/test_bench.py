# SPDX-License-Identifier: Apache-2.0
"""What the bench calls met: a goal is judged by what was measured beside it, and a failed start is no figure."""

from __future__ import annotations

from typing import Any

from tests.bench import figures
from tests.bench.variants import VARIANTS


def sample(hook: float, *, run: float = 30.0, said: str = "") -> list[Any]:
    """A start as it comes back from the node."""
    return [run, hook, hook, 8000, False, said]


def test_a_goal_is_met_up_to_its_figure_and_not_beyond() -> None:
    """P is 10 ms; every hook of ours takes 17."""
    samples = {row.key: [sample(17.0), sample(17.0), sample(0.1, said="no GPU")] for row in VARIANTS}
    samples["bare"] = [sample(9.0), sample(10.0), sample(30.0)]
    samples["none"] = [sample(0.0, run=20.0)]
    rows = figures.rows(VARIANTS, samples)
    assert [rows[key]["met"] for key in ("gpu-1", "no-request", "true")] == [True, False, None]
    assert (rows["gpu-1"]["failed"], rows["gpu-1"]["hook"]["median"]) == (1, 17.0)
    samples["gpu-1"] = [sample(17.1)]
    assert figures.rows(VARIANTS, samples)["gpu-1"]["met"] is False
