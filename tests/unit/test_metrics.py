# SPDX-License-Identifier: Apache-2.0
"""Metrics: of starts, from a spool in which no line is lost, and of GPUs; what Prometheus reads."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_gpu_hook.cli import accelerators, metrics
from oci_gpu_hook.driver import survey
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.engines import containerdevices
from oci_gpu_hook.node.engines.containerdevices import AllContainers, MemoryUse
from oci_gpu_hook.node.exporters import counters, exposition
from oci_gpu_hook.node.gpus import hardware, nvml
from oci_gpu_hook.node.gpus.holdercount import Counted
from oci_gpu_hook.node.machine import outputfile
from oci_gpu_hook.node.machine.validationrecord import StepResult, Validation
from oci_gpu_hook.report import records
from tests.unit import hosts
from tests.unit.examples import examples
from tests.unit.program import Program
from tests.unit.test_holders import amd, has


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
    assert f"\n# TYPE {exposition.PREFIX}{name} histogram\n" in counters.exposition(counters.count(""))


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
    damaged = (('"x"', "{}"), ("1", "2"), ("1", '{"a": 1e400}'))
    for text in ("", "{", "[]", *[f'{{"folded": {it}, "numbers": {numbers}}}' for it, numbers in damaged]):
        (folder / "metrics.json").write_text(text)
        assert total() == 0


def test_stopping_takes_away_what_counting_made_and_nothing_else(folder: Path) -> None:
    (folder / "inventory").touch()
    counters.turn()
    assert counters.stop()
    assert not counters.stop()
    assert [path.name for path in folder.iterdir()] == ["inventory"]


# --- of GPUs

LINE = re.compile(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\[\\"n])*",?)*)\})? (-?\d+(?:\.\d+)?(?:e[+-]\d+)?)')
UUID = "GPU-00000007-0000-4000-8000-000000000007"


def node(**fields: Any) -> dict[str, Any]:
    return {
        "driver_version": "580.65.06",
        "gpus": 2,
        "answers": True,
        "log_readable": True,
        "fresh": True,
        "held": [],
        "counted": (),
        "memory": [],
        "validation": None,
        "time": 1_700_000_000.25,
        "duration": 0.5,
        **fields,
    }


def held(*values: str) -> dict[str, str]:
    return dict(zip(("uuid", "mig_uuid", "container", "name", "pod", "namespace"), values))


def samples(made: dict[str, Any]) -> dict[str, float]:
    """What Prometheus reads: names with labels, and values; each series once, each metric in one piece."""
    text = exposition.of_gpus(**made)
    assert text.endswith("\n")
    found: dict[str, float] = {}
    metric, seen = "", set()
    for line in text.splitlines():
        if line.startswith("# HELP "):
            metric = line.split()[2]
            assert metric not in seen
            seen.add(metric)
        elif not line.startswith(f"# TYPE {metric} "):
            match = LINE.fullmatch(line)
            assert match, line
            assert match[1] == metric
            key = line.rpartition(" ")[0].replace(exposition.PREFIX, "")
            assert key not in found, "twice"
            found[key] = float(match[3])
    return found


def test_what_containers_have_of_memory() -> None:
    labels = {"address": "0000:07:00.0", "container": "c0ffee"}
    uses = [(labels, MemoryUse("", 3, 0, 0)), ({**labels, "container": "b"}, MemoryUse("", 5, 9, 7))]
    # Another of the same id.
    uses.append((labels, MemoryUse("", 4, 0, 0)))
    found = samples(node(memory=uses))
    shown = {name: value for name, value in found.items() if name.startswith("gpu_memory")}
    of, other = [f'{{address="0000:07:00.0",container="{name}"}}' for name in ("c0ffee", "b")]
    assert shown == {
        f"gpu_memory_used_bytes{of}": 3,
        f"gpu_memory_used_bytes{other}": 5,
        f"gpu_memory_peak_bytes{other}": 7,
        f"gpu_memory_limit_bytes{other}": 9,
    }


def test_users_containers_have_series_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their ids are their own to choose; two alike would stop the exporter.  Who watches is no holder."""
    root, amds = hosts.host(tmp_path), has((226, 1))._replace(memory=(MemoryUse("0000:23:00.0", 7, 0, 0),))
    monkeypatch.setattr(hardware, "proven", lambda _: [amd()])
    one = has((195, 1), (505, 0))._replace(memory=(MemoryUse("0000:07:00.0", 1, 0, 0),))
    seen = [one._replace(running=one.running._replace(owner=1000, pid=pid)) for pid in (8, 9)]
    every = AllContainers((*seen, one, has((195, 1)), amds), 0)
    monkeypatch.setattr(containerdevices, "find_devices", lambda *_: every)
    held, memory = metrics._held(root, hosts.surveyed(root))
    found = samples(node(held=held, memory=memory))
    # Root's first: of very many the last are cut.
    wanted = ["a" * 64, "user 1000's process 8", "user 1000's process 9"]
    assert [labels["container"] for labels in held] == wanted
    assert [labels["container"] for labels, _ in memory] == [wanted[0], *wanted]
    assert len([key for key in found if key.startswith("gpu_memory_used_bytes")]) == 4
    _, memory = metrics._held(root, accelerators.NOTHING)
    assert 7 in samples(node(memory=memory, driver_version="")).values()


