# SPDX-License-Identifier: Apache-2.0
"""A command's time limit: a command does what it does without it, and ends so; what hangs is ended in a sentence."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# On a machine that has much to do a process may begin late, and sleep longer than it has asked for.
SECONDS = 3
RUN = f"""
import os, signal, sys, time
sys.path[:] = {sys.path!r}
from oci_gpu_hook.cli import limit
limit.SECONDS = {SECONDS}
def command():
    {{0}}
    return {{1}}
if __name__ == "__main__":
    sys.exit(limit.run(command))
"""


def run(command: str, code: str = "0") -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-c", RUN.format(command, code)]
    return subprocess.run(line, capture_output=True, text=True, timeout=100, check=False)


def begin(command: str) -> subprocess.Popen[str]:
    """A command that has written its first line."""
    line = [sys.executable, "-c", RUN.format(command, "7")]
    child = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "begun\n"
    return child


def test_output_and_exit_code_are_the_commands() -> None:
    done = run('print("said"); print("why", file=sys.stderr)', "5")
    assert (done.returncode, done.stdout, done.stderr) == (5, "said\n", "why\n")
    done = run("sys.exit(3)")
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")


def test_what_hangs_is_ended_in_a_sentence() -> None:
    began = time.monotonic()
    done = run("os.read(os.pipe()[0], 1)")
    assert done.returncode == 7
    assert re.fullmatch(
        r"oci-gpu-hook: the command has not ended within \d+ seconds(: process \d+ waits in the kernel \(\w+\))? "
        r"\(look for a filesystem or a device of this host that does not answer\)\n",
        done.stderr,
    ), done.stderr
    assert time.monotonic() - began < 50


def test_a_command_that_says_so_may_take_longer() -> None:
    commands = ("limit.allow(1000); time.sleep(3.5)", "for n in range(4): limit.allow(0); time.sleep(0.9)")
    children = [subprocess.Popen([sys.executable, "-c", RUN.format(it, 0)]) for it in commands]
    assert [child.wait(100) for child in children] == [0, 0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_reaches_the_command(number: signal.Signals) -> None:
    """And ends both as it does without a limit, or as the command takes it."""
    # A handler of Python's runs between two calls: a signal that comes just before a long one would wait for its end.
    waits = 'print("begun", flush=True); [time.sleep(0.1) for _ in range(10000)]'
    # A shell's background process ignores two of them.
    child = begin(f"limit.allow(1000); signal.signal({int(number)}, signal.SIG_DFL); {waits}")
    child.send_signal(number)
    assert child.wait(100) == -number
    took = f"signal.signal({int(number)}, lambda *_: sys.exit(4))"
    child = begin(f"limit.allow(1000); {took}; {waits}")
    child.send_signal(number)
    assert child.wait(100) == 4


def test_a_command_that_is_killed_is_told_as_that() -> None:
    assert run("os.kill(os.getpid(), signal.SIGKILL)").returncode == -signal.SIGKILL


@pytest.mark.parametrize("command", ["time.sleep(0.2)", "limit.allow(1e9); time.sleep(2 * SECONDS + 1)"])
def test_stopped_and_gone_on_with_a_command_has_its_time_again(command: str) -> None:
    child = begin(f'print("begun", flush=True); {command.replace("SECONDS", str(SECONDS))}')
    child.send_signal(signal.SIGSTOP)
    time.sleep(SECONDS + 0.3)
    child.send_signal(signal.SIGCONT)
    assert child.wait(100) == 7
    assert child.stderr is not None
    assert child.stderr.read() == ""


def test_signals_of_a_terminal_come_once(tmp_path: Path) -> None:
    """The terminal sends them to both processes."""
    count = tmp_path / "count"
    told = f'signal.signal(signal.SIGINT, lambda *_: open({str(count)!r}, "a").write("x"))'
    script = RUN.format(f'{told}; print("begun", flush=True); time.sleep(0.4)', "0")
    pid, terminal = os.forkpty()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", script])
    assert b"begun" in os.read(terminal, 100)
    os.write(terminal, b"\x03")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)
    assert count.read_text() == "x"
