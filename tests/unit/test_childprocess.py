# SPDX-License-Identifier: Apache-2.0
"""What is done in a child process, and what a Python of its own says: answers, errors, and its end before either."""

from __future__ import annotations

import os
import signal
import time

import pytest

from oci_gpu_hook.errors import UsageError
from oci_gpu_hook.node.machine import childprocess

pytestmark = pytest.mark.pythons


def test_the_answer_of_several_steps_and_an_error_for_people_are_the_same_here() -> None:
    def work(done: object) -> list[str]:
        done()  # type: ignore[operator]
        return ["a\nb", "\udcff"]

    def refuse(done: object) -> None:
        raise UsageError("it has ended", "try again")

    assert childprocess.ask(work, (9, 9)) == ["a\nb", "\udcff"]
    with pytest.raises(UsageError) as caught:
        childprocess.ask(refuse, (9,))
    assert (caught.value.message, caught.value.hint) == ("it has ended", "try again")
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        childprocess.ask(lambda done: 1 // 0, (9,))


def test_one_that_is_killed_or_does_not_end_its_answer_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(childprocess, "_LARGEST_ANSWER", 1 << 10)
    for work in (lambda done: os.kill(os.getpid(), signal.SIGKILL), lambda done: "x" * (1 << 20)):
        with pytest.raises(childprocess.Ended):
            childprocess.ask(work, (9,))


def test_one_that_takes_too_long_is_ended() -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        childprocess.ask(lambda done: time.sleep(99), (0.1,))
    assert time.monotonic() - began < 50


SAY = "import os, time; os.write(1, b'said'); "


@pytest.mark.parametrize(("act", "status"), [("pass", 0), ("raise SystemExit(3)", 3), ("os.abort()", -6), ("1 / 0", 1)])
def test_what_it_said_comes_back_with_its_status(act: str, status: int) -> None:
    assert childprocess.python(SAY + act, 30) == [childprocess.PythonOutput(b"said", status)]


def test_it_finds_the_package_and_has_no_variables_but_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "1")
    program = "import os, oci_gpu_hook.errors; print(sorted(set(os.environ) - {'LC_CTYPE'}))"
    said = childprocess.python(program, 30, environments=[{"ONE": "1"}])
    assert said == [childprocess.PythonOutput(b"['ONE', 'PATH']\n", 0)]


def test_an_endless_answer_is_cut() -> None:
    (said,) = childprocess.python("import os\nwhile True: os.write(1, b'x' * 65536)", 30)
    assert said.status is None
    assert len(said.output) < 4 << 20


@pytest.mark.parametrize("first", ["", "os.close(1); "])
def test_several_that_hang_take_the_time_of_one_and_none_loses_what_it_said(first: str) -> None:
    program = f"{SAY}{first}time.sleep(60 * (os.environ['HANGS'] == '1'))"
    begin = time.monotonic()
    said = childprocess.python(program, 4, "", [{"HANGS": word} for word in "1101"])
    assert said == [childprocess.PythonOutput(b"said", 0 if word == "0" else None) for word in "1101"]
    # One after another they take three times four seconds.
    assert time.monotonic() - begin < 12