def test_the_last_validation_counts_for_its_driver() -> None:
    outcomes = {"driver": "passed", "hook": "failed", "workload": "skipped"}
    last = Validation(1_700_000_000, "580.65.06", tuple([StepResult(*pair, "why") for pair in outcomes.items()]))
    found = samples(node(validation=last))
    assert {key: found[key] for key in found if "validation" in key} == {
        'validation_passed{step="driver"}': 1,
        'validation_passed{step="hook"}': 0,
        "validation_timestamp_seconds": 1_700_000_000,
    }
    assert not [key for key in samples(node(validation=last, driver_version="1.2")) if "valid" in key]


def test_the_number_of_series_has_a_bound() -> None:
    many = [held(UUID, "", str(number), "", "", "") for number in range(2000)]
    uses = [(labels, MemoryUse("", 1, 0, 0)) for labels in many]
    found = samples(node(held=many, memory=uses))
    for name in ("container_info", "memory_used"):
        assert len([key for key in found if name in key]) == 512


@examples(40)
@given(words=st.lists(st.text(), min_size=6, max_size=6))
def test_whatever_is_said_prometheus_can_read_it(words: list[str]) -> None:
    """Names of containers and devices are others' texts."""
    counted = (Counted("a", words[0], (), ""),)
    assert samples(node(held=[held(*words), held(*words)], counted=counted))["gpus"] == 2


def test_label_values_are_escaped_and_cut() -> None:
    line = exposition.sample("a", {"b": 'say "no"\\\n\x1b\udc80'}, 1)
    assert line == 'oci_gpu_hook_a{b="say \\"no\\"\\\\\\n??"} 1'
    assert len(exposition.sample("a", {"b": "x" * 1000}, 1)) < 300


def test_a_library_of_another_version_says_nothing_of_the_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hosts.host(tmp_path)
    found = survey.survey(HostRoot(str(tmp_path)))
    for version, answers in ((found.driver_version, True), ("1.2", False)):
        monkeypatch.setattr(nvml, "ask_nvml", lambda *_, said=version, **__: ({"driver_version": said}, []))
        with contextlib.nullcontext() if answers else pytest.raises(nvml.NvmlUnavailable, match="libnvidia-ml is of 1"):
            assert nvml.readings(HostRoot(str(tmp_path)), found, 1) == {}


def test_files_of_ours_are_removed_and_another_exporters_stays(tmp_path: Path, program: Program) -> None:
    files, settings = [tmp_path / "a.prom", tmp_path / "b.prom"], tmp_path / "conf"
    settings.write_text(f"metrics = {files[0]}\ngpu-metrics = {files[1]}\n")
    files[0].write_text(counters.exposition(counters.count("")))
    files[1].write_text("# HELP node_load1 Another's.\n")
    words = ("metrics", "--remove", "--config", settings)
    assert program(*words) == f"removed {files[0]}\n"
    assert program(*words) == "there is no file of metrics\n"
    assert [it.exists() for it in files] == [False, True]
    files[1].write_text("\n".join(exposition.gauge("driver_up", "Up.", 1)))
    assert program(*words) == f"removed {files[1]}\n"
    # One that cannot be removed keeps none of the others.
    open_to_others = tmp_path / "open"
    (open_to_others / "below").mkdir(parents=True)
    open_to_others.chmod(0o777)
    stays = open_to_others / "below/a.prom"
    settings.write_text(f"metrics = {stays}\ngpu-metrics = {files[1]}\n")
    for file in (stays, files[1]):
        file.write_text("\n".join(exposition.gauge("driver_up", "Up.", 1)))
    program.mistake(4, *words)
    assert [it.exists() for it in (stays, files[1])] == [True, False]
    assert "excludes" in program.mistake(2, *words, "--write")
