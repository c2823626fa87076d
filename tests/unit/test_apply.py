# SPDX-License-Identifier: Apache-2.0
"""The loop that carries a plan out: what stops a start, what is only noted, and what is taken back.

No namespace is entered here, and nothing is mounted: the operations of these tests write down what is asked of them.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from oci_gpu_hook import apply
from oci_gpu_hook.changes import namespace
from oci_gpu_hook.errors import ApplyError, DriverError
from oci_gpu_hook.kernel.descriptors import closing
from oci_gpu_hook.planning.plan import Plan
from tests.unit import starts
from tests.unit.containers import CONTAINER, DEBIAN

if TYPE_CHECKING:
    from oci_gpu_hook.changes.tree import Tree, Undo
    from oci_gpu_hook.operations import Operation, Perform

NAMESPACE = 7
ENTER, LEAVE = f"enter {NAMESPACE}", "leave home"


class Process:
    def open(self, name: str, flags: int) -> int:
        assert name == "ns/mnt"
        return NAMESPACE


class Step:
    """An operation that writes down what is asked of it; `fails` says at which of its methods it fails."""

    reason = "a test"

    def __init__(self, log: list[str], name: str, *, required: bool = True, fails: str = "", note: str = "") -> None:
        self.required = required
        self._log, self._name, self._fails, self._note = log, name, fails, note

    def describe(self) -> str:
        return f"do {self._name}"

    def prepare(self, host: object, undo: Undo) -> Perform:
        self._ask("prepare", undo)
        return self._perform

    def _perform(self, tree: Tree) -> str:
        self._ask("perform", tree.undo)
        return self._note

    def _ask(self, what: str, undo: Undo) -> None:
        self._log.append(f"{what} {self._name}")
        undo.remember(self._log.append, f"undo {what} {self._name}")
        if self._fails == what:
            raise OSError(errno.EIO, "it broke")


@pytest.fixture()
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []

    def enter(inside: int) -> str:
        found.append(f"enter {inside}")
        return "home"

    monkeypatch.setattr(namespace, "enter", enter)
    monkeypatch.setattr(namespace, "move", lambda home, verb: found.append(f"{verb} {home}"))
    monkeypatch.setattr(namespace, "drop_privileges", lambda **_: found.append("drop"))
    return found


def run(root: Path, *operations: Operation) -> list[str]:
    plan = Plan(CONTAINER, DEBIAN, None, operations, ())
    host: Any = None
    process: Any = Process()
    with closing(os.open(root, os.O_PATH)) as fd:
        return apply.run(plan, host, fd, process)


def test_everything_is_prepared_before_the_containers_namespace_is_entered(log: list[str], tmp_path: Path) -> None:
    assert run(tmp_path, Step(log, "a"), Step(log, "b", note="nothing to do")) == ["nothing to do"]
    assert log == ["prepare a", "prepare b", "drop", ENTER, "perform a", "perform b", LEAVE]
    assert os.umask(0) == 0


def test_an_optional_step_that_fails_is_taken_back_alone(log: list[str], tmp_path: Path) -> None:
    steps = (Step(log, "a"), Step(log, "b", required=False, fails="perform"), Step(log, "c"))
    assert run(tmp_path, *steps) == ["cannot do b: it broke"]
    assert log[-5:] == ["perform a", "perform b", "undo perform b", "perform c", LEAVE]
    # All is, if it is required, where it was done: the kernel unmounts nothing of a namespace that the caller has left.
    with pytest.raises(ApplyError):
        run(tmp_path, Step(log, "a"), Step(log, "b", fails="perform"))
    assert log[-5:] == ["undo perform b", "undo perform a", LEAVE, "undo prepare b", "undo prepare a"]


def test_a_step_that_cannot_be_prepared_stops_the_start_before_anything_is_done(log: list[str], tmp_path: Path) -> None:
    with pytest.raises(DriverError, match="cannot do b") as caught:
        run(tmp_path, Step(log, "a"), Step(log, "b", fails="prepare"), Step(log, "c"))
    assert caught.value.exit_code == 6 and "inventory refresh" in caught.value.hint
    assert log == ["prepare a", "prepare b", "undo prepare b", "undo prepare a"]


def test_an_optional_step_that_cannot_be_prepared_is_noted_and_not_performed(log: list[str], tmp_path: Path) -> None:
    steps = (Step(log, "a", required=False, fails="prepare"), Step(log, "b"))
    assert run(tmp_path, *steps) == ["cannot do a: it broke"]
    assert log == ["prepare a", "prepare b", "drop", ENTER, "perform b", LEAVE]


# Each kind of operation that imports anything itself, on a host and in a container that bring it as far as that.
IN_THE_CONTAINER = """
import os, sys
sys.path.insert(0, sys.argv[1])
from oci_gpu_hook import apply
from oci_gpu_hook.changes import namespace, tree
from oci_gpu_hook.formats import ldcache
from oci_gpu_hook.formats.devicerule import DeviceRule
from oci_gpu_hook.formats.ldcache import Entry
from oci_gpu_hook.kernel import bpf
from oci_gpu_hook.operations import LdCache, OpenCgroup, Relabel
from oci_gpu_hook.planning.plan import Plan

