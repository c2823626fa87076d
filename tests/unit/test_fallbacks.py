# SPDX-License-Identifier: Apache-2.0
"""The private C modules taken away or changed, one after another: the same rooms do the same by public ones.

Each runs in an interpreter of its own, on whichever Python runs these tests.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from oci_gpu_hook import linux
from tests.unit import hosts, starts
from tests.unit.test_contracts import HOOK, ROOT, bundle_asking_for

# Before ours are imported: what of the private module is there then.  The public one keeps what it has taken of it.
MISSING = "sys.modules['{module}'] = None"
EMPTY = "sys.modules['{module}'] = type(sys)('{module}')"


def said(spoil: str, program: str, *words: str) -> str:
    """What a program prints that sees ours after the spoiling."""
    code = f"import sys\nsys.path.insert(0, sys.argv[1])\n{spoil}\n{program}"
    command = starts.command(code, str(ROOT), *words)
    ran = subprocess.run(command, capture_output=True, text=True, env=starts.environment())
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


# What may happen to _ctypes below a ctypes that still works: names gone, renamed, or meaning something else.
CTYPES = {
    "gone": MISSING,
    "empty": EMPTY,
    "no functions": "import _ctypes; del _ctypes.CFuncPtr",
    "no flags": "import _ctypes; del _ctypes.FUNCFLAG_USE_ERRNO",
    "no dlopen": "import _ctypes; del _ctypes.dlopen",
    "dlopen takes other arguments": "import _ctypes; _ctypes.dlopen = lambda: 0",
    "dlopen refuses": "import _ctypes\ndef refuse(*words): raise OSError('no')\n_ctypes.dlopen = refuse",
    "dlsym takes other arguments": "import _ctypes; _ctypes.dlsym = lambda: 0",
    "no such flags": """import _ctypes
class Other:
    def __init_subclass__(cls): raise ValueError("no such flags")
_ctypes.CFuncPtr = Other""",
}
BY_LINUX = """
import posix
from oci_gpu_hook import linux
print(linux._foreign.__name__)
root = posix.open("/", posix.O_PATH)
print(linux.mount_id(root), linux.filesystem_magic(posix.open("/proc", posix.O_PATH)))
try:
    linux.openat2(root, "nowhere", posix.O_PATH, resolve=linux.RESOLVE_IN_ROOT)
except linux.SyscallError as err:
    print(err)
"""


def told_by_linux(module: str) -> str:
    root = os.open("/", os.O_PATH)
    number = linux.mount_id(root)
    os.close(root)
    said = "openat2 nowhere: No such file or directory"
    return f"{module}\n{number} {linux.PROC_SUPER_MAGIC}\n{said}\n"


def test_linux_does_with_the_private_module_what_it_does_without() -> None:
    assert said("", BY_LINUX) == told_by_linux("_ctypes")


@pytest.mark.parametrize("spoil", CTYPES.values(), ids=CTYPES)
def test_without_what_it_knows_of_ctypes_linux_does_the_same(spoil: str) -> None:
    first = "import ctypes\n" + spoil.format(module="_ctypes")
    assert said(first, BY_LINUX) == told_by_linux("ctypes")


JSON = {
    "gone": MISSING,
    "empty": EMPTY,
    "wants more of its context": """import _json
def make_scanner(context): context.array_hook
_json.make_scanner = make_scanner""",
    "the scanner wants more": """import _json
make = _json.make_scanner
_json.make_scanner = lambda context: lambda text, index, more: None""",
    "made otherwise": "import _json; _json.make_scanner = lambda: None",
}
BY_JSON = r"""
from oci_gpu_hook import jsontext
print(jsontext.loads(b' {"a": [1, 2.5, null, true, "\\u00e9"], "b": {}} '))
for text in (b"", b"{", b"[1,]", b"1 2", b"NaN", b'"\x01"', b"[" * 200000, b"\xff"):
    try:
        print(jsontext.loads(text))
    except ValueError:
        print("refused")
