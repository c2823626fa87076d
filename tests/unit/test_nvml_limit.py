# SPDX-License-Identifier: Apache-2.0
"""Limits of GPU memory by NVML: a library with the ABI of R615's nvml.h, in the child that the hook makes for it."""

from __future__ import annotations

import contextlib
import os
import posix
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oci_gpu_hook.changes import nvmllimit
from oci_gpu_hook.changes.tree import Undo
from oci_gpu_hook.errors import DriverError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.operations import LimitMemory

ADDRESS, CGROUP = "00000000:02:00.0", "/sys/fs/cgroup/machine.slice/x.scope"
LIMITS = ((ADDRESS, 4 << 30), ("00000000:41:00.0", (1 << 64) - (1 << 20)))
SOURCE = Path(__file__).parents[1] / "data/nvml_limit.c"
Made = Callable[..., int]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    """A library, open by O_PATH, with words for what it does wrong."""

    def make(**faults: str) -> int:
        words = {"AT_INIT": "", "SET_GIVES": "0", "GET_HAS": "hard", "TOLD": f'"{tmp_path}/told"', **faults}
        defined = [f"-D{name}={value}" for name, value in words.items()]
        command = ["cc", "-shared", "-fPIC", *defined, "-o", f"{tmp_path}/nvml.so", str(SOURCE)]
        subprocess.run(command, check=True)
        return posix.open(tmp_path / "nvml.so", posix.O_PATH)

    yield make
    # A start does not wait for its child.
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def test_each_gpu_gets_its_hard_limit_and_no_soft_one(made: Made, tmp_path: Path) -> None:
    nvmllimit.limit(made(), CGROUP, LIMITS)
    assert (tmp_path / "told").read_text().splitlines() == [f"{it} {CGROUP} 0 {most}" for it, most in LIMITS]


@pytest.mark.parametrize(
    ("faults", "why"),
    [
        ({"SET_GIVES": "3"}, "nvmlDeviceSetMemoryLimits_v1 gives 3: the driver counts no memory here"),
        ({"SET_GIVES": "6"}, "gives 6: the driver does not find the GPU or the cgroup"),
        ({"AT_INIT": "return 9"}, "nvmlInit_v2 gives 9$"),
        ({"AT_INIT": "abort()"}, ": libnvidia-ml crashed$"),
        ({"AT_INIT": "_exit(0)"}, ": libnvidia-ml crashed$"),
        ({"GET_HAS": "~0ULL"}, f"has taken {4 << 30} bytes as the limit of {ADDRESS}, and says {(1 << 64) - 1}"),
        ({"OLD": "1"}, ": this driver's NVML limits no memory: it does from R615 on$"),
    ],
)
def test_what_nvml_does_not_do_is_said(made: Made, faults: dict[str, str], why: str) -> None:
    with pytest.raises(DriverError) as caught:
        nvmllimit.limit(made(**faults), CGROUP, LIMITS[:1])
    assert re.search(why, caught.value.message)
    assert "gpu-memory-by" in caught.value.hint


def test_an_nvml_that_hangs_is_killed(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvmllimit, "_SECONDS", 0.1)
    with pytest.raises(DriverError, match="NVML has not answered in 18 seconds"):
        nvmllimit.limit(made(AT_INIT="pause()"), CGROUP, LIMITS)
    _, status = os.wait()
    assert os.WTERMSIG(status) == signal.SIGKILL


def test_one_whose_end_hangs_is_not_waited_for(made: Made, tmp_path: Path) -> None:
    """As a driver hangs that does not let go of a GPU."""
    at_end = f'atexit(forever); FILE *it = fopen("{tmp_path}/made", "w"); fclose(it)'
    begun = time.monotonic()
    nvmllimit.limit(made(AT_INIT=at_end), CGROUP, LIMITS)
    assert time.monotonic() - begun < nvmllimit._SECONDS
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o644


def test_the_child_ends_though_the_start_was_killed(made: Made, tmp_path: Path) -> None:
    """By a limit of its own, and it keeps no folder of an engine's."""
    look = f'system("readlink /proc/$PPID/cwd >{tmp_path}/cwd"); alarms = alarm(0)'
    with pytest.raises(DriverError, match=r"nvmlInit_v2 gives (29|30) "):
        nvmllimit.limit(made(AT_INIT=f"{look}; return alarms"), CGROUP, LIMITS)
    assert (tmp_path / "cwd").read_text() == "/\n"


def test_the_child_holds_nothing_that_an_engine_waits_for(made: Made, tmp_path: Path) -> None:
    """Of the start's files it has the library and its answer's pipe; it says nothing on its output."""
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    look = f"readlink /proc/$PPID/fd/* >{tmp_path}/open; readlink /proc/self/fd/2 >{tmp_path}/2"
    shell = f'system("{look}; echo noise; echo noise >&2")'
    nvmllimit.limit(made(AT_INIT=shell), CGROUP, LIMITS[:1])
    os.close(writing)
    with os.fdopen(reading, "rb") as end:
        assert end.read() == b""
    found = [it.partition(":")[0] for it in sorted((tmp_path / "open").read_text().split())]
    assert found == [*["/dev/null"] * 3, f"{tmp_path}/nvml.so", "pipe"]
    assert (tmp_path / "2").read_text() == "/dev/null\n"


def test_a_library_that_others_could_have_made_is_not_loaded(made: Made, tmp_path: Path) -> None:
    made()
    (tmp_path / "nvml.so").chmod(0o777)
    operation = LimitMemory(CGROUP, CGROUP, LIMITS, True, "", f"{tmp_path}/nvml.so")
    with HostRoot() as host, pytest.raises(OSError, match="others than root"):
        operation.prepare(host, Undo())
    assert not (tmp_path / "told").exists()
    assert operation.describe() == "limit the memory of the devices (NVML)"
