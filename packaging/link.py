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
import hashlib
import marshal
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType

    # Name, whether it is a package, what it imports of ours (module and names), and its code.
    Module = tuple[str, bool, tuple[tuple[str, tuple[str, ...]], ...], CodeType]

PACKAGE = "oci_gpu_hook"
# The file begins with the size of the index, in so many bytes.
SIZE_BYTES = 4

# A group is a part of the file, and is loaded whole with the first of its modules.  In a group each module comes after
# those that it imports at its top.
GROUPS = {
    # Whatever Python is started for.
    "state": (
        "",
        "errors",
        "record",
        "kernel",
        "kernel.filetypes",
        "formats",
        "formats.jsontext",
        "report",
        "report.sentence",
        "request",
        "request.state",
    ),
    "runtime": ("runtime",),
    # Every container for which the hook starts Python.
    "start": (
        "formats.devicerule",
        "report.progress",
        "request.words",
        "request.bundle",
        "request.settings",
        "request.sources",
        "hook",
        "__main__",
    ),
    # A container with a GPU, where the answer is saved.
    "gpu": (
        "build",
        "request.selectors",
        "request.parse",
        "request.annotations",
        "kernel.procfile",
        "kernel.mountinfo",
        "kernel.syscalls",
        "formats.ldcache_order",
        "formats.ldcache",
        "formats.ldcache_additions",
        "formats.ldcache_merge",
        "host",
        "host.source",
        "host.root",
        "host.saved",
        "container",
        "container.process",
        "container.rootfs",
        "container.layout",
        "container.cgroup",
        "container.scope",
        "container.identity",
        "driver",
        "driver.proc",
        "driver.stamp",
        "changes",
        "changes.undo",
        "changes.privileges",
        "changes.namespace",
        "changes.detached",
        "changes.tree",
        "changes.nodes",
        "changes.ldcache",
        "changes.cgroup",
        "operations",
        "operations.mount",
        "operations.device",
        "operations.symlink",
        "operations.tmpfs",
        "operations.ldcache",
        "operations.relabel",
        "operations.service",
        "operations.cgroup",
        "operations.systemd",
        "operations.vocabulary",
        "planning",
        "planning.plan",
        "planning.answers",
        "planning.decide",
        "apply",
        "report.entry",
        "report.journal",
        "report.record",
    ),
    # Without a saved answer, what the driver gives is decided from the saved inventory.
    "provision": (
        "driver.gpu",
        "driver.nodes",
        "driver.inventory",
        "formats.ldcache_entries",
        "formats.ldcache_prepare",
        "planning.recording",
        "planning.selection",
        "planning.placement",
        "planning.provision",
    ),
    # Without a saved inventory that is still true.
    "survey": ("driver.catalogue", "driver.elf", "driver.mig", "driver.files", "driver.survey"),
    "settings": ("request.sections", "request.settingsfile"),
    # Where a container's environment is not accepted.
    "docker": ("host.docker",),
    # Where a container may name another vendor's devices.
    "vendors": (
        "request.vendors",
        "formats.glob",
        "vendors.vendor",
        "vendors.allowed",
        "vendors.folders",
        "vendors.inventory",
        "vendors.current",
        "vendors.devices",
        "vendors.host",
        "planning.sharing",
        "planning.vendors",
    ),
    "vendors' files": (
        "formats.jsonplaces",
        "vendors.values",
        "vendors.vendorfile",
        "vendors.survey",
    ),
    # Where the driver has no GPU: which platform this is, and what a Jetson or WSL 2 gives.
    "platform": ("vendors", "vendors.platform"),
    "platforms": ("planning.platforms",),
    "platforms' files": ("vendors.tegra", "vendors.wsl"),
    "crun": ("request.crun", "report.runtime"),
    "requirements": ("planning.requirements",),
    "cdi": ("request.bycdi", "planning.cdi"),
    "vendors by CDI": ("planning.cdivendor",),
    "labels": (
        "formats.contexts",
        "container.ipc",
        "planning.labels",
        "changes.labels",
    ),
    "splice": ("formats.ldcache_splice",),
    "cgroup v1": ("changes.cgroup_v1",),
    "cgroup v2": (
        "kernel.bpf",
        "formats.devicefilter",
        "formats.devicefilter_whole",
        "changes.cgroup_v2",
    ),
    "systemd": ("formats.scopeunit", "formats.dbus", "formats.systemd", "changes.scope"),
}


def full_name(module: str) -> str:
    """The module's name as the import statement has it."""
    return f"{PACKAGE}.{module}" if module else PACKAGE


def file_of(folder: str, module: str) -> str:
    """The module's source, as a path below `folder`."""
    path = full_name(module).replace(".", "/")
    return f"{path}/__init__.py" if os.path.isdir(f"{folder}/{path}") else f"{path}.py"


def build_of(folder: str) -> str:
    """A digest of all sources, and of the Python that compiles them."""
    digest = hashlib.sha256(sys.version.encode())
    for place, _, names in sorted(os.walk(f"{folder}/{PACKAGE}")):
        for name in sorted(names):
            if name.endswith(".py"):
                with open(f"{place}/{name}", "rb") as source:
                    digest.update(source.read())
    return digest.hexdigest()


def linked_module(folder: str, library: str, module: str) -> Module:
    """The file's entry for one module."""
    file = file_of(folder, module)
    with open(f"{folder}/{file}", encoding="utf-8") as opened:
        source = opened.read()
    if module == "build":
        source = f"DIGEST = {build_of(folder)!r}"
    tree = ast.parse(source)
    imports = []
    for node in [node for node in tree.body if isinstance(node, ast.ImportFrom)]:
        if (node.module or "").startswith(PACKAGE):
            imports.append((str(node.module), tuple([alias.name for alias in node.names])))
            tree.body.remove(node)
        elif node.module == "__future__":
            # This import would load a file: the compiler gets its flag instead.
            tree.body.remove(node)
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


def linked(folder: str, library: str) -> bytes:
    """The file's content: the index's size, the index, the groups."""
    index: dict[str, tuple[int, int]] = {}
    groups = b""
    for names in GROUPS.values():
        part = marshal.dumps([linked_module(folder, library, name) for name in names])
        place = (len(groups), len(part))
        index.update({full_name(name): place for name in names})
        groups += part
    data = marshal.dumps(index)
    return len(data).to_bytes(SIZE_BYTES, "little") + data + groups


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
