# SPDX-License-Identifier: Apache-2.0
"""The linked rooms: in an order that works, complete for each path, the same rooms, and no need to have them."""

from __future__ import annotations

import ast
import json
import marshal
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from oci_gpu_hook import ldmerge, linked
from oci_gpu_hook.host import saved
from oci_gpu_hook.ldso import Entry
from tests.unit import starts

ROOT = Path(__file__).resolve().parents[2]
TAG = sys.implementation.cache_tag
LINKER = runpy.run_path(str(ROOT / "packaging/link.py"))
FILE = f"oci_gpu_hook/__linked__/rooms.{TAG}"
LATE = {room: names.split() for room, names in LINKER["LATE"].items()}

# The way into the rooms, as the door has Python find it.
ENTER = starts.PROGRAM.replace(starts.MAIN, "")
# What the door has Python do, and then where each room of ours came from: a linked one has no spec of a file.
PROGRAM = f"""{ENTER}
import posix, sys
def exit(status):
    ours = [name for name in sys.modules if name.split(".")[0] == "oci_gpu_hook"]
    files = [name for name in ours if getattr(sys.modules[name], "__file__", None)]
    print(status, ",".join(ours), ",".join(files), flush=True)
    leave(0)
leave, posix._exit = posix._exit, exit
{starts.MAIN}
"""


def link(library: Path) -> None:
    (library / "oci_gpu_hook").mkdir(parents=True)
    for source in (ROOT / "oci_gpu_hook").rglob("*.py"):
        copy = library / source.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(source.read_bytes())
    # As packaging/install.sh has it.
    words = [sys.executable, "-ISB", "-X", "no_debug_ranges", str(ROOT / "packaging/link.py")]
    subprocess.run([*words, str(library), str(library)], check=True)


def started(library: Path, program: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = starts.command(program, *words)
    return subprocess.run(command, capture_output=True, text=True, env=starts.environment(library))


@pytest.fixture()
def library(tmp_path: Path) -> Path:
    link(tmp_path / "library")
    return tmp_path / "library"


class Run:
    """A stage from a library: the exit code, the rooms that were loaded, and which of them from files of their own."""

    def __init__(self, library: Path, folder: Path, devices: str, *options: str) -> None:
        bundle = folder / "bundle"
        (bundle / "rootfs").mkdir(parents=True)
        env = [f"NVIDIA_VISIBLE_DEVICES={devices}"]
        (bundle / "config.json").write_text(
            json.dumps({"root": {"path": "rootfs"}, "process": {"env": env}})
        )
        state = {"id": "c", "pid": os.getpid(), "bundle": str(bundle)}
        words = ["createRuntime", *options]
        ran = subprocess.run(
            starts.command(PROGRAM, *words),
            input=json.dumps(state).encode(),
            capture_output=True,
            env=starts.environment(library),
        )
        assert ran.returncode == 0, ran.stderr.decode()
        status, rooms, files = ran.stdout.decode().rstrip("\n").split(" ")
        self.status, self.said = int(status), ran.stderr.decode()
        self.rooms, self.files = set(rooms.split(",")), set(filter(None, files.split(",")))


def names(group: str) -> set[str]:
    return {linked.full_name(room) for room in linked.GROUPS[group]}


def test_every_room_stands_behind_what_it_imports() -> None:
    """Else an import, at the top of a file, would go and look for a file."""
    before: set[str] = set()
    for group in linked.GROUPS.values():
        for room in group:
            path = ROOT / "oci_gpu_hook" / room.replace(".", "/")
            file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            for node in ast.parse(file.read_text()).body:
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
                    "oci_gpu_hook"
                ):
                    module = str(node.module)
                    needs = {f"{module}.{alias.name}" for alias in node.names} | {module}
                    needs = {
                        name for name in needs if (ROOT / f"{name.replace('.', '/')}.py").exists()
                    }
                    assert needs <= before, room
            before.add(linked.full_name(room))


def test_a_container_without_a_gpu_loads_the_door_alone(library: Path, tmp_path: Path) -> None:
    run = Run(library, tmp_path, "void")
    assert (run.status, run.rooms, run.files) == (0, names("door"), set())


