# SPDX-License-Identifier: Apache-2.0
"""The bench's pure parts: figures, tables, counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.bench import calls, figures, growth, tables
from tests.bench.variants import variants
from tests.gpunode import description


def sample(hook: float, *, run: float = 30.0, memory: int = 8000, said: str = "") -> list[Any]:
    """A start as it comes back from the node."""
    return [run, hook, hook, memory, False, said]


def measured() -> dict[str, list[list[Any]]]:
    """P is 10 ms; every hook of ours takes 17."""
    samples = {row.key: [sample(17.0), sample(17.0), sample(17.0)] for row in variants(False)}
    samples["bare"] = [sample(9.0), sample(10.0), sample(30.0)]
    samples["none"] = [sample(0.0, run=20.0)]
    return samples


def bench(samples: dict[str, list[list[Any]]]) -> dict[str, Any]:
    """A whole bench.json."""
    traced = {"title": "bare", **calls.count(['1 openat(AT_FDCWD, "/a", O_RDONLY) = 3'])}
    loads = {"true": {"title": "true", **figures.load([sample(1.0), sample(9.0, said="no")])}}
    return {
        "date": "2026-01-02",
        "machine": {"python": "Python 3.11", "runtime": "runc 1.1"},
        "variants": figures.rows(variants(False), samples),
        "growth": {
            "files": growth.series("files", 30.0, {10: [10.0], 110: [12.0]}),
            "gpus": growth.series("GPUs", 100.0, {1: [10.0], 11: [12.0]}),
        },
        "calls": {"bare": traced},
        "load": {"at_once": 8, "hooks": loads},
    }


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([], 0.5, 0.0), ([7.0], 0.9, 7.0), ([3.0, 1.0, 2.0], 0.5, 2.0), ([0.0, 10.0], 0.9, 9.0)],
)
def test_a_percentile_lies_between_its_neighbours(values: list[float], share: float, expected: float) -> None:
    assert figures.percentile(values, share) == pytest.approx(expected)


def test_a_slope_is_that_of_the_line() -> None:
    assert figures.slope([(1, 5), (2, 7), (3, 9)]) == pytest.approx(2.0)
    assert figures.slope([(1, 5)]) == 0.0
    assert figures.slope([(2, 5), (2, 9)]) == 0.0


def test_ratios_are_to_the_median_of_the_bare_interpreter_in_the_same_pass() -> None:
    rows = figures.rows(variants(False), measured())
    assert rows["gpu-1"]["median_in_p"] == pytest.approx(1.7)
    assert rows["bare"]["p90_in_p"] == pytest.approx(2.6)
    assert rows["gpu-1"]["added_to_run"] == pytest.approx(10.0)


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


def test_a_hook_that_always_fails_has_no_figures_in_the_table() -> None:
    samples = measured()
    samples["gpu-8"] = [sample(5.0, said="no `GPU`\nat all")]
    text = tables.document(bench(samples), None)
    line = next(line for line in text.splitlines() if line.startswith("| 8 GPUs |"))
    assert [cell.strip() for cell in line.split("|")[2:-1]] == [""] * 14 + ["1 of 1"]
    assert "first with `no 'GPU' at all`" in text


def test_the_table_says_which_goals_are_missed_and_that_a_cold_start_saved_nothing() -> None:
    text = tables.document(bench(measured()), None)
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    by_title = {line.split(" | ")[0][2:]: line for line in lines}
    assert "**not met**" in by_title["no GPU asked for"]
    assert "| 1.70 | met |" in by_title["1 GPU, small root"]
    assert "1 GPU, no saved inventory: something was saved by 0 of 3 starts only" in text


def test_an_earlier_bench_is_compared_in_ratios() -> None:
    before = bench(measured())
    samples = measured()
    samples["gpu-1"] = [sample(12.0)]
    text = tables.document(bench(samples), json.loads(json.dumps(before)))
    assert "| 1 GPU, small root | 1.70 | 1.20 | -29% |" in text


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
    text = tables.document({**bench(measured()), "mounts": rows}, None)
    assert "| 1 GPU, old root | 2000 | 13.60 | 13.60 | 1.36 | 1.35 | **not met** |" in text
    assert "| 1 GPU, old root | 500 | 11.00 |" in text and "| 1 of 2 |" in text


TRACE = """\
7 execve("/usr/bin/python3", ["python3"], 0x7 /* 2 vars */) = 0
7 openat(AT_FDCWD, "/etc/absent", O_RDONLY|O_CLOEXEC) = -1 ENOENT (No such file or directory)
7 openat2(3, "/config.json", {flags=O_RDONLY}, 24) = 4
7 read(0, <unfinished ...>
7 <... read resumed>"{}", 4096) = 2
7 clone3({flags=CLONE_VFORK}, 88) = 8
8 exit_group(0) = ?
8 +++ exited with 0 +++
""".splitlines()


def test_system_calls_are_counted_once_with_their_children() -> None:
    found = calls.count(TRACE)
    assert (found["calls"], found["failed"]) == (6, 1)
    assert (found["processes"], found["programs"]) == (1, 1)
    assert found["files"] == ["/config.json"]


def test_a_generated_node_has_gpus_that_differ(tmp_path: Path) -> None:
    path = tmp_path / "sixteen.json"
    path.write_text(json.dumps(growth.describe(16)))
    gpus = description.load(str(path)).gpus
    assert len(gpus) == 16
    for field in ("uuid", "bus_id", "minor"):
        assert len({getattr(gpu, field) for gpu in gpus}) == 16, field
