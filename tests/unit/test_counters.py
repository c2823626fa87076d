# SPDX-License-Identifier: Apache-2.0
"""Counters: from the lines of hooks to Prometheus's text format, and a spool in which no line is lost."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from pathlib import Path
from unittest import mock

import pytest

from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.exporters import counters
from oci_gpu_hook.node.machine import outputfile
from oci_gpu_hook.report import records


def counted(text: str) -> dict[str, float]:
    """What Prometheus would read; promtool itself reads the format in tests/integration/test_gpu_metrics.py."""
    rows = [line for line in counters.exposition(counters.count(text)).splitlines() if not line.startswith("#")]
    pairs = [row.removeprefix("oci_gpu_hook_").rsplit(" ", 1) for row in rows]
    return {name: float(value) for name, value in pairs}


def test_each_line_is_counted_by_outcome_reason_and_step() -> None:
    found = counted("\n100 started -\n\n200 refused driver\n\n300 failed apply\n\n1 ignored -\n")
    names = [f'starts_total{{outcome="{outcome}"}}' for outcome in ("started", "refused", "failed", "ignored")]
    names += ['refusals_total{reason="driver"}', 'failures_total{step="apply"}']
    assert {name: value for name, value in found.items() if "_total" in name and value} == dict.fromkeys(names, 1)
    # What did not happen is there as zeros.
    assert found['refusals_total{reason="request"}'] == 0
    assert set(counted("").values()) == {0} and set(counted("")) == set(found)


def test_the_histogram_is_cumulative_and_its_bounds_are_inclusive() -> None:
    found = counted("\n5000 started -\n\n5001 started -\n\n99000000 started -\n")
    name = "start_duration_seconds"
    buckets = [found[f'{name}_bucket{{le="{bound}"}}'] for bound in ("0.005", "0.01", "5.0", "+Inf")]
    assert [*buckets, found[f"{name}_count"]] == [1, 2, 2, 3, 3]
    assert found[f"{name}_sum"] == pytest.approx(99.010001)


@pytest.mark.parametrize("text", ["x", "1 started", "1 refused -", "1 failed driver", "-1 started -", "1 started - -"])
def test_what_is_no_line_counts_for_nothing(text: str) -> None:
    assert counted(f"\n{text}\n") == counted("")


def test_a_line_that_was_cut_off_spoils_neither_itself_nor_the_next() -> None:
    whole = "\n123 refused request\n"
    for end in range(len(whole) - 2):
        assert counted(whole[:end] + "\n5 started -\n") == counted("\n5 started -\n")


@pytest.fixture()
def folder(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    host = tmp_path_factory.mktemp("host")
    (host / "run").mkdir()
    monkeypatch.setattr(counters, "HostRoot", lambda: HostRoot(str(host)))
    for module in (records, counters):
        monkeypatch.setattr(module, "SPOOL", str(tmp_path / "starts"))
    monkeypatch.setattr(counters, "_FOLDER", str(tmp_path))
    monkeypatch.setattr(counters, "_TOTALS", str(tmp_path / "metrics.json"))
    return tmp_path


def total() -> int:
    return sum([value for key, value in counters.added_up().items() if key[0].isalpha() and " " in key])


def test_without_a_spool_nobody_counts(folder: Path) -> None:
    records.to_spool(b"\n1 started -\n")
    assert list(folder.iterdir()) == []
    counters.turn()
    records.to_spool(b"\n1 started -\n")
    assert total() == 1


def test_many_hooks_and_collectors_at_once_lose_no_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "_FULL", 2000)
    counters.turn()
    fork = multiprocessing.get_context("fork")
    writers = [fork.Process(target=_write, args=(500,)) for _ in range(8)]
    for writer in writers:
        writer.start()
    turns = 0
    while any(writer.is_alive() for writer in writers):
        with counters.lock():
            # A hook finishes its line in microseconds, a collector comes again after half a minute.
            before = os.stat(folder / "starts").st_ino
            counters.turn()
            turns += os.stat(folder / "starts").st_ino != before
        writers[0].join(0.2)
    assert [writer.exitcode for writer in writers] == [0] * 8
    assert total() == 4000
    assert turns > 1
    assert len([name for name in os.listdir(folder) if name.startswith("starts")]) == 2


def _write(lines: int) -> None:
    for _ in range(lines):
        records.to_spool(b"\n20000 started -\n")
        time.sleep(0.002)


def test_a_collector_that_dies_anywhere_counts_nothing_twice(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is stopped before each call that changes a file, and the next one goes on."""
    monkeypatch.setattr(counters, "_FULL", 10)
    calls = [(os, "link"), (os, "rename"), (os, "unlink"), (outputfile, "write")]
    counters.turn()
    written = 0
    for _ in range(3):
        for owner, name in calls:
            records.to_spool(b"\n1 started -\n")
            written += 1
            with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
                patch.setattr(owner, name, mock.Mock(side_effect=KeyboardInterrupt))
                counters.turn()
            assert total() == written, name
            counters.turn()
            assert total() == written, name


def test_a_spool_that_nobody_collects_does_not_grow_for_ever(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_LARGEST_SPOOL", 100)
    counters.turn()
    for _ in range(50):
        records.to_spool(b"\n1 started -\n")
    assert (folder / "starts").stat().st_size < 100 + 20


def test_what_is_no_spool_is_left_alone(folder: Path) -> None:
    path, target = folder / "starts", folder / "target"
    target.touch()
    for make, take in ((Path.mkdir, Path.rmdir), (os.mkfifo, os.unlink), (lambda it: it.symlink_to(target), os.unlink)):
        make(path)
        records.to_spool(b"\n1 started -\n")
        take(path)
    assert target.read_bytes() == b""


def test_damaged_totals_begin_anew(folder: Path) -> None:
    for text in ("", "{", "[]", '{"folded": "x", "numbers": {}}', '{"folded": 1, "numbers": 2}'):
        (folder / "metrics.json").write_text(text)
        assert total() == 0


def test_stopping_takes_away_what_counting_made_and_nothing_else(folder: Path) -> None:
    (folder / "inventory").touch()
    counters.turn()
    assert counters.stop()
    assert not counters.stop()
    assert [path.name for path in folder.iterdir()] == ["inventory"]
