# SPDX-License-Identifier: Apache-2.0
"""The private C modules are taken away or changed, one after another: ours then use public ones, and do the same.

Each runs in an interpreter of its own, on whichever Python runs these tests.
"""

from __future__ import annotations

import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import pytest

from oci_gpu_hook import record
from tests.unit import hosts, starts
from tests.unit.containers import at_stage, write_bundle

pytestmark = pytest.mark.pythons

# Before ours are imported: what of the private module is there then.  The public one keeps what it has taken of it.
MISSING = "sys.modules['{module}'] = None"
EMPTY = "sys.modules['{module}'] = type(sys)('{module}')"


def said(spoil: str, program: str, *words: str) -> str:
    code = f"import sys\nsys.path.insert(0, sys.argv[1])\n{spoil}\n{program}"
    command = [sys.executable, "-ISB", "-c", code, str(starts.ROOT), *words]
    ran = subprocess.run(command, capture_output=True, text=True, env={})
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


BY_SYSCALLS = """
import posix
from oci_gpu_hook.kernel import syscalls
root = posix.open("/", posix.O_PATH)
print(syscalls.mount_of(root)[0], syscalls.filesystem_magic(posix.open("/proc", posix.O_PATH)))
try:
    syscalls.openat2(root, "nowhere", posix.O_PATH, resolve=syscalls.RESOLVE_IN_ROOT)
except syscalls.SyscallError as err:
    print(err)
print(syscalls._foreign.__name__)
"""
BY_JSON = r"""
from oci_gpu_hook.formats import jsontext
print(jsontext.loads(b' {"a": [1, 2.5, null, true, "\\u00e9"], "b": {}} '))
for text in (b"", b"{", b"[1,]", b"1 2", b"NaN", b'"\x01"', b"[" * 200000, b"\xff"):
    try:
        print(jsontext.loads(text))
    except ValueError:
        print("refused")
print("json")
"""
BY_ALARM = """
import posix, select
from oci_gpu_hook.kernel import alarm
alarm.SECONDS = 1
alarm.begin(ValueError("late"))
try:
    select.select([], [], [])
except ValueError as err:
    print(err)
print(alarm.signal.__name__)
"""
BY_RECORD = """
from oci_gpu_hook.driver.proc import Gpu
gpu = Gpu(0, None, "model", "00000000:07:00.0", 3, "0000:07:00.0", brand="x")
print(gpu, gpu.minor, gpu.brand, gpu.compute_capability == "", gpu._replace(minor=4).minor, gpu == tuple(gpu))
try:
    gpu.minor = 5
except AttributeError:
    print("unchanged")
print("collections" if isinstance(Gpu.minor, property) else "_collections")
"""
# A program for each private module, which says at its end what it has used.
PROGRAMS = {"_ctypes": BY_SYSCALLS, "_json": BY_JSON, "_signal": BY_ALARM, "_collections": BY_RECORD}
# What may happen to one below a public module that still works: it is gone, or names in it are, or mean something else.
SPOILT = {
    "_ctypes": {
        "gone": MISSING,
        "empty": EMPTY,
        "no flags": "import _ctypes; del _ctypes.FUNCFLAG_USE_ERRNO",
        "dlopen takes other arguments": "import _ctypes; _ctypes.dlopen = lambda: 0",
        "dlopen refuses": "import _ctypes\ndef refuse(*words): raise OSError('no')\n_ctypes.dlopen = refuse",
        "no such flags": """import _ctypes
class Other:
    def __init_subclass__(cls): raise ValueError("no such flags")
_ctypes.CFuncPtr = Other""",
    },
    "_json": {
        "gone": MISSING,
        "empty": EMPTY,
        "wants more of its context": """import _json
def make_scanner(context): context.later_hook
_json.make_scanner = make_scanner""",
        "the scanner wants more": """import _json
make = _json.make_scanner
_json.make_scanner = lambda context: lambda text, index, more: None""",
        "made otherwise": "import _json; _json.make_scanner = lambda: None",
    },
    "_signal": {"gone": MISSING, "empty": EMPTY},
    "_collections": {"no getter": "import _collections; del _collections._tuplegetter"},
}


@pytest.mark.parametrize(("module", "how"), [(module, how) for module, ways in SPOILT.items() for how in ways])
def test_without_a_private_module_the_public_one_does_the_same(module: str, how: str) -> None:
    public = module[1:]
    # json without its private module has a scanner of its own.
    first = "" if (module, how) in (("_json", "gone"), ("_json", "empty")) else f"import {public}\n"
    *usual, used = said("", PROGRAMS[module]).splitlines()
    *without, used_without = said(first + SPOILT[module][how].format(module=module), PROGRAMS[module]).splitlines()
    assert (usual, used_without) == (without, public)
    # What is not JSON is for json to say.
    assert used == (public if module == "_json" else module)
    assert module != "_json" or usual.count("refused") == 8


def started(spoil: str, bundle: Path, *words: str) -> tuple[int, str, str]:
    return at_stage(starts.command(f"{spoil}\n{starts.MAIN}", "createRuntime", *words), bundle)


@pytest.mark.parametrize("module", ["_json", "_ctypes"])
def test_a_whole_start_is_the_same(tmp_path: Path, module: str) -> None:
    """From the state on stdin to the refusal of a GPU that the host has not."""
    hosts.host(tmp_path / "host")
    bundle = write_bundle(tmp_path, "NVIDIA_VISIBLE_DEVICES=7")
    public = "ctypes" if module == "_ctypes" else "sys"
    spoil = f"import sys, {public}\n{EMPTY.format(module=module)}"
    usual, without = [started(first, bundle, "--host-root", str(tmp_path / "host")) for first in ("", spoil)]
    assert usual == without
    assert usual[:2] == (5, "") and usual[2].startswith("oci-gpu-hook: unknown device '7'")


def test_a_python_without_any_ctypes_is_one_sentence(tmp_path: Path) -> None:
    """Then no system call of ours can be made, and the container must not start without its GPU."""
    bundle = write_bundle(tmp_path, "NVIDIA_VISIBLE_DEVICES=0")
    status, _, said = started(f"import sys\n{MISSING.format(module='_ctypes')}", bundle)
    assert status and said.count("\n") == 1 and "_ctypes" in said, said


# --- our NamedTuple behaves as typing's: the same source, run with either

SOURCE = '''
from __future__ import annotations
class Point(NamedTuple):
    """A point."""
    x: int
    y: int = 2
    @property
    def total(self) -> int:
        return self.x + self.y
'''


def points() -> list[Any]:
    made = []
    for base in (record.NamedTuple, typing.NamedTuple):
        names: dict[str, Any] = {"NamedTuple": base, "__name__": __name__}
        exec(SOURCE, names)
        made.append(names["Point"])
    return made


@pytest.mark.parametrize("point", points())
def test_a_record_is_as_typings(point: Any) -> None:
    value = point(1)
    assert (value.x, value.y, value.total, point.__doc__) == (1, 2, 3, "A point.")
    assert value == (1, 2) == point(y=2, x=1)
    assert repr(value) == "Point(x=1, y=2)"
    assert (value._asdict(), value._replace(x=5).x, point._fields) == ({"x": 1, "y": 2}, 5, ("x", "y"))
    wrong: list[tuple[Any, Any]] = [((), {}), ((1, 2, 3), {}), ((1,), {"x": 2}), ((1,), {"z": 2})]
    for arguments, named in wrong:
        with pytest.raises(TypeError):
            point(*arguments, **named)
    for name in ("x", "other"):
        with pytest.raises(AttributeError):
            setattr(value, name, 3)
