# SPDX-License-Identifier: Apache-2.0
"""The hook's rooms in one file, which an installation's door loads instead of forty.

Each import asks the file system a dozen questions and goes through the import system's own bookkeeping: for the rooms
of a GPU container that takes as long as the interpreter's whole start.  Linked, they are one file and no questions; and
as it stays open, a start that an upgrade overtakes has all rooms of one version.  `packaging/link.py` writes the file
when the hook is installed, from the same sources that are installed beside it; where it is missing or of another
Python, those are imported as any others.

Must not know what a room does, must not import anything of ours, and must not hide a module that is not linked.
"""

from __future__ import annotations

import marshal
import posix
import sys

# importlib.machinery is this and brings more.
from _frozen_importlib_external import ExtensionFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, ModuleType
    from typing import Any

    # A part of the file: its first byte, and how many it has.
    Place = tuple[int, int]
    Read = Callable[[Place], Any]
    # The modules loaded before a room, with the names that it imports of each; what it makes late, and where.
    Imports = tuple[tuple[str, tuple[str, ...]], ...]
    Late = tuple[tuple[str, ...], Place]
    # Name, its parent's and the last part of it, whether it is a package, these two, and code.
    Room = tuple[str, str, str, bool, Imports, Late, CodeType]
    # Modules of the standard library with their files, and rooms.
    Group = tuple[tuple[tuple[str, str], ...], tuple[Room, ...]]
    # Where each group but the door's lies.
    Places = dict[str, Place]

PACKAGE = "oci_gpu_hook"

# The groups, each a part of the file, and the rooms of each, every one behind what it imports.  `door` is what any
# container loads that Python sees; the first import of a room of another group loads that group whole, and `gpu` before
# it, which the rooms of all others stand behind.
GROUPS = {
    "door": (
        "",
        "errors",
        "jsontext",
        "record",
        "oci",
        "report",
        "selectors",
        "sources",
        "request",
        "course",
        "hook",
        "__main__",
    ),
    # A container with a GPU that was asked for before.
    "gpu": (
        "host",
        "container",
        "operations",
        "account",
        "mountinfo",
        "linux",
        "bpf",
        "config",
        "ldorder",
        "ldso",
        "ldmerge",
        "dbus",
        "systemd",
        "rootfs",
        "host.root",
        "host.journal",
        "host.proc",
        "host.saved",
        "host.stamp",
        "host.answers",
        "container.devicefilter",
        "container.cgroup",
        "container.scope",
        "container.pieces",
        "container.mounts",
        "container.devices",
        "container.ldcache",
        "plan",
        "decision",
        "apply",
        "telling",
    ),
    # What was not: it is decided, while the saved inventory is true.
    "provision": (
        "host.nodes",
        "host.inventory",
        "selection",
        "placement",
        "provision",
    ),
    # A host whose saved inventory is missing or no longer true: it is looked at anew.
    "survey": ("host.catalogue", "host.elf", "host.mig", "host.files", "host.survey"),
    "requirements": ("requirements",),
    "cdi": ("cdi",),
    "labels": ("selinux", "ipc", "ipclabels", "container.labels"),
}


def full_name(room: str) -> str:
    """The module's name as the import statement has it."""
    return f"{PACKAGE}.{room}" if room else PACKAGE


def enter(door: Group, library: str, file: int, places: Places) -> None:
    """Load the rooms of `door`, and have the other groups loaded when they are asked for.

    `library` is the folder of the package; `file` stays open.
    """

    def read(place: Place) -> Any:
        first, size = place
        return marshal.loads(posix.pread(file, size, first))

    _load(door, library, read)
    sys.meta_path.insert(0, _finder(library, places, read))


def _load(group: Group, library: str, read: Read) -> None:
    standard, rooms = group
    for name, file in standard:
        if name not in sys.modules:
            _load_standard(name, file)
    modules, module_type = sys.modules, type(sys)
    for name, parent, child, is_package, imports, late, code in rooms:
        module: ModuleType = module_type(name)
        modules[name] = module
        namespace = module.__dict__
        # As importlib has them; a package's path leads to those of its modules that are not linked.
        namespace["__package__"] = name if is_package else parent
        if is_package:
            namespace["__path__"] = [f"{library}/{name.replace('.', '/')}"]
        if late[0]:
            namespace[name] = module
            namespace["__getattr__"] = _makes(*late, namespace, read)
        for source, names in imports:
            loaded = namespace[source] = modules[source]
            theirs = loaded.__dict__
            for imported in names:
                namespace[imported] = theirs[imported]
        exec(code, namespace)
        if parent:
            modules[parent].__dict__[child] = module


def _makes(
    late: tuple[str, ...], place: Place, namespace: dict[str, Any], read: Read
) -> Callable[[str], Any]:
    """A module's __getattr__ (PEP 562), which makes what is late when the first of it is asked for."""

    def get(name: str) -> Any:
        if name not in late:
            raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}")
        exec(read(place), namespace)
        return namespace[name]

    return get


def _load_standard(name: str, file: str) -> None:
    """The standard library's module `name` in `file`, "" where it is built in; the import statement tries anew."""
    loader: Any = ExtensionFileLoader(name, file) if file else sys.__spec__.loader
    spec = type(sys.__spec__)(name, loader, origin=file or "built-in")
    try:
        module = loader.create_module(spec)
        module.__spec__ = spec
        loader.exec_module(module)
    except (ImportError, AttributeError):
        return
    sys.modules[name] = module


def _finder(library: str, places: Places, read: Read) -> Any:
    """Finds rooms for the import statement (importlib.abc.MetaPathFinder): the first of a group brings the others."""

    loaded = ["door"]

    def find_spec(name: str, path: object = None, target: object = None) -> object:
        package, _, room = name.partition(".")
        groups = [group for group, rooms in GROUPS.items() if room in rooms and group != "door"]
        if package != PACKAGE or not groups:
            return None
        for group in ("gpu", groups[0]):
            if group not in loaded:
                try:
                    content = read(places[group])
                except (OSError, EOFError, ValueError):
                    return None
                loaded.append(group)
                _load(content, library, read)
        return type(sys.__spec__)(name, finder)

    # A loader too (importlib.abc.Loader), of what has been made and run already.  A class would take longer to make
    # than the finder has to find.
    finder: Any = type(sys.implementation)(  # type: ignore[call-arg]  # a types.SimpleNamespace
        find_spec=find_spec,
        create_module=lambda spec: sys.modules[spec.name],
        exec_module=lambda module: None,
    )
    return finder
