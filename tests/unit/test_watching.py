# SPDX-License-Identifier: Apache-2.0
"""``containers --watch``: the lines, and what a terminal of any size gets."""

from __future__ import annotations

import os
import pty
import struct
import subprocess
import sys
from fcntl import ioctl
from termios import TIOCSWINSZ
from types import SimpleNamespace
from typing import Any

import pytest

from oci_gpu_hook import cli
from oci_gpu_hook.cli import containers, doctor
from oci_gpu_hook.node.diagnosis import failed, passed
from oci_gpu_hook.node.diagnosis.holders import HeldShare
from tests.unit.program import Program
from tests.unit.starts import ROOT

REPEAT = """
import sys, time
from oci_gpu_hook.cli import containers
def interrupted(seconds):
    raise KeyboardInterrupt
time.sleep = interrupted
containers.repeat(lambda: ["x" * 50, "\\x1b[31mred"] + [str(n) for n in range(50)], 1)
print("ended")
"""


def share(number: int, mig: str = "") -> HeldShare:
    return HeldShare(f"{number}{mig}", number, bool(mig), "", "H100")


def test_each_device_has_a_line_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "_name", lambda holder: holder.who)
    def holder(who: str, *held: HeldShare, kept: tuple[HeldShare, ...] | None = None) -> SimpleNamespace:
        return SimpleNamespace(held=held, who=who, keeps=lambda: held if kept is None else kept)

    holding = [holder("a", share(10), share(0, ":1")), holder("b", share(10)), holder("w", share(2), kept=())]
    held: Any = SimpleNamespace(free=(share(2), share(0)), open=(), holding=holding)
    lines = [line.split() for line in containers.devices(held)]
    assert lines == [
        ["DEVICE", "MODEL", "HELD", "BY"],
        ["0", "H100", "no", "container"],
        ["0:1", "H100", "a"],
        ["2", "H100", "w", "(watches)"],
        ["10", "H100", "a,", "b"],
    ]


def test_a_terminal_gets_one_screen_and_no_colours_of_others() -> None:
    ours, theirs = pty.openpty()
    ioctl(theirs, TIOCSWINSZ, struct.pack("HHHH", 8, 30, 0, 0))
    words = [sys.executable, "-c", REPEAT]
    with subprocess.Popen(words, cwd=ROOT, stdout=theirs, env={"PATH": os.environ["PATH"], "TERM": "xterm"}) as process:
        os.close(theirs)
        said = b""
        try:
            while piece := os.read(ours, 4096):
                said += piece
        except OSError:
            pass  # the other end is closed
        assert process.wait() == 0
    screen = said.decode().rpartition("\x1b[1;1H")[2] or said.decode()
    lines = screen.replace("\r", "").split("\n")
    assert "x" * 30 in lines and "x" * 31 not in screen
    assert "\x1b[31m" not in screen and "\\x1b[31mred" in lines
    assert lines.index("ended") <= 9 and "6" not in lines


def test_elsewhere_there_is_a_block_for_each_look() -> None:
    done = subprocess.run([sys.executable, "-c", REPEAT], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = done.stdout.split("\n")
    assert "x" * 50 in lines and "49" in lines and lines[-2] == "ended"


@pytest.mark.parametrize(
    ("words", "seconds"),
    [(("--watch",), 2.0), (("--watch", "--host-root", "/"), 2.0), (("--watch", "7"), 7.0), (("--watch=0.5",), 0.5)],
)
def test_watch_needs_no_number(monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], seconds: float) -> None:
    """With any click that is served: before 8.0 no option's value could be left out."""
    given: list[float] = []
    monkeypatch.setattr(containers, "repeat", lambda look, seconds: given.append(seconds))
    assert cli.main(["containers", *words]) == 0
    assert given == [seconds]


def test_json_is_one_look(program: Program) -> None:
    assert "--watch shows lines for people" in program.mistake(2, "containers", "--watch", "1", "--json")


LONG = "the driver's libraries are of another version than the module that the kernel has loaded, which wants its own"


@pytest.mark.parametrize(
    ("width", "first"), [(60, "fail  libraries"), (110, "fail  libraries  the driver's libraries are of")]
)
def test_on_a_narrow_terminal_doctor_breaks_what_it_has_seen_and_no_command(
    monkeypatch: pytest.MonkeyPatch, width: int, first: str
) -> None:
    monkeypatch.setattr("sys.stdout", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setenv("COLUMNS", str(width))
    fix = "apt install --only-upgrade 'libnvidia-*' libcuda1 libnvidia-ml1 nvidia-driver-libs && systemctl reboot"
    lines = doctor.lines([passed("driver", "it is there"), failed("libraries", LONG, "sh", "-c", fix)])
    told = [line for line in lines if "fix: " not in line]
    assert max(map(len, told)) <= width
    assert told[-1].startswith(" ") and any(line.startswith(first) for line in told)
    assert " ".join(" ".join(told).split()).endswith(LONG)
    assert sum(fix.rsplit(maxsplit=1)[-1] in line and "apt install" in line for line in lines) == 1
