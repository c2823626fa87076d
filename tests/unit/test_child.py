# SPDX-License-Identifier: Apache-2.0
"""Python in a process of its own: what it says comes back, however it ends, and within its time."""

from __future__ import annotations

import time

import pytest

from oci_gpu_hook.node.gpus import child

pytestmark = pytest.mark.pythons

SAY = "import os, time; os.write(1, b'said'); "


@pytest.mark.parametrize(
    ("program", "status"), [("pass", 0), ("raise SystemExit(3)", 3), ("os.abort()", -6), ("1 / 0", 1)]
)
def test_what_it_said_comes_back_with_its_status(program: str, status: int) -> None:
    assert child.ask(SAY + program, 30) == child.Said(b"said", status)


@pytest.mark.parametrize("program", ["time.sleep(600)", "os.close(1); time.sleep(600)"])
def test_one_that_hangs_is_ended_and_what_it_said_is_kept(program: str) -> None:
    begin = time.monotonic()
    assert child.ask(SAY + program, 3) == child.Said(b"said", None)
    assert time.monotonic() - begin < 300


def test_it_finds_the_package_and_has_no_variables_but_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "1")
    program = "import os, oci_gpu_hook.errors; print(sorted(set(os.environ) - {'LC_CTYPE'}))"
    said = child.ask(program, 30, environment={"ONE": "1"})
    assert said == child.Said(b"['ONE', 'PATH']\n", 0)


def test_an_endless_answer_is_cut() -> None:
    said = child.ask("import os\nwhile True: os.write(1, b'x' * 65536)", 30)
    assert said.status is None
    assert len(said.output) < 4 << 20


def test_several_that_hang_take_the_time_of_one_and_none_loses_what_it_said() -> None:
    program = f"{SAY}time.sleep(60 * (os.environ['HANGS'] == '1'))"
    begin = time.monotonic()
    said = child.ask_all(program, 4, "", [{"HANGS": word} for word in "1101"])
    assert said == [child.Said(b"said", 0 if word == "0" else None) for word in "1101"]
    # One after another they take three times four seconds.
    assert time.monotonic() - begin < 12
