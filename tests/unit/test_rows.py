# SPDX-License-Identifier: Apache-2.0
"""The lanes in virtual machines, which `make test` does not start, name tests that exist, and that they can load."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from configparser import ConfigParser
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.aarch64 import rows as aarch64
from tests.bench import figures
from tests.bench.variants import VARIANTS
from tests.guest import base
from tests.memory import rows as memory
from tests.unit import starts
from tests.vocabulary.host import Row
from tests.vocabulary.rows import LISTED, ROWS

LANES: dict[str, Iterable[tuple[str, ...]]] = {"aarch64": aarch64.ROWS.values(), "memory": memory.ROWS.values()}


def only_here() -> set[str]:
    """The modules that tests may import and the machines have not."""
    setup = ConfigParser()
    setup.read(starts.ROOT / "setup.cfg")
    lines = [line for name in ("test", "generate") for line in setup["options.extras_require"][name].splitlines()]
    names = {match[0].lower() for line in lines if (match := re.match(r"\w+(?= )", line))}
    there = " ".join((*base.WHEELS, *base.PACKAGES))
    # PyYAML is python3-yaml there.
    return {name for name in names if name.removeprefix("py") not in there}


@pytest.mark.parametrize("lane", LANES)
def test_each_row_names_tests_that_its_machine_can_load(lane: str, tmp_path: Path) -> None:
    for name in only_here():
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('{name}: tests/guest/base.py has none')")
    named = [*chain.from_iterable(LANES[lane])]
    line = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-p", "no:fakefs", *named]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(line, capture_output=True, text=True, cwd=starts.ROOT, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


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
