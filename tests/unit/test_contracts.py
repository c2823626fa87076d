# SPDX-License-Identifier: Apache-2.0
"""What holds for the whole tree: what files import, what each path loads, how every file begins.

The import contracts between rooms are in .importlinter; here is what a contract cannot say.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.unit import starts

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "oci_gpu_hook"
SOURCES = sorted(PACKAGE.rglob("*.py"))
PYTHON_FILES = [*SOURCES, *sorted((ROOT / "tests").rglob("*.py"))]
SPDX = "SPDX-License-Identifier: Apache-2.0"

# Each costs a container start more than all of our own work.
HEAVY = {
    "argparse",
    "click",
    "collections",
    "contextlib",
    "dataclasses",
    "enum",
    "functools",
    "json",
    "logging",
    "os",
    "pathlib",
    "re",
    "subprocess",
    "tempfile",
    "typing",
}

# As the installed door starts it, and then says what came with it.
HOOK = """
import posix, sys
sys.path.insert(0, sys.argv.pop())
sys.argv[0] = "oci-gpu-hook"
from oci_gpu_hook.__main__ import main
def exit(status):
    print(status, *sys.modules, flush=True)
    leave(0)
leave, posix._exit = posix._exit, exit
main()
"""


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imported(path: Path) -> set[str]:
    """The modules that a file names in its import statements, wherever they stand."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return found


def files_of_the_repository() -> list[Path]:
    """What git tracks or would track; what lies there, where this is no checkout."""
    command = [
        "git",
        "-C",
        str(ROOT),
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]
    try:
        listed = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True
        )
        paths = [ROOT / path for path in listed.stdout.decode().split("\0") if path]
    except (OSError, subprocess.CalledProcessError):
        hidden = re.compile(r"/(\.(?!ci/)|__pycache__|\w+\.egg-info)")
        paths = [path for path in ROOT.rglob("*") if not hidden.search(f"/{name(path)}")]
    return sorted(path for path in paths if path.is_file())


class HookRun:
    """One run of a hook stage in a fresh interpreter: its exit code, and what it had loaded."""

    def __init__(self, bundle: Path, *options: str) -> None:
        state = {
            "ociVersion": "1.0.2",
            "id": "c",
            "status": "created",
            "pid": os.getpid(),
            "bundle": str(bundle),
        }
        ran = subprocess.run(
            starts.command(HOOK, "createRuntime", *options, str(ROOT)),
            input=json.dumps(state).encode(),
            capture_output=True,
            env=starts.environment(),
        )
        assert ran.returncode == 0, ran.stderr.decode()
        status, *modules = ran.stdout.decode().split()
        self.status = int(status)
        self.modules = set(modules)
        self.said = ran.stderr.decode()


def bundle_asking_for(devices: str, folder: Path) -> Path:
    (folder / "rootfs").mkdir()
    config = {
        "ociVersion": "1.0.2",
        "root": {"path": "rootfs"},
        "process": {"env": [f"NVIDIA_VISIBLE_DEVICES={devices}"]},
        "linux": {},
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def standard_library_at_start() -> set[str]:
    """What the interpreter brings by itself: not ours to answer for."""
    command = starts.command("import sys; print(*sys.modules)")
    ran = subprocess.run(command, capture_output=True, check=True, env=starts.environment())
    return set(ran.stdout.decode().split())


def test_only_linux_names_ctypes() -> None:
    named = {
        name(path)
        for path in SOURCES
        if any(m.split(".")[0] in ("ctypes", "_ctypes") for m in imported(path))
    }
    assert named == {"oci_gpu_hook/linux.py"}


def test_only_the_command_line_names_click() -> None:
    named = [path for path in SOURCES if "click" in imported(path)]
    assert named
    assert {path.parent.name for path in named} == {"cli"}


def test_no_room_below_the_command_line_names_subprocess() -> None:
    assert [
        name(path)
        for path in SOURCES
        if path.parent.name != "cli" and "subprocess" in imported(path)
    ] == []


def test_a_container_without_a_request_loads_its_few_rooms_and_nothing_heavy(
    tmp_path: Path,
) -> None:
    run = HookRun(bundle_asking_for("", tmp_path))
    assert (run.status, run.said) == (0, "")
    assert run.modules & (HEAVY | {"ctypes", "_ctypes"}) == set()
    ours = {module for module in run.modules if module.startswith("oci_gpu_hook.")}
    assert ours == {
        "oci_gpu_hook.__main__",
        "oci_gpu_hook.course",
        "oci_gpu_hook.errors",
        "oci_gpu_hook.hook",
        "oci_gpu_hook.jsontext",
        "oci_gpu_hook.oci",
        "oci_gpu_hook.record",
        "oci_gpu_hook.report",
        "oci_gpu_hook.request",
        "oci_gpu_hook.selectors",
        "oci_gpu_hook.sources",
    }


def test_a_container_without_a_request_loads_little_of_the_standard_library(tmp_path: Path) -> None:
    run = HookRun(bundle_asking_for("", tmp_path))
    theirs = {module for module in run.modules if not module.startswith("oci_gpu_hook")}
    assert theirs - standard_library_at_start() <= {"__future__", "_collections", "_json", "gc"}


def test_a_request_loads_every_room_it_needs_and_nothing_heavy(tmp_path: Path) -> None:
    """With a host root that has no driver: by then all rooms are loaded, and nothing is touched."""
    host = tmp_path / "host"
    host.mkdir()
    run = HookRun(bundle_asking_for("all", tmp_path), "--host-root", str(host))
    assert run.status == 6, run.said
    assert {"oci_gpu_hook.apply", "oci_gpu_hook.plan", "oci_gpu_hook.host.inventory"} <= run.modules
    assert run.modules & HEAVY <= {"os"}  # which ctypes brings


@pytest.mark.parametrize("path", PYTHON_FILES, ids=name)
def test_every_python_file_has_its_licence_and_says_what_it_is(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if not text:
        assert path.name == "__init__.py"
        return
    assert SPDX in "".join(text.splitlines(keepends=True)[:2])
    assert ast.get_docstring(ast.parse(text))


def test_every_script_has_its_licence() -> None:
    for path in files_of_the_repository():
        data = path.read_bytes()
        if path.suffix in (".sh", ".c", ".h") or data.startswith(b"#!"):
            assert SPDX.encode() in data[:200], name(path)


def test_the_map_has_every_room_and_no_other() -> None:
    """CONTRIBUTING.md, "The rooms": who adds a room says there what it is, and what it must not do."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    chapter = text.partition("\n## The rooms\n")[2].partition("\n## ")[0]
    mapped = re.findall(r"^\| `([^`]+)` \| ", chapter, re.MULTILINE)
    # An empty __init__.py is no room; one with something in it bears its folder's name.
    rooms = [
        str(path.relative_to(PACKAGE).with_suffix("")).removesuffix("/__init__")
        for path in SOURCES
        if path.read_bytes().strip()
    ]
    assert sorted(mapped) == sorted(rooms)


def test_no_file_names_a_folder_of_somebodys_machine() -> None:
    """Paths of a checkout or a home: they work for one person only."""
    personal = re.compile(rb"[\s\"'=:(](/home/\w|/root/\w|/" + rb"work/\w)")
    for path in files_of_the_repository():
        found = personal.search(path.read_bytes())
        assert not found, f"{name(path)}: {found.group().decode() if found else ''}"
