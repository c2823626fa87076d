# SPDX-License-Identifier: Apache-2.0
"""The lanes in virtual machines, which `make test` does not start, name tests that exist."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from itertools import chain
from typing import Any

import pytest

from tests.aarch64 import rows as aarch64
from tests.bench import figures
from tests.bench.variants import VARIANTS
from tests.memory import rows as memory
from tests.unit import starts
from tests.vocabulary.host import Row
from tests.vocabulary.rows import LISTED, ROWS

LANES: dict[str, Iterable[tuple[str, ...]]] = {"aarch64": aarch64.ROWS.values(), "memory": memory.ROWS.values()}


@pytest.mark.parametrize("lane", LANES)
def test_each_row_names_tests_that_exist(lane: str) -> None:
    named = [*chain.from_iterable(LANES[lane])]
    line = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *named]
    done = subprocess.run(line, capture_output=True, text=True, cwd=starts.ROOT)
    assert done.returncode == 0, done.stderr


# --- NVIDIA's vocabulary: every row is served or refused, and none is missing


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.section} {row.name[:60]}")
def test_the_answer_is_as_the_row_says(row: Row) -> None:
    assert row.holds(), f"{row.section} {row.name} is not {row.answer}"


def test_no_row_is_missing_and_none_is_made_up() -> None:
    assert sorted(f"{row.section}|{row.name}" for row in ROWS) == sorted(LISTED)


# --- what the bench calls met: a goal is judged by what was measured beside it, and a failed start is no figure


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
