# SPDX-License-Identifier: Apache-2.0
"""What root runs at a container's start lies apart from what commands use, and SECURITY.md names it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "oci_gpu_hook"
SOURCES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (ROOT / PACKAGE).rglob("*.py")
}
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
