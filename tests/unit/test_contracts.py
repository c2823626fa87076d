# SPDX-License-Identifier: Apache-2.0
"""What holds for the whole tree: what files import, how every file begins, what the map names, what no text says.

The import contracts between modules are in .importlinter; here is what a contract cannot say.  What root runs at a
container's start lies apart from what commands use, and SECURITY.md names it.
"""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from tests.unit import starts

pytestmark = pytest.mark.pythons

ROOT = starts.ROOT
PACKAGE = "oci_gpu_hook"
SOURCES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (ROOT / PACKAGE).rglob("*.py")
}
SPDX = "SPDX-License-Identifier: Apache-2.0"
# What the entry scripts start, and the linked modules' loader.
STARTS = ("startup.linked", "hook", "runtime.create", "runtime.update", "runtime.configure")
COMMANDS = {"cli", "node"}


def imported(node: ast.AST, *, for_types: bool = True) -> set[str]:
    """The modules of ours that a tree imports anywhere in it; for_types: also where only a type checker sees it."""
    if isinstance(node, ast.If) and not for_types and "TYPE_CHECKING" in ast.unparse(node.test):
        return set()
    found = set()
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
        names = [f"{node.module}.{alias.name}" for alias in node.names]
        found = {name if name in SOURCES else str(node.module) for name in names}
    return found.union(*[imported(child, for_types=for_types) for child in ast.iter_child_nodes(node)])


def source(module: str) -> ast.Module:
    return ast.parse(SOURCES[module].read_bytes())


def reached() -> set[str]:
    """The modules that a start can reach, but for `__main__`'s way to the commands."""
    found, ahead = {f"{PACKAGE}.__main__"}, [f"{PACKAGE}.{name}" for name in STARTS]
    while ahead:
        module = ahead.pop()
        if module not in found:
            found.add(module)
            ahead += [*imported(source(module)), module.rpartition(".")[0] or module]
    return found


def top(module: str) -> str:
    return module.split(".")[1] if "." in module else module


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


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
    for path in SOURCES.values():
        for node in ast.walk(ast.parse(path.read_bytes())):
            of = [str(node.module)] if isinstance(node, ast.ImportFrom) and not node.level else []
            for module in [alias.name for alias in node.names] if isinstance(node, ast.Import) else of:
                places.setdefault(module.partition(".")[0], set()).add(name(path)[len(f"{PACKAGE}/") :])
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
    assert sorted(mapped) == sorted({top(module) for module in SOURCES} - {PACKAGE})


@pytest.mark.parametrize("document", ["CONTRIBUTING.md", "SECURITY.md"])
def test_what_the_map_names_is_there(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    for named in re.findall(r"`((?:[\w.-]+/)+[\w.-]+)`", text):
        assert (ROOT / named).exists() or (ROOT / PACKAGE / named).exists(), named


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
    nodes = [(path, node) for path in SOURCES.values() for node in ast.walk(ast.parse(path.read_bytes()))]
    attributes = {(name(path), node.attr) for path, node in nodes if isinstance(node, ast.Attribute)}
    found = {it for it in attributes if it[1].startswith(words)}
    assert found == {("oci_gpu_hook/host/statefile.py", "lockf")}
    scripts = [path for path in files_of_the_repository() if name(path).startswith(("hooks.d/", "packaging/"))]
    assert [name(path) for path in scripts if re.search(rb"^[^#\n]*\bflock\b", path.read_bytes(), re.MULTILINE)] == []


def repeated(names: list[str]) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})


def test_security_names_what_root_runs_at_a_start() -> None:
    """Who audits reads these and no more."""
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"^## What root runs at a start\n(.*?)(?=^## )", text, re.MULTILINE | re.DOTALL)
    found = reached()
    assert set(re.findall(r"`(\w+)`", section)) - COMMANDS == {top(module) for module in found} - {PACKAGE}


def test_what_no_start_reaches_is_apart() -> None:
    """A package is of one house whole."""
    assert {top(module) for module in set(SOURCES) - reached()} == COMMANDS


def test_a_modules_name_occurs_once() -> None:
    """The command line's files are named by the commands."""
    assert repeated([module.rpartition(".")[2] for module in SOURCES if top(module) != "cli"]) == []


def test_a_name_tells_what_it_is() -> None:
    """Two records that mean different things have different names, and a module's functions say what they read."""
    nodes = [node for module in SOURCES for node in source(module).body]
    assert repeated([node.name for node in nodes if isinstance(node, ast.ClassDef)]) == []
    functions = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    assert functions.isdisjoint({"look", "read", "parse", "_text"})


REFUSED = re.compile(
    r"\b(?:whoever|nobody|anew|mend(?:s|ed|ing)?|look(?:s|ed|ing)? through|what (?:is|was|were) asked"
    r"|(?<!there )(?:is|are|was|were) no(?! longer| more) [a-z])",
    re.IGNORECASE,
)
# A line's end, with what ends a string there and what begins the next line's string or comment.
BREAK = re.compile(r'"?\s*\n\s*(?:[#;] |f?")?')
GENERATED = re.compile(r"\.(?:pyc|conf|[578])$")


@pytest.mark.parametrize("folder", ["oci_gpu_hook", "hooks.d", "packaging", "policy"])
def test_no_text_has_a_word_that_the_house_refuses(folder: str) -> None:
    """CONTRIBUTING.md, the rules of the house."""
    files = [path for path in (ROOT / folder).rglob("*") if path.is_file() and not GENERATED.search(path.name)]
    assert files
    for file in files:
        text = BREAK.sub(" ", file.read_text())
        assert [text[it.start() - 40 : it.end() + 20] for it in REFUSED.finditer(text)] == [], file
