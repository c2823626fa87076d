# SPDX-License-Identifier: Apache-2.0
"""Link the modules of a container's start into one file, for the Python that runs this.

    python3 -ISB packaging/link.py FOLDER LIBRARY

FOLDER holds the package, and gets the file; one that is there is replaced in one step, so that starts go on meanwhile.
LIBRARY is the folder where the package will be installed: tracebacks name it.  oci_gpu_hook/startup/linked.py reads the
file, and says what it is for.  The same sources give the same bytes.

The names that a module imports from ours at its top are listed beside its code.  A start has three hundred such
imports, and an import statement takes ten times as long as to look up the name in the loaded module.
"""

from __future__ import annotations
import __future__

import ast
import marshal
import os
import sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import MAGIC_NUMBER, find_spec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType

    # Name, whether it is a package, what it imports of ours (module and names), and its code.
    Module = tuple[str, bool, tuple[tuple[str, tuple[str, ...]], ...], CodeType]

PACKAGE = "oci_gpu_hook"
# The file begins with the number of the bytecode's form, and with the size of the index, each in so many bytes.
SIZE_BYTES = 4

# The extension modules of the interpreter that every container with a GPU needs.
EXTENSIONS = ("_json", "_ctypes")

# A group is a part of the file, and is loaded whole with the first of its modules: these modules, and what they import
# at their top, unless a group above has it.
ROOTS = {
    # Whatever Python is started for.
    "state": ("kernel.descriptors", "kernel.filetypes", "report.sentence", "request.state"),
    "runtime": ("runtime.create",),
    # Every container for which the hook starts Python.
    "start": ("hook", "__main__"),
    # Before crun sets a container's resources again.
    "update": ("runtime.update",),
    # A container with a GPU, or one whose labels are corrected.  In pieces of less than 128 KiB: for what is larger,
    # malloc maps new memory (mallopt(3), M_MMAP_THRESHOLD), and each page of it is a fault.
    "gpu": ("request.parse", "container.rootfs", "container.layout"),
    "apply": ("planning.decide", "apply"),
    "record": ("report.records",),
    # What drivers give is decided from the saved inventory.
    "provision": ("planning.drivers",),
    # Without a saved inventory that is still true.
    "survey": ("driver.survey",),
    "settings": ("request.settingsfile",),
    # If a container's environment is not accepted, or Swarm counts devices.
    "docker": ("host.docker",),
    # If sections go by images, and no annotation tells the container's.
    "podman": ("host.podman",),
    # If holders are counted, or a GPU is not healthy.
    "holders": ("planning.placement",),
    # If runc says that the container is stopped.
    "restore": ("container.restore",),
    # If the driver has no GPU: which platform this is, and what a Jetson or WSL 2 gives.
    "platform": ("vendors.platform",),
    # If a container may name another vendor's devices.
    "vendors": ("request.vendorrequest", "vendors.folders", "vendors.vendorhost", "planning.vendorshare"),
    "vendors' files": ("vendors.vendorfile", "vendors.vendorsurvey"),
    "platforms": ("planning.platforms",),
    "platforms' files": ("vendors.tegra", "vendors.wsl"),
    "forward compatibility": ("container.compat", "planning.compatibility"),
    "crun": ("report.crun",),
    "nodes' groups": ("planning.nodegroups",),
    "requirements": ("planning.requirements",),
    "nvidia-container-cli": ("request.containercli", "runtime.configure"),
    "cdi": ("request.cdirequest", "planning.meanings"),
    "labels": ("planning.labels", "changes.contextset"),
    "cgroup v1": ("changes.cgroup_v1",),
    # If a limit is asked for, or set.
    "device memory": ("request.memory", "planning.memoryshare", "changes.dmem"),
    # If the setting gpu-memory-by lets NVIDIA's driver limit it.
    "NVML": ("changes.nvmllimit",),
    "cgroup v2": ("changes.cgroup_v2",),
    "systemd": ("formats.scopeunit", "changes.scope"),
}


