# SPDX-License-Identifier: Apache-2.0
"""Link the hook's rooms into one file, for the Python that runs this: see oci_gpu_hook/linked.py.

    python3 -ISB -X no_debug_ranges packaging/link.py FOLDER LIBRARY

FOLDER holds the package, which gets the file; LIBRARY is where it will lie, which tracebacks name.  Docstrings go, and
so do annotations of functions and what only a type checker sees: nobody reads them in a container's start, and each is
code to load.  Annotations of classes stay, for they are the fields of records.  What a room imports of the rooms before
it is written down beside its code, for to look it up takes a tenth of what the import statement takes; and what few
starts need is left out of the room's code, which asks for it.  The same sources give the same bytes.
"""

from __future__ import annotations
import __future__

import ast
import hashlib
import importlib.util
import marshal
import os
import sys
from functools import partial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from types import CodeType
    from typing import Any, Optional

    from oci_gpu_hook.linked import Group, Room

    # A record's fields with their defaults, None where there is none.
    Fields = dict[str, Optional[ast.expr]]

_RECORD = "oci_gpu_hook.record"

# What the file begins with: where the door's part begins, and how many bytes it has, in four bytes each.
HEAD = 8

# Modules of the standard library in C that the rooms of a group import, which are loaded from where they are now: to
# search for one takes longer than to load it.
STANDARD = {"door": ("_collections", "_json"), "gpu": ("_ctypes", "_struct")}

# What most starts of a GPU container do without, by room: made when the first of it is asked for, all of the room.  To
# make a class takes as long as to open three files, and to read a function half as long as to open one.
LATE = {
    "errors": "quoted HookError UsageError BundleError ConfigError RequestError DriverError ApplyError",
    "jsontext": "_loads_by_json",
    "record": "_completed _RecordType NamedTuple",
    "oci": "written linux_devices mount_source mount_label process_label _text _wrong_shape",
    "report": "failure say _place",
    "selectors": "_mig _bus_id",
    "sources": "_in_mounts",
    "hook": "_start_labels_only _without_edits",
    "decision": "_provide _inventory container_like_host _laid_out_like_host",
    "request": "of_nodes _beyond_spec _major_minor _imex_channel",
    "operations": "Symlink Relabel Labels DeviceAllow mount_paths",
    "account": "_field",
    "linux": "SyscallError umount2 connect",
    "mountinfo": "Mount find",
    "config": "Setting parse written matches nearest _value _heading _check_namespace _distance _text",
    "ldorder": "_wrapped",
    "ldso": "MalformedCache Entry Cache parse paths_of flags_of",
    "ldmerge": "prepare entries_of _checked _spliced _is_within _moved _places _above _has_long_string",
    "dbus": "Answer Writer authentication method_call first_answer _fields _string _uint32",
    "systemd": "ScopeUnit scope_unit entries allow_more allow_only _set_device_allow",
    "host.proc": "Gpu character_majors driver_version gpus uuid_of capability_minor information _uuid _pci_address "
    "_nvml_bus_id",
    "host.saved": "write plain _create",
    "host.answers": "Witness keep _make_room",
    "host.nodes": "DeviceLink _numbered _drm _found",
    "host.inventory": "Misfit MigDevice",
    "selection": "_of_nodes _find_mig _unknown_mig _no_driver_for",
    "placement": "_branch _is_soname",
    "container.devicefilter": "disassemble program runtime_defaults _text _deny_any",
    "container.cgroup": "expected _none _allow_v1 _listed _covers _mounts",
    "container.scope": "_text tell answer withdraw _send _receive _read _first",
    "container.mounts": "TargetError",
    "container.devices": "link is_there",
    "plan": "make_labels",
    "apply": "_words _not_there",
}


class _Bare(ast.NodeTransformer):
    """What is left of a room when only the machine reads it; and what it has as BUILD, which build this is."""

    def __init__(self, build: str) -> None:
        self._build = build

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        if [ast.unparse(target) for target in node.targets] == ["BUILD"]:
            node.value = ast.Constant(self._build)
        return node

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

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        checked = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        return node.orelse if checked else node


