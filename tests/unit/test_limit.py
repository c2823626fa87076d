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


@pytest.mark.parametrize(
    ("command", "code", "ends"),
    [
        ('print("said"); print("why", file=sys.stderr)', "5", (5, "said\n", "why\n")),
        ("sys.exit(3)", "0", (3, "", "")),
        ("os.kill(os.getpid(), signal.SIGKILL)", "0", (-signal.SIGKILL, "", "")),
    ],
)
def test_output_and_exit_code_are_the_commands(command: str, code: str, ends: tuple[int, str, str]) -> None:
    done = run(command, code)
    assert (done.returncode, done.stdout, done.stderr) == ends


def test_what_hangs_is_ended_in_a_sentence() -> None:
    began = time.monotonic()
    done = run("os.read(os.pipe()[0], 1)")
    assert done.returncode == 7
    assert re.fullmatch(
        r"oci-gpu-hook: the command has not ended within \d+ seconds "
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
    for taken, code in (("signal.SIG_DFL", -number), ("lambda *_: sys.exit(4)", 4)):
        command = f"limit.allow(1000); signal.signal({int(number)}, {taken}); {waits}"
        line = [sys.executable, "-c", RUN.format(command, "7")]
        with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None and child.stdout.readline() == "begun\n"
            child.send_signal(number)
            assert child.wait(100) == code


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