def test_a_container_with_a_gpu_loads_no_room_of_its_path_from_a_file(
    library: Path, tmp_path: Path
) -> None:
    """On a host without a driver: all of the path is loaded, and then the survey."""
    (tmp_path / "host").mkdir()
    run = Run(library, tmp_path, "0", "--host-root", str(tmp_path / "host"))
    assert run.status == 6, run.said
    assert names("door") | names("gpu") | names("provision") | names("survey") == run.rooms
    assert not run.files


def test_a_labelled_start_loads_no_room_of_its_path_from_a_file(
    library: Path, tmp_path: Path
) -> None:
    """On a host with SELinux: what decides and what writes labels comes from one group more."""
    (tmp_path / "host/sys/fs/selinux").mkdir(parents=True)
    (tmp_path / "host/sys/fs/selinux/enforce").write_text("1")
    run = Run(library, tmp_path, "0", "--host-root", str(tmp_path / "host"))
    assert run.status == 6, run.said
    assert names("labels") <= run.rooms
    assert not run.files & (names("door") | names("gpu") | names("labels"))


def test_whatever_a_linked_room_imports_is_linked() -> None:
    """Also in its functions, where imports wait until they are needed; but for the program of people."""
    everywhere = {room for group in linked.GROUPS for room in names(group)}
    found = set()
    for room in everywhere:
        path = ROOT / room.replace(".", "/")
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        for module in imported(ast.parse(file.read_text())):
            if module not in everywhere:
                found.add((room, module))
    assert found == {("oci_gpu_hook.__main__", "oci_gpu_hook.cli")}


def imported(node: ast.AST) -> set[str]:
    """The rooms of ours that a tree imports, but for those that only a type checker sees."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return set()
    found = set()
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("oci_gpu_hook"):
        for alias in node.names:
            name = f"{node.module}.{alias.name}"
            path = ROOT / name.replace(".", "/")
            is_room = path.is_dir() or path.with_suffix(".py").exists()
            found.add(name if is_room else str(node.module))
    for child in ast.iter_child_nodes(node):
        found |= imported(child)
    return found


@pytest.mark.parametrize(
    "damage", ["missing", "cut", "the last byte", "the head", "other", "empty"]
)
def test_without_the_linked_file_the_package_serves(
    library: Path, tmp_path: Path, damage: str
) -> None:
    file = library / FILE
    data = file.read_bytes()
    content = {"cut": data[:5000], "the last byte": data[:-1], "the head": data[:5]}
    file.write_bytes({**content, "other": b"\xff" * 99}.get(damage, b""))
    if damage == "missing":
        file.unlink()
    (tmp_path / "host").mkdir()
    run = Run(library, tmp_path, "0", "--host-root", str(tmp_path / "host"))
    assert run.status == 6, run.said
    assert names("door") | names("gpu") <= run.files


def test_where_a_group_is_spoilt_the_package_serves_in_its_place(
    library: Path, tmp_path: Path
) -> None:
    data = bytearray((library / FILE).read_bytes())
    begin, size = [int.from_bytes(data[at : at + 4], "little") for at in (0, 4)]
    first, length = marshal.loads(data[begin : begin + size])[2]["gpu"]
    data[first : first + length] = b"\xff" * length
    (library / FILE).write_bytes(data)
    (tmp_path / "host").mkdir()
    run = Run(library, tmp_path, "0", "--host-root", str(tmp_path / "host"))
    assert run.status == 6, run.said
    assert names("gpu") <= run.files
    assert not run.files & names("door")


def test_a_start_that_an_upgrade_overtakes_has_rooms_of_one_version(library: Path) -> None:
    """rpm puts file after file into place: rooms of two versions may not know each other."""
    other = library / "other"
    other.write_bytes(b"\xff" * 99)
    for room in ("host/__init__.py", "linux.py"):
        (library / "oci_gpu_hook" / room).write_text("raise ImportError('of another version')\n")
    program = f"""{ENTER}
import os
os.replace({str(other)!r}, {str(library / FILE)!r})
from oci_gpu_hook import linux
print(linux.openat2)
"""
    ran = started(library, program)
    assert ran.returncode == 0, ran.stderr


def test_what_is_late_is_made_when_asked_for(library: Path) -> None:
    program = (
        ENTER
        + """
