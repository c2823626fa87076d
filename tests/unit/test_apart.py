# SPDX-License-Identifier: Apache-2.0
"""What is done in a child process: its answer, its errors, and its end before either."""

from __future__ import annotations

import os
import signal
import time

import pytest

from oci_gpu_hook.errors import UsageError
from oci_gpu_hook.node.machine import apart


def ended(number: int) -> object:
    """A process that somebody has ended, as the limit of a cgroup that it has entered."""
    os.kill(os.getpid(), number)
    return None


def test_the_answer_of_several_steps() -> None:
    def work(done: object) -> list[str]:
        done()  # type: ignore[operator]
        return ["a\nb", "\udcff"]

    assert apart.ask(work, (9, 9)) == ["a\nb", "\udcff"]


def test_an_error_for_people_is_the_same_here() -> None:
    def refuse(done: object) -> None:
        raise UsageError("it has ended", "try again")

    with pytest.raises(UsageError) as caught:
        apart.ask(refuse, (9,))
    assert (caught.value.message, caught.value.hint) == ("it has ended", "try again")
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        apart.ask(lambda done: 1 // 0, (9,))


def test_one_that_is_killed_is_told_from_one_that_fails() -> None:
    with pytest.raises(apart.Ended):
        apart.ask(lambda done: ended(signal.SIGKILL), (9,))


def test_an_answer_without_an_end_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "_LARGEST_ANSWER", 1 << 10)
    with pytest.raises(apart.Ended):
        apart.ask(lambda done: "x" * (1 << 20), (9,))


def test_one_that_takes_too_long_is_ended() -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        apart.ask(lambda done: time.sleep(99), (0.1,))
    assert time.monotonic() - began < 50
