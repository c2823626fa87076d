# SPDX-License-Identifier: Apache-2.0
"""``oci-gpu-hook log``, with a journalctl of the test's own: its words, and what is made of its answers."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from oci_gpu_hook.cli import log as log_command
from oci_gpu_hook.node.engines.containers import ContainerNames
from tests.unit.program import Program

# As journalctl prints them.  Anybody may send entries to the journal: the last two are none of ours.
STARTED, REFUSED, FOREIGN, FORGED = (Path(__file__).parents[1] / "data/journal.json").read_text().splitlines()


class Journal:
    """The folder of a journalctl that writes down its words, and prints what lies beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        program = folder / "journalctl"
        program.write_text(
            f'#!/bin/sh\necho "$@" >>{folder}/words\n'
            f"cat {folder}/entries\n"
            f"[ ! -e {folder}/fails ] || {{ echo Failed to parse timestamp: x >&2; exit 1; }}\n"
        )
        program.chmod(0o755)
        self.has(STARTED, REFUSED)

    def has(self, *entries: str) -> None:
        (self.folder / "entries").write_text("".join([f"{entry}\n" for entry in entries]))

    def words(self) -> str:
        return (self.folder / "words").read_text()


@pytest.fixture()
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Journal:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return Journal(tmp_path)


@pytest.mark.parametrize("line", ["[1, 2]", "5", '"x"', "null", "{", "[" * 100_000])
def test_what_is_no_entry_is_passed_over(journal: Journal, program: Program, line: str) -> None:
    entries = journal.folder / "entries"
    entries.write_text(f"{line}\n{entries.read_text()}")
    assert len(program.document("log")["records"]) == 2


def test_of_very_many_the_last_are_shown(journal: Journal, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_command, "_MAX", 2)
    assert "only the last 2 records are shown: --since has others" in program("log")
    assert "--lines=2" in journal.words().split()


def test_what_is_larger_than_any_record_is_passed_over(journal: Journal, program: Program) -> None:
    """Root in a container that has the journal's socket writes what it likes."""
    # Of which the rest alone would be one.
    long = " " * (256 << 10) + STARTED
    entries = journal.folder / "entries"
    entries.write_text(f"{long}\n{long}\n{entries.read_text()}{long}\n")
    assert len(program.document("log")["records"]) == 2


def test_of_large_ones_the_last_that_fit_are_shown(journal: Journal, program: Program) -> None:
    large = {"OCI_GPU_HOOK_IMAGE": "x" * 200_000}
    journal.has(*[json.dumps({"MESSAGE": f"{number}", **large}) for number in range(99)])
    records = program.document("log")["records"]
    assert 30 < len(records) < 50 and records[-1]["message"] == "98"
    assert f"only the last {len(records)} records are shown" in program("log")


@pytest.mark.parametrize(
    ("words", "containers"),
    [((), ["abcdef", "b"]), (("--failed",), ["b"]), (("--container", "main"), ["b"]), (("-n", "1"), ["b"])]
    + [(("-n", "0"), []), (("-n", "1", "--container", "abc"), ["abcdef"]), (("--pod", "ml/train"), ["b"])]
    + [(("--pod", "other/train"), [])],
)
def test_filters(journal: Journal, program: Program, words: tuple[str, ...], containers: list[str]) -> None:
    records = program.document("log", *words)["records"]
    assert [record["container"] for record in records] == containers


@pytest.mark.parametrize(
    ("given", "passed"),
    [("10m", "-10m"), ("1h 30min", "-1h 30min"), ("2 days", "-2 days"), ("2 days ago", "2 days ago")]
    + [("today", "today"), ("-10m", "-10m"), ("2026-11-01", "2026-11-01"), ("@5", "@5")],
)
def test_a_span_counts_back(journal: Journal, program: Program, given: str, passed: str) -> None:
    """As systemd reads what is passed: systemd-analyze(1)."""
    program("log", "--since", given)
    assert f"--since={passed} MESSAGE_ID" in journal.words()
    words = ["systemd-analyze", "timestamp", "--", passed]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    [moment] = re.findall(r"UNIX seconds: @([0-9.]+)", done.stdout)
    assert float(moment) < time.time()


def test_a_container_has_the_name_that_its_engine_knows(
    journal: Journal, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = SimpleNamespace(id="abcdef", called=ContainerNames("podman", "web"))
    monkeypatch.setattr(log_command, "KnownContainers", lambda root: SimpleNamespace(containers=[item]))
    assert "\n    called web\n" in program("log")
    assert [it["called"] for it in program.document("log", "--container", "web")["records"]] == ["web"]


def test_text_is_a_line_a_start_and_never_a_terminals_command(journal: Journal, program: Program) -> None:
    out = program("log", "--since=-1 day")
    assert "--since=-1 day" in journal.words()
    assert "container abc got 0 (read 1.5)\n    image ?[31m\n" in out
    assert "\n    devices /dev/nvidia0 /dev/nvidiactl\n    note: one alone\n" in out
    assert "\x1b" not in out


def test_no_record_and_records_of_others(journal: Journal, program: Program) -> None:
    journal.has()
    assert program("log") == "no records\n"
    journal.has(FOREIGN)
    (record,) = program.document("log")["records"]
    assert record["files"] == "x"
    journal.has(FORGED.replace("NINES", "9" * 5000), STARTED)
    first, second, *_ = program("log").split("\n")
    assert first == "  container c got ?[2J?all"
    assert second.endswith("container abc got 0 (read 1.5)")


def test_what_journalctl_says_is_passed_on(journal: Journal, program: Program) -> None:
    (journal.folder / "fails").touch()
    said = program.mistake(2, "log", "--since", "x")
    assert "--since is not a time: Failed to parse timestamp: x" in said