import oci_gpu_hook.host, oci_gpu_hook.provision, json, sys
late, found = json.loads(sys.argv.pop()), {}
for room, names in late.items():
    module = sys.modules[rooms.linked["full_name"](room)]
    early = [name for name in names if name in vars(module)]
    made = [getattr(module, name) for name in names]
    # A record's class is made by `record`.
    homes = (module.__name__, "oci_gpu_hook.record")
    found[room] = [early, [kind.__name__ for kind in made if kind.__module__ in homes]]
    assert all(getattr(module, name) is vars(module)[name] for name in names)
try:
    module.Nothing
except AttributeError as err:
    print(json.dumps([found, str(err)]))
"""
    )
    ran = started(library, program, json.dumps(LATE))
    assert ran.returncode == 0, ran.stderr
    expected = {room: [[], names] for room, names in LATE.items()}
    room = list(LATE)[-1]
    said = f"module 'oci_gpu_hook.{room}' has no attribute 'Nothing'"
    assert json.loads(ran.stdout) == [expected, said]


@pytest.mark.parametrize(("rows", "splices"), [(127, False), (128, True)])
def test_only_a_cache_of_many_rows_has_splicing_loaded(
    library: Path, rows: int, splices: bool
) -> None:
    entries = [Entry(b"lib%d.so" % row, b"/lib/lib%d.so" % row, 0x0303) for row in range(rows)]
    theirs = ldmerge.merge(None, ldmerge.prepare(entries))
    ours = ldmerge.prepare([Entry(b"libcuda.so.1", b"/usr/lib/libcuda.so.1", 0x0303)])
    program = f"""{ENTER}
import oci_gpu_hook.host
from oci_gpu_hook import ldmerge
theirs, ours = {theirs!r}, ldmerge.Additions._make({saved.plain(ours)!r})
before = "_spliced" in vars(ldmerge)
merged = ldmerge.merge(theirs.replace(b"oci-gpu-hook", b"ldconfig (1)"), ours)
print(before, "_spliced" in vars(ldmerge), merged == ldmerge.merge(theirs, ours))
"""
    ran = started(library, program)
    assert (ran.returncode, ran.stdout) == (0, f"False {splices} True\n"), ran.stderr


@pytest.mark.parametrize("late", ["def other(find): pass", "def other():\n    Mount = 1"])
def test_a_late_name_has_one_meaning_in_its_room(tmp_path: Path, late: str) -> None:
    """Else the linker would take a function's own for what is late."""
    source = (ROOT / "oci_gpu_hook/mountinfo.py").read_text()
    (tmp_path / "oci_gpu_hook").mkdir()
    (tmp_path / "oci_gpu_hook/mountinfo.py").write_text(f"{source}\n\n{late}\n")
    linker = LINKER["_Linker"](
        str(tmp_path), "/library", {"oci_gpu_hook.mountinfo": LATE["mountinfo"]}
    )
    with pytest.raises(ValueError, match="is a late name"):
        linker.room("oci_gpu_hook.mountinfo")


@pytest.mark.parametrize("place", ["/nowhere.so", "", __file__])
def test_a_standard_module_that_has_moved_is_searched_for(
    library: Path, tmp_path: Path, place: str
) -> None:
    """As after an update of Python; the last is a file that is no library."""
    start, groups, made_late = LINKER["link"](str(library), str(library))
    moved = {
        group: (tuple((name, place) for name, _ in standard), rooms)
        for group, (standard, rooms) in groups.items()
    }
    (library / FILE).write_bytes(LINKER["file_of"](start, moved, made_late))
    assert moved != groups
    (tmp_path / "host").mkdir()
    run = Run(library, tmp_path, "0", "--host-root", str(tmp_path / "host"))
    assert run.status == 6, run.said
    assert not run.files & (names("door") | names("gpu"))


def test_linking_twice_gives_the_same_bytes(library: Path, tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    # The place is part of it: tracebacks name it.
    moved = tmp_path / "first"
    library.rename(moved)
    link(library)
    assert (moved / FILE).read_bytes() == (library / FILE).read_bytes()
