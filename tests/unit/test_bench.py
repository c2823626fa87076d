# SPDX-License-Identifier: Apache-2.0
"""The bench's pure parts: figures, tables, charts, counts; and the stopwatch, on a package of a few lines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.bench import calls, charts, figures, growth, instructions, phases, stopwatch, svg, tables
from tests.bench.variants import OURS, variants
from tests.gpunode import description
from tests.unit import starts

STOPWATCH = Path(stopwatch.__file__)


def sample(hook: float, *, run: float = 30.0, memory: int = 8000, said: str = "") -> list[Any]:
    """A start as it comes back from the node."""
    return [run, hook, hook, memory, False, said]


def measured() -> dict[str, list[list[Any]]]:
    """P is 10 ms; every hook of ours takes 16."""
    samples = {row.key: [sample(16.0), sample(16.0), sample(16.0)] for row in variants(False)}
    samples["bare"] = [sample(9.0), sample(10.0), sample(30.0)]
    samples["none"] = [sample(0.0, run=20.0)]
    return samples


def bench(samples: dict[str, list[list[Any]]]) -> dict[str, Any]:
    """A whole bench.json."""
    spent = [{"imports": 3.0, "mounts": 2.0, "rest": 0.5, "stopwatch": 0.1}]
    plain = {key: [10.0] for key in phases.PATHS} | {"left": [5.0], phases.BEGUN: [4.0]}
    traced = {"title": "bare", **calls.count(['1 openat(AT_FDCWD, "/a", O_RDONLY) = 3'])}
    loads = {"true": {"title": "true", **figures.load([sample(1.0), sample(9.0, said="no")])}}
    return {
        "date": "2026-01-02",
        "machine": {"python": "Python 3.11", "runtime": "runc 1.1"},
        "variants": figures.rows(variants(False), samples),
        "phases": phases.assemble(plain, dict.fromkeys(phases.PATHS, spent)),
        "growth": {
            "files": growth.series("files", "files", 30.0, {10: [10.0], 110: [12.0]}),
            "gpus": growth.series("GPUs", "GPUs", 100.0, {1: [10.0], 11: [12.0]}),
        },
        "calls": {"bare": traced},
        "load": {"at_once": 8, "hooks": loads},
    }


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([], 0.5, 0.0), ([7.0], 0.9, 7.0), ([3.0, 1.0, 2.0], 0.5, 2.0), ([0.0, 10.0], 0.9, 9.0)],
)
def test_a_percentile_lies_between_its_neighbours(
    values: list[float], share: float, expected: float
) -> None:
    assert figures.percentile(values, share) == pytest.approx(expected)


def test_a_slope_is_that_of_the_line() -> None:
    assert figures.slope([(1, 5), (2, 7), (3, 9)]) == pytest.approx(2.0)
    assert figures.slope([(1, 5)]) == 0.0
    assert figures.slope([(2, 5), (2, 9)]) == 0.0


def test_ratios_are_to_the_median_of_the_bare_interpreter_in_the_same_pass() -> None:
    rows = figures.rows(variants(False), measured())
    assert rows["gpu-1"]["median_in_p"] == pytest.approx(1.6)
    assert rows["bare"]["p90_in_p"] == pytest.approx(2.6)
    assert rows["gpu-1"]["added_to_run"] == pytest.approx(10.0)


def test_a_goal_is_met_up_to_its_figure_and_not_beyond() -> None:
    samples = measured()
    rows = figures.rows(variants(False), samples)
    assert (rows["gpu-1"]["met"], rows["no-request"]["met"], rows["true"]["met"]) == (
        True,
        False,
        None,
    )
    samples["gpu-1"] = [sample(16.1)]
    assert figures.rows(variants(False), samples)["gpu-1"]["met"] is False


def test_a_failed_start_is_counted_and_not_measured() -> None:
    samples = measured()
    samples["gpu-1"] += [sample(0.1, said="no GPU")]
    row = figures.rows(variants(False), samples)["gpu-1"]
    assert (row["failed"], row["starts"], row["said"]) == (1, 4, "no GPU")
    assert row["hook"]["median"] == 16.0


def test_a_hook_that_always_fails_has_no_figures_in_the_table() -> None:
    samples = measured()
    samples["gpu-8"] = [sample(5.0, said="no `GPU`\nat all")]
    text = tables.document(bench(samples), None)
    line = next(line for line in text.splitlines() if line.startswith("| 8 GPUs |"))
    assert [cell.strip() for cell in line.split("|")[2:-1]] == [""] * 14 + ["1 of 1"]
    assert "first with `no 'GPU' at all`" in text


def test_the_table_says_which_goals_are_missed() -> None:
    text = tables.document(bench(measured()), None)
    by_title = {
        line.split(" | ")[0][2:]: line for line in text.splitlines() if line.startswith("| ")
    }
    assert "**not met**" in by_title["no GPU asked for"]
    assert "| 1.60 | met |" in by_title["1 GPU, small root"]


def test_the_table_says_that_a_cold_start_saved_nothing() -> None:
    text = tables.document(bench(measured()), None)
    assert "1 GPU, no saved inventory: something was saved by 0 of 3 starts only" in text


def test_an_earlier_bench_is_compared_in_ratios() -> None:
    before = bench(measured())
    samples = measured()
    samples["gpu-1"] = [sample(12.0)]
    text = tables.document(bench(samples), json.loads(json.dumps(before)))
    assert "| 1 GPU, small root | 1.60 | 1.20 | -25% |" in text


def test_every_row_of_a_table_is_as_long_as_its_head() -> None:
    lines = tables.document(bench(measured()), bench(measured())).splitlines()
    for above, line in zip(lines, lines[1:]):
        if above.startswith("|") and line.startswith("|"):
            assert above.count("|") == line.count("|"), line


def test_a_candidate_stands_in_the_same_rounds_and_has_no_goals() -> None:
    added = variants(True)[len(variants(False)) :]
    assert len(added) == 6
    assert {(row.hook == OURS, row.goal) for row in added} == {(False, 0.0)}
    keys = [row.key for row in variants(True)]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("chart", [charts.start, charts.growth])
def test_a_chart_is_well_formed_and_stays_on_its_paper(chart: Any) -> None:
    root = ElementTree.fromstring(chart(bench(measured())))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    places = [(float(e.attrib["x"]), float(e.attrib["y"])) for e in root.iter() if "x" in e.attrib]
    assert len(places) > 20
    assert all(0 <= x <= width and 0 <= y <= height for x, y in places)


def test_a_charts_words_are_escaped() -> None:
    assert "a &lt; b" in svg.text(0, 0, "a < b")


def test_every_phase_has_a_colour() -> None:
    assert set(phases.NAMES) == set(charts.COLOURS)


def test_phases_and_what_is_left_make_up_the_whole() -> None:
    path = bench(measured())["phases"]["paths"]["gpu-1"]
    assert path["phases"]["door and shutdown"] == pytest.approx(0.5)
    assert sum(path["phases"].values()) == pytest.approx(path["whole"])


def test_a_door_that_answers_by_itself_has_no_interpreter() -> None:
    plain = {key: [10.0] for key in phases.PATHS} | {"left": [5.0], phases.BEGUN: [4.0]}
    found = phases.assemble(plain, {"no-request": [{}]})["paths"]["no-request"]["phases"]
    assert {name for name, taken in found.items() if taken} == {"door and shutdown"}


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("/x/oci_gpu_hook/container/cgroup.py", "cgroup"),
        ("/x/oci_gpu_hook/container/new.py", "mounts"),
        ("/x/oci_gpu_hook/host/inventory.py", "reading"),
        ("/x/oci_gpu_hook/ipclabels.py", "labels"),
        ("/x/oci_gpu_hook/linux.py", ""),
        ("/x/plan.py", ""),
    ],
)
def test_a_rooms_functions_belong_to_its_phase(file: str, expected: str) -> None:
    assert stopwatch.phase(file) == expected


def watched(tmp_path: Path, what: str, end: str) -> dict[str, float]:
    """What the stopwatch says of a package that waits 20 ms in `plan`, called from `config`."""
    package = tmp_path / "oci_gpu_hook"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "plan.py").write_text("import time\ndef make():\n    time.sleep(0.02)\n")
    (package / "config.py").write_text(
        "from oci_gpu_hook import plan\ndef read():\n    plan.make()\n"
    )
    (package / "__main__.py").write_text("def main():\n    pass\n")
    door = tmp_path / "door"
    lines = [
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})",
        "from oci_gpu_hook.__main__ import main",
        "from oci_gpu_hook.config import read",
    ]
    door.write_text("\n".join([*lines, "read()", end, ""]))
    record = tmp_path / "record"
    command = [
        sys.executable,
        "-ISB",
        str(STOPWATCH),
        what,
        str(record),
        str(door),
        "createRuntime",
    ]
    assert subprocess.run(command).returncode == 3
    return phases.read(record)


@pytest.mark.parametrize(
    "end", ["sys.exit(3)", "import posix; posix._exit(3)", "import os; os._exit(3)"]
)
def test_the_stopwatch_charges_the_room_at_work_however_it_ends(tmp_path: Path, end: str) -> None:
    spent = watched(tmp_path, "time", end)
    assert spent["plan"] >= 20
    assert spent["plan"] > spent["reading"]
    assert spent["imports"] > 0


def test_the_stopwatch_counts_the_lines_that_were_run(tmp_path: Path) -> None:
    lines = watched(tmp_path, "lines", "sys.exit(3)")
    assert round(lines["plan.py:make"] * 1e6) == 3  # the call, its line, the return
    assert "config.py:<module>" in lines


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
    for field in ("uuid", "bus_id", "minor", "serial"):
        assert len({getattr(gpu, field) for gpu in gpus}) == 16, field


def counted(instructions: int, **lines: int) -> dict[str, Any]:
    return {"gpu-1": {"instructions": instructions, "lines": lines}}


def test_ten_percent_more_instructions_pass_and_more_do_not() -> None:
    assert instructions.compare(counted(1000), counted(1100))[1] is False
    assert instructions.compare(counted(1000), counted(1101))[1] is True
    assert instructions.compare({}, counted(1))[1] is True


def test_what_grew_is_named_most_first() -> None:
    lines, failed = instructions.compare(
        counted(1000, a=5, b=5, c=9), counted(2000, a=6, b=50, c=1, d=3)
    )
    assert failed
    assert [line.split(":")[0].strip() for line in lines] == ["gpu-1", "b", "d", "a"]


def test_counts_are_read_from_perf_and_from_callgrind() -> None:
    text = (
        "# started on\n\n123,,cpu_core/instructions:u/,5,100.00,,\n7,,instructions:u,5,100.00,,\n"
    )
    assert instructions.perf_lines(text) == [123, 7]
    assert instructions.perf_lines("<not supported>,,instructions:u,0,100.00,,") == []
    assert instructions.callgrind_total("events: Ir\nsummary: 42\n\ntotals: 42\n") == 42
    assert instructions.callgrind_total("") == 0


def test_the_counted_door_is_ours_with_a_seed() -> None:
    door = starts.DOOR.read_text()
    seeded = instructions.with_seed(door.encode()).decode()
    assert seeded.replace(" PYTHONHASHSEED=0", "") == door
    # Where the others are given, which are all that an interpreter sees.
    (given,) = [line for line in seeded.splitlines() if "PYTHONHASHSEED" in line]
    assert all(f" {name}=" in given for name in starts.environment())
    with pytest.raises(ValueError, match="PYTHONUTF8"):
        instructions.with_seed(b"#!/bin/bash\n")


def test_the_interpreters_share_is_that_of_one_started_as_the_door_starts_it() -> None:
    left = phases.left_at_once(starts.DOOR.read_text(), "/usr/bin/python3")
    given = starts.environment(Path("/usr/lib/oci-gpu-hook"))
    assert dict(word.split("=", 1) for word in left.environment) == given
    leave = ["-c", "import posix; posix._exit(0)"]
    assert left[:2] == ("/usr/bin/python3", ["python3", starts.FLAGS, *leave])
    with pytest.raises(ValueError, match="left_at_once"):
        phases.left_at_once(starts.DOOR.read_text(), "/opt/python")
