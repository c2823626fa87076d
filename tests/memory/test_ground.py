# SPDX-License-Identifier: Apache-2.0
"""What the limit rests on: kernel, module and runtimes as they are, with limits that are written by hand."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.integration.engines import Installed
from tests.memory import regions
from tests.memory.conftest import Maker
from tests.memory.containers import ENGINES, HELD, REFUSED, Engine, on_machine, said, takes

# From the root down: what a file of the controller in a cgroup needs.
ENABLE = """
enable() {
    path=/sys/fs/cgroup
    for name in $(echo ${1#$path/} | tr / ' '); do
        echo +dmem >$path/cgroup.subtree_control
        path=$path/$name
    done
}
"""


def test_regions_have_the_names_that_drivers_give_them() -> None:
    found = regions.read(regions.CGROUPS / "dmem.capacity")
    assert found == {name: str(size) for name, size in regions.all_of_them().items()}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_limit_by_hand_holds_inside(installed: Installed, bundle: Maker, engine: Engine) -> None:
    """And what a container's end leaves is not counted: the next has it all."""
    script = f"""{ENABLE}
{engine.stay(bundle(), "one")}
enable $one
echo "{regions.name(0)} {64 * regions.MIB}" >$one/dmem.max
{engine.inside("one", takes(0, 48, 32, 16))}
{engine.inside("one", takes(0, 64))}
{engine.remove("one")}
"""
    done = on_machine(installed, script)
    assert done.code == 0, done.err
    assert said(done.out) == [HELD, REFUSED, HELD, HELD]


def _write(path: Path, text: str) -> int:
    """One write(2); 0 or the number of the error."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    except OSError as err:
        return err.errno or 0
    finally:
        os.close(descriptor)
    return 0


def test_one_write_sets_one_region() -> None:
    """Why a limit on two GPUs is two writes; and a name of another form is no name."""
    (regions.CGROUPS / "cgroup.subtree_control").write_text("+dmem")
    folder = regions.CGROUPS / "by-hand"
    folder.mkdir()
    one, two = [f"{regions.name(index)} {64 * regions.MIB}" for index in (0, 1)]
    wrong = (f"{one}\n{two}\n", one.replace("/0000", "/"), one.upper(), regions.name(0))
    try:
        limits = folder / "dmem.max"
        assert [_write(limits, text) for text in wrong] == [errno.EINVAL] * len(wrong)
        assert [_write(limits, text) for text in (one, two)] == [0, 0]
        values = regions.read(limits)
        assert [values[regions.name(index)] for index in (0, 1, 2)] == [str(64 * regions.MIB)] * 2 + ["max"]
    finally:
        folder.rmdir()


def test_a_limit_is_gone_with_the_driver() -> None:
    """In silence: what a container that holds nothing had is no limit once the driver is there again."""
    (regions.CGROUPS / "cgroup.subtree_control").write_text("+dmem")
    folder = regions.CGROUPS / "by-hand"
    folder.mkdir()
    try:
        assert _write(folder / "dmem.max", f"{regions.name(0)} 1048576") == 0
        regions.unload()
        regions.load()
        assert regions.read(folder / "dmem.max")[regions.name(0)] == "max"
    finally:
        folder.rmdir()