class Unreachable:
    def find_spec(self, name, path=None, target=None):
        raise ImportError(f"{name} is imported in the container's namespace")

folder = sys.argv[2]
for name in ("devices.list", "devices.allow"):
    open(f"{folder}/{name}", "w").close()
with open(f"{folder}/ld.so.cache", "wb") as cache:
    rows = [Entry(b"lib%d.so" % n, b"/lib%d.so" % n, 3) for n in range(200)]
    cache.write(ldcache.merge(None, rows))
def full(*_):
    raise OSError(28, "full")
tree.Tree.rewrite = full
tree.Tree.cover_with = lambda self, target, file, data: print("merged", target, file)

# A cgroup with one program, which the kernel does not show.
programs = [1]
bpf.prog_query = lambda fd, **how: (0, programs[:])
bpf.prog_get_fd_by_id = bpf.prog_id = lambda number: number
bpf.prog_insns = lambda fd: None
bpf.prog_load = lambda program, **how: 2
bpf.prog_attach = lambda fd, program, **how: programs.__setitem__(0, program)

rules = (DeviceRule("c", 195, 0, "rw"),)
operations = (
    LdCache("/ld.so.cache", "/conf", ("/driver",), (Entry(b"liba.so", b"/liba.so", 3),), True, ""),
    Relabel("/nowhere", "a:b:c:s0", "", False, ""),
    OpenCgroup("v1", folder, folder, rules, (), True, ""),
    OpenCgroup("v2", folder, folder, rules, (), True, ""),
)
class Process:
    def open(self, name, flags): return 0
namespace.drop_privileges = lambda **_: None
namespace.enter = lambda inside: sys.meta_path.insert(0, Unreachable())
namespace.move = lambda home, verb: None
class Container: own_mounts, is_layer = (), True
class Layout: user_namespace = False
plan = Plan(Container, Layout, None, operations, ())
print(apply.run(plan, None, os.open(folder, os.O_PATH), Process()), programs)
print(open(f"{folder}/devices.allow").read())
"""


def test_nothing_is_imported_in_the_containers_namespace(tmp_path: Path) -> None:
    """The package may not be there: an image has none, and a runtime may have entered its root already."""
    command = [sys.executable, "-ISB", "-c", IN_THE_CONTAINER, str(starts.ROOT), str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    merged, opened, allowed = ran.stdout.splitlines()
    assert (merged, allowed) == ("merged /ld.so.cache /driver/ld.so.cache", "c 195:0 rw")
    assert "cannot relabel /nowhere" in opened and "No such file" in opened
    assert opened.endswith("] [2]")