class _Records(ast.NodeTransformer):
    """Makes records and their classes by one call each of `oci_gpu_hook.record`.

    A class that is nothing but fields is spared its body and its annotations, and a record the way through its class,
    which takes two to ten times as long.  `known` has the fields of the classes that a room can mean, by what it calls
    them; `used` is what the room then needs of `record`.
    """

    def __init__(self, known: Callable[[ast.expr], Fields | None]) -> None:
        self._known = known
        self.used: set[str] = set()

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.generic_visit(node)
        fields = fields_of(node)
        if fields is None:
            return node
        defaults = {name: value for name, value in fields.items() if value is not None}
        parts = [
            ast.Constant(node.name),
            ast.Tuple([ast.Constant(name) for name in fields], ast.Load()),
            ast.Dict([ast.Constant(name) for name in defaults], list(defaults.values())),
        ]
        made = ast.Assign([ast.Name(node.name, ast.Store())], self._call("make_record", parts))
        return ast.copy_location(made, node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        fields = self._known(node.func)
        named = {keyword.arg or "**": keyword.value for keyword in node.keywords}
        if fields is None or "**" in named or any(isinstance(a, ast.Starred) for a in node.args):
            return node
        told = {**dict(zip(fields, node.args)), **named}
        row = {**fields, **told}
        values = [value for value in row.values() if value is not None]
        is_whole = len(values) == len(row) == len(fields)
        if not is_whole or len(told) != len(node.args) + len(named):
            return node  # the class has the words for what is wrong
        if any(has_name(value) for field, value in row.items() if field not in told):
            return node  # a default's names are those of the class's room
        parts = [node.func, ast.Tuple(values, ast.Load())]
        return ast.copy_location(self._call("new_record", parts), node)

    def _call(self, function: str, parts: list[ast.expr]) -> ast.Call:
        self.used.add(function)
        return ast.Call(ast.Name(function, ast.Load()), parts, [])


class _Asking(ast.NodeTransformer):
    """Has a room ask a module for what is made late, wherever it uses its name.

    The module is a global of its full name, which is no name that a source can have.  ValueError where a function has
    something of its own by a late name.
    """

    def __init__(self, modules: dict[str, str]) -> None:
        self._modules = modules

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id not in self._modules:
            return node
        if not isinstance(node.ctx, ast.Load):
            raise ValueError(f"line {node.lineno}: {node.id} is a late name")
        module = ast.Name(self._modules[node.id], ast.Load())
        return ast.copy_location(ast.Attribute(module, node.id, node.ctx), node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        if node.arg in self._modules:
            raise ValueError(f"line {node.lineno}: {node.arg} is a late name")
        return node


def has_name(value: ast.expr | None) -> bool:
    """Whether an expression means something by a name."""
    return value is not None and any(isinstance(part, ast.Name) for part in ast.walk(value))


def fields_of(node: ast.ClassDef) -> Fields | None:
    """Names and defaults of a record's fields; None for any other class, and for one that is more than its fields."""
    # An attribute where it is late in its room.
    bases = [getattr(base, "id", getattr(base, "attr", "")) for base in node.bases]
    fields: Fields = {}
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            fields[item.target.id] = item.value
        elif not (isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant)):
            return None
    return fields if bases == ["NamedTuple"] else None


def build_of(folder: str) -> str:
    """A digest of all sources, and of the Python that compiles them."""
    digest = hashlib.sha256(sys.version.encode())
    for place, _, names in sorted(os.walk(f"{folder}/oci_gpu_hook")):
        for name in sorted(names):
            if name.endswith(".py"):
                with open(f"{place}/{name}", "rb") as source:
                    digest.update(source.read())
    return digest.hexdigest()


class _Linker:
    """Makes rooms of the package in `folder`, one behind another."""

    def __init__(self, folder: str, library: str, late: dict[str, list[str]]) -> None:
        self._folder = folder
        self._library = library
        self._late = late
        self._records: dict[str, dict[str, Fields]] = {}
        self._build = build_of(folder)
        self.made_late = b""

    def room(self, name: str, before: Collection[str] = ()) -> Room:
        """The module `name`, which finds the modules `before` loaded."""
        file = self._file(name)
        with open(f"{self._folder}/{file}", encoding="utf-8") as opened:
            tree = _Bare(self._build).visit(ast.parse(opened.read()))
        imports = [node for node in tree.body if self._is_loaded(node, before)]
        late = [node for node in tree.body if self._is_late(node, name)]
        tree.body = [node for node in tree.body if node not in imports + late]
        asked = {node.name: name for node in late}
        meant = self._records[name] = self._records_in(late + tree.body)
        given = []
        for node in imports:
            theirs = self._late.get(node.module, ())
            words = [alias.name for alias in node.names]
            theirs_too = self._records.get(node.module, {})
            meant = {**meant, **{word: theirs_too[word] for word in words if word in theirs_too}}
            asked.update({word: node.module for word in words if word in theirs})
            given.append((node.module, tuple([word for word in words if word not in theirs])))
        records = _Records(partial(self._fields, meant))
        names = tuple([node.name for node in late])
        made = marshal.dumps(self._compile(file, late, asked, records)) if late else b""
        place = (HEAD + len(self.made_late), len(made))
        self.made_late += made
        code = self._compile(file, tree.body, asked, records)
        if records.used:
            given.append((_RECORD, tuple(sorted(records.used))))
        parent, _, child = name.rpartition(".")
        is_package = file.endswith("/__init__.py")
        return name, parent, child, is_package, tuple(given), (names, place), code

    def _records_in(self, body: list[ast.stmt]) -> dict[str, Fields]:
        classes = [node for node in body if isinstance(node, ast.ClassDef)]
        return {node.name: fields for node in classes if (fields := fields_of(node)) is not None}

    def _fields(self, meant: dict[str, Fields], function: ast.expr) -> Fields | None:
        """The fields of the record class that is called `Name`, or `room.Name` by the room's last name."""
        if isinstance(function, ast.Name):
            return meant.get(function.id)
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            for module, records in self._records.items():
                if function.value.id in (module, module.rpartition(".")[2]):
                    return records.get(function.attr)
        return None

    def _compile(
        self, file: str, body: list[ast.stmt], asked: dict[str, str], records: _Records
    ) -> CodeType:
        tree = records.visit(_Asking(asked).visit(ast.Module(body, [])))
        tree = ast.fix_missing_locations(tree)
        flags = __future__.annotations.compiler_flag
        file = f"{self._library}/{file}"
        code: CodeType = compile(tree, file, "exec", flags, dont_inherit=True, optimize=2)
        return code

    def _file(self, name: str) -> str:
        """The module's file below the folder; "" where there is none."""
        files = [name.replace(".", "/") + end for end in (".py", "/__init__.py")]
        return "".join([file for file in files if os.path.exists(f"{self._folder}/{file}")])

    def _is_late(self, node: ast.stmt, name: str) -> bool:
        """Whether a statement of the module `name` defines something late."""
        late = self._late.get(name, ())
        return isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name in late

    def _is_loaded(self, node: ast.stmt, before: Collection[str]) -> bool:
        """Whether all that a statement does is to take names from modules that are loaded."""
        if not isinstance(node, ast.ImportFrom) or node.module not in before:
            return False
        modules = [f"{node.module}.{alias.name}" for alias in node.names]
        return not any(alias.asname for alias in node.names) and all(
            module in before or not self._file(module) for module in modules
        )


def link(folder: str, library: str) -> tuple[CodeType, dict[str, Group], bytes]:
    """What loads rooms, the groups, and what is made late in them."""
    linked: dict[str, Any] = {}
    *_, start = _Linker(folder, library, {}).room("oci_gpu_hook.linked")
    exec(start, linked)
    late = {linked["full_name"](room): names.split() for room, names in LATE.items()}
    linker = _Linker(folder, library, late)
    before: list[str] = []
    groups: dict[str, Group] = {}
    for group, names in linked["GROUPS"].items():
        modules = [linked["full_name"](name) for name in names]
        rooms = [linker.room(name, before + modules[:at]) for at, name in enumerate(modules)]
        groups[group] = (tuple(_standard(STANDARD.get(group, ()))), tuple(rooms))
        if group in ("door", "gpu"):
            before += modules
    return start, groups, linker.made_late


def file_of(start: CodeType, groups: dict[str, Group], made_late: bytes) -> bytes:
    """The head, what is late, the groups, and last the door's part: without that, the file is as good as none."""
    data = bytes(HEAD) + made_late
    places = {}
    for name, group in groups.items():
        if name != "door":
            part = marshal.dumps(group)
            places[name] = (len(data), len(part))
            data += part
    door = marshal.dumps((start, groups["door"], places))
    head = len(data).to_bytes(4, "little") + len(door).to_bytes(4, "little")
    return head + data[HEAD:] + door


def _standard(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Where this Python has modules of its own: a file, or "" where it is built in."""
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            yield name, spec.origin if spec.has_location else ""


def main() -> None:
    folder, library = sys.argv[1:]
    output = f"{folder}/oci_gpu_hook/__linked__"
    os.mkdir(output)
    with open(f"{output}/rooms.{sys.implementation.cache_tag}", "wb") as file:
        file.write(file_of(*link(folder, library)))


if __name__ == "__main__":
    main()