print("json" in sys.modules)
"""


@pytest.mark.parametrize("spoil", JSON.values(), ids=JSON)
def test_without_the_scanner_json_itself_reads(spoil: str) -> None:
    with_it = said("", BY_JSON).splitlines()
    # Where the scanner is there and another, json is of the same Python and knows how to use it.
    first = "" if spoil in (MISSING, EMPTY) else "import json\n"
    without = said(first + spoil.format(module="_json"), BY_JSON).splitlines()
    assert with_it[:-1] == without[:-1] and with_it.count("refused") == 8
    assert without[-1] == "True"


STRUCT = {
    "gone": MISSING,
    "empty": EMPTY,
    "no pack": "import _struct; del _struct.pack",
    "no unpack_from": "import _struct; del _struct.unpack_from",
    "no iter_unpack": "import _struct; del _struct.iter_unpack",
}
BY_STRUCT = """
import posix, sys
from oci_gpu_hook import ldmerge, ldso
from oci_gpu_hook.container import devicefilter
from oci_gpu_hook.host import elf
print(elf.identify(posix.open(sys.executable, posix.O_RDONLY)))
entry = ldso.Entry(flags=ldso.FLAGS[62, 64], soname=b"liba.so.1", path=b"/liba.so.1")
merged = ldmerge.merge(None, ldmerge.prepare([entry]))
print(merged.hex())
print(ldso.parse(merged).entries)
program = devicefilter.program(devicefilter.runtime_defaults())
print(program.hex(), devicefilter.disassemble(program))
"""


@pytest.mark.parametrize("spoil", STRUCT.values(), ids=STRUCT)
def test_without_the_private_struct_the_public_one_does_the_same(spoil: str) -> None:
    first = "import struct\n" + spoil.format(module="_struct")
    assert said(first, BY_STRUCT) == said("", BY_STRUCT)


COLLECTIONS = {"empty": EMPTY, "no getter": "import _collections; del _collections._tuplegetter"}
BY_RECORD = """
from oci_gpu_hook.host.proc import Gpu
gpu = Gpu(0, None, "model", "00000000:07:00.0", 3, "0000:07:00.0", brand="x")
print(gpu, gpu.minor, gpu.brand, gpu.compute_capability == "", gpu._replace(minor=4).minor, gpu == tuple(gpu))
try:
    gpu.minor = 5
except AttributeError:
    print("unchanged")
"""


@pytest.mark.parametrize("spoil", COLLECTIONS.values(), ids=COLLECTIONS)
def test_without_the_private_getter_a_record_is_the_same(spoil: str) -> None:
    assert said(spoil.format(module="_collections"), BY_RECORD) == said("", BY_RECORD)


def started(program: str, state: object, *words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        starts.command(program, *words),
        input=json.dumps(state).encode(),
        capture_output=True,
        env=starts.environment(),
    )


@pytest.mark.parametrize("module", ["_json", "_ctypes", "_struct"])
def test_a_whole_start_is_the_same(tmp_path: Path, module: str) -> None:
    """From the state on stdin to the refusal of a GPU that the host has not."""
    hosts.host(tmp_path / "host")
    bundle = bundle_asking_for("7", tmp_path)
    state = {"id": "c", "pid": os.getpid(), "bundle": str(bundle)}
    public = module.lstrip("_") if module != "_json" else "sys"
    spoil = f"import sys, {public}\n" + EMPTY.format(module=module) + "\n"
    words = ["createRuntime", "--host-root", str(tmp_path / "host"), str(ROOT)]
    ends = []
    for first in ("", spoil):
        ran = started(first + HOOK, state, *words)
        ends.append((ran.stdout.split()[0], ran.stderr))
    assert ends[0] == ends[1]
    assert ends[0][0] == b"5"
    assert ends[0][1].startswith(b"oci-gpu-hook: unknown device '7'")


def test_a_python_without_any_ctypes_is_one_sentence(tmp_path: Path) -> None:
    """Then no system call of ours can be made, and the container must not start without its GPU."""
    bundle = bundle_asking_for("0", tmp_path)
    state = {"id": "c", "pid": os.getpid(), "bundle": str(bundle)}
    spoil = "import sys\n" + MISSING.format(module="_ctypes") + "\n"
    ran = started(spoil + HOOK, state, "createRuntime", str(ROOT))
    assert ran.returncode == 0 and ran.stdout.split()[0] != b"0"
    assert ran.stderr.count(b"\n") == 1 and b"_ctypes" in ran.stderr, ran.stderr
