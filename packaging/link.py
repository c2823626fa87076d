# SPDX-License-Identifier: Apache-2.0
"""Link the hook's rooms into a few files, for the Python that runs this: see oci_gpu_hook/linked.py.

    python3 -ISB packaging/link.py FOLDER LIBRARY

FOLDER holds the package, which gets the files; LIBRARY is where it will lie, which tracebacks name.  Docstrings go, and
so do annotations of functions: nobody reads them in a container's start, and each is code to load.  Annotations of
classes stay, for they are the fields of records.  The same sources give the same bytes.
"""

from __future__ import annotations
import __future__

import ast
import marshal
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType
    from typing import Any


class _Bare(ast.NodeTransformer):
    """What is left of a room when only the machine reads it."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.returns = None
        given = node.args
        for argument in (
            *given.posonlyargs,
            *given.args,
            *given.kwonlyargs,
            given.vararg,
            given.kwarg,
        ):
            if argument is not None:
                argument.annotation = None
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        # The statement loads a file; `compile` takes its flag instead.
        return None if node.module == "__future__" else node


def code_of(folder: str, library: str, name: str) -> tuple[bool, CodeType]:
    """Whether the module `name` is a package, and its code."""
    path = name.replace(".", "/")
    is_package = os.path.isdir(f"{folder}/{path}")
    file = f"{path}/__init__.py" if is_package else f"{path}.py"
    with open(f"{folder}/{file}", encoding="utf-8") as opened:
        tree = _Bare().visit(ast.parse(opened.read()))
    flags = __future__.annotations.compiler_flag
    return is_package, compile(
        tree, f"{library}/{file}", "exec", flags, dont_inherit=True, optimize=2
    )


def link(folder: str, library: str) -> Iterator[tuple[str, Any]]:
    """Each group's name and the content of its file; that of the door has what loads it before its rooms."""
    linked: dict[str, Any] = {}
    _, start = code_of(folder, library, "oci_gpu_hook.linked")
    exec(start, linked)
    for group, names in linked["GROUPS"].items():
        modules = [linked["full_name"](name) for name in names]
        rooms = tuple([(module, *code_of(folder, library, module)) for module in modules])
        yield group, (start, rooms) if group == "door" else rooms


def main() -> None:
    folder, library = sys.argv[1:]
    output = f"{folder}/oci_gpu_hook/__linked__"
    os.mkdir(output)
    for group, content in link(folder, library):
        with open(f"{output}/{group}.{sys.implementation.cache_tag}", "wb") as file:
            file.write(marshal.dumps(content))


if __name__ == "__main__":
    main()
