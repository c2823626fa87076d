# SPDX-License-Identifier: Apache-2.0
"""What holds for the whole tree: what files import, how every file begins, what the map names.

The import contracts between modules are in .importlinter; here is what a contract cannot say.
"""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.pythons

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "oci_gpu_hook"
SOURCES = sorted(PACKAGE.rglob("*.py"))
SPDX = "SPDX-License-Identifier: Apache-2.0"


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
    words = "ls-files -z --cached --others --exclude-standard"
    try:
        command = ["git", "-C", str(ROOT), *words.split()]
        listed = subprocess.run(command, capture_output=True, check=True)
        paths = [ROOT / path for path in listed.stdout.decode().split("\0") if path]
    except (OSError, subprocess.CalledProcessError):
        hidden = re.compile(r"/(\.(?!ci/)|__pycache__|\w+\.egg-info)")
        paths = [path for path in ROOT.rglob("*") if not hidden.search(f"/{name(path)}")]
    return sorted(path for path in paths if path.is_file())


def test_modules_that_cost_much_or_may_go_away_are_named_in_few_places() -> None:
    """Of a private one there is also the fall-back where it is named; test_fallbacks takes each away."""
    places: dict[str, set[str]] = {}
    for path in SOURCES:
        for module in imported(path):
            places.setdefault(module.partition(".")[0], set()).add(name(path)[len("oci_gpu_hook/") :])
    assert {module: places[module] for module in places if module[:1] == "_" and module[1] != "_"} == {
        "_ctypes": {"kernel/syscalls.py"},
        "_json": {"formats/jsontext.py"},
        "_collections": {"record.py"},
        "_signal": {"kernel/alarm.py"},
    }
    assert places["ctypes"] == {"kernel/syscalls.py"}
    assert {file.partition("/")[0] for file in places["click"]} == {"cli"}
    assert {file.partition("/")[0] for file in places["subprocess"]} == {"cli", "node"}


def test_every_program_has_its_licence_and_a_python_file_says_what_it_is() -> None:
    for path in files_of_the_repository():
        data = path.read_bytes()
        if (data and path.suffix in (".py", ".sh", ".c", ".h")) or data.startswith(b"#!"):
            assert SPDX.encode() in data[:200], name(path)
            assert path.suffix != ".py" or ast.get_docstring(ast.parse(data)), name(path)


def test_the_map_has_every_package_and_no_other() -> None:
    """CONTRIBUTING.md, its table of packages: who adds one says there what it is, and what it must not do."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| package .*\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    mapped = re.findall(r"^\| `([^`]+)` \| ", table, re.MULTILINE)
    tops = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in SOURCES}
    assert sorted(mapped) == sorted(tops - {"__init__"})


@pytest.mark.parametrize("document", ["CONTRIBUTING.md", "SECURITY.md"])
def test_what_the_map_names_is_there(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    for named in re.findall(r"`((?:[\w.-]+/)+[\w.-]+)`", text):
        assert (ROOT / named).exists() or (PACKAGE / named).exists(), named


@pytest.mark.parametrize(("document", "lines"), [("README.md", 110), ("CONTRIBUTING.md", 150)])
def test_a_first_reading_is_short(document: str, lines: int) -> None:
    assert len((ROOT / document).read_text(encoding="utf-8").splitlines()) <= lines


def test_no_file_names_a_folder_of_somebodys_machine() -> None:
    """Paths of a checkout or a home: they work for one person only."""
    personal = re.compile(rb"[\s\"'=:(](/home/\w|/root/\w|/" + rb"work/\w)")
    for path in files_of_the_repository():
        found = personal.search(path.read_bytes())
        assert not found, f"{name(path)}: {found.group().decode() if found else ''}"


def test_locks_are_taken_in_one_way() -> None:
    """By statefile.lock: flock(2) lets any reader of a file or a folder hold what the node waits for, without end."""
    words = ("flock", "lockf", "F_SETLK")
    nodes = [(path, node) for path in SOURCES for node in ast.walk(ast.parse(path.read_bytes()))]
    attributes = {(name(path), node.attr) for path, node in nodes if isinstance(node, ast.Attribute)}
    found = {it for it in attributes if it[1].startswith(words)}
    assert found == {("oci_gpu_hook/host/statefile.py", "lockf")}
    scripts = [path for path in files_of_the_repository() if name(path).startswith(("hooks.d/", "packaging/"))]
    assert [name(path) for path in scripts if re.search(rb"^[^#\n]*\bflock\b", path.read_bytes(), re.MULTILINE)] == []