def groups(folder: str) -> dict[str, tuple[str, ...]]:
    """The modules of each group; in a group each comes after those that it imports at its top."""
    placed: list[str] = []
    found = {}
    for group, roots in ROOTS.items():
        first = len(placed)
        for root in roots:
            _place(folder, root, placed)
        found[group] = tuple(placed[first:])
    return found


def _place(folder: str, module: str, placed: list[str]) -> None:
    """Append what a module needs, and the module itself, unless they are placed already."""
    if module in placed:
        return
    if module:
        _place(folder, module.rpartition(".")[0], placed)
    for source, names in imports_of(ast.parse(read(f"{folder}/{file_of(folder, module)}"))):
        for name in names:
            inner = f"{source}.{name}"[len(PACKAGE) + 1 :]
            _place(folder, inner if is_module(folder, inner) else source[len(PACKAGE) + 1 :], placed)
    placed.append(module)


def imports_of(tree: ast.Module) -> list[tuple[str, tuple[str, ...]]]:
    """What a module imports of ours at its top: the module, and the names."""
    return [
        (str(node.module), tuple([alias.name for alias in node.names]))
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE)
    ]


def is_module(folder: str, module: str) -> bool:
    """Whether a name is a module's, and nothing that a module has."""
    return os.path.isfile(f"{folder}/{file_of(folder, module)}")


def read(file: str) -> str:
    """A file's text."""
    with open(file, encoding="utf-8") as opened:
        return opened.read()


def full_name(module: str) -> str:
    """The module's name as the import statement has it."""
    return f"{PACKAGE}.{module}" if module else PACKAGE


def file_of(folder: str, module: str) -> str:
    """The module's source, as a path below `folder`."""
    path = full_name(module).replace(".", "/")
    package = f"{path}/__init__.py"
    # A folder alone is what an older release, or an older commit, has left of a package: its __pycache__.
    return package if os.path.isfile(f"{folder}/{package}") else f"{path}.py"


def linked_module(folder: str, library: str, module: str) -> Module:
    """The file's entry for one module."""
    file = file_of(folder, module)
    tree = ast.parse(read(f"{folder}/{file}"))
    imports = imports_of(tree)
    # Also the one from __future__ would load a file: the compiler gets its flag instead.
    ours = (PACKAGE, "__future__")
    tree.body = [
        node for node in tree.body if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith(ours)
    ]
    is_package = file.endswith("/__init__.py")
    return full_name(module), is_package, tuple(imports), compiled(tree, f"{library}/{file}")


def compiled(tree: ast.Module, path: str) -> CodeType:
    """A module's code without what a start does not need: docstrings, annotations, and code for type checkers.

    Annotations of classes stay, because they are the fields of records.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    flags = __future__.annotations.compiler_flag
    tree = ast.fix_missing_locations(tree)
    code: CodeType = compile(tree, path, "exec", flags, dont_inherit=True, optimize=2)
    return code


def extensions() -> dict[str, str]:
    """The files of those of `EXTENSIONS` that this Python has in files."""
    found = {name: find_spec(name) for name in EXTENSIONS}
    return {name: str(it.origin) for name, it in found.items() if it and isinstance(it.loader, ExtensionFileLoader)}


def linked(folder: str, library: str) -> bytes:
    """The file's content: the number of the bytecode's form, the index's size, the index, the groups."""
    index: dict[str, tuple[int, int] | str] = {**extensions()}
    data = b""
    for names in groups(folder).values():
        part = marshal.dumps([linked_module(folder, library, name) for name in names])
        place = (len(data), len(part))
        index.update({full_name(name): place for name in names})
        data += part
    head = marshal.dumps(index)
    return MAGIC_NUMBER + len(head).to_bytes(SIZE_BYTES, "little") + head + data


def main() -> None:
    """Write the file below FOLDER."""
    folder, library = sys.argv[1:]
    output = f"{folder}/{PACKAGE}/__linked__"
    content = linked(folder, library)
    os.makedirs(output, exist_ok=True)
    path = f"{output}/modules.{sys.implementation.cache_tag}"
    with open(f"{path}.new", "wb") as file:
        file.write(content)
    os.rename(f"{path}.new", path)


if __name__ == "__main__":
    main()
