# SPDX-License-Identifier: Apache-2.0
"""The hook's rooms in a few files, which an installation's door loads instead of thirty.

Each import asks the file system a dozen questions and goes through the import system's own bookkeeping: for the rooms
of a GPU container that takes as long as the interpreter's whole start.  Linked, they are two files to read and no
questions.  `packaging/link.py` writes these files when the hook is installed, from the same sources that are installed
beside them; where they are missing or of another Python, those are imported as any others.

Must not know what a room does, must not import anything of ours, and must not hide a module that is not linked.
"""

from __future__ import annotations

import marshal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, ModuleType

    # Name, whether it is a package, and code.
    Room = tuple[str, bool, CodeType]

PACKAGE = "oci_gpu_hook"
FOLDER = "__linked__"

# The groups, each a file, and the rooms of each, every one behind what it imports.  `door` is what any container loads
# that Python sees; the first import of a room of another group loads that group whole.
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
    # A container with a GPU, while the saved inventory is true.
    "gpu": (
        "host",
        "container",
        "operations",
        "account",
        "mountinfo",
        "linux",
        "config",
        "ldso",
        "dbus",
        "systemd",
        "rootfs",
        "host.root",
        "host.journal",
        "host.proc",
        "host.nodes",
        "host.inventory",
        "selection",
        "placement",
        "container.devicefilter",
        "container.cgroup",
        "container.scope",
        "container.mounts",
        "container.devices",
        "container.ldcache",
        "plan",
        "apply",
        "telling",
    ),
    "requirements": ("requirements",),
    "cdi": ("cdi",),
    "labels": ("selinux", "ipc", "ipclabels", "container.labels"),
}


def full_name(room: str) -> str:
    """The module's name as the import statement has it."""
    return f"{PACKAGE}.{room}" if room else PACKAGE


def enter(door: tuple[Room, ...], library: str) -> None:
    """Load the rooms of `door`, and have the other groups loaded when they are asked for.

    `library` is the folder of the package.
    """
    _load(door, library)
    sys.meta_path.insert(0, _Groups(library))  # type: ignore[arg-type]  # a finder by its method


def _load(rooms: tuple[Room, ...], library: str) -> None:
    module_type = type(sys)
    for name, is_package, code in rooms:
        module: ModuleType = module_type(name)
        parent, _, child = name.rpartition(".")
        # As importlib has them; a package's path leads to those of its modules that are not linked.
        module.__package__ = name if is_package else parent
        if is_package:
            module.__path__ = [f"{library}/{name.replace('.', '/')}"]
        sys.modules[name] = module
        exec(code, module.__dict__)
        if parent:
            setattr(sys.modules[parent], child, module)


class _Groups:
    """Finds rooms for the import statement: the first of a group brings the others of it."""

    def __init__(self, library: str) -> None:
        self._library = library
        self._group_of = {
            full_name(room): group
            for group, rooms in GROUPS.items()
            if group != "door"
            for room in rooms
        }

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        """importlib.abc.MetaPathFinder.find_spec; None for what is not linked."""
        group = self._group_of.get(name)
        if group is None:
            return None
        file = f"{self._library}/{PACKAGE}/{FOLDER}/{group}.{sys.implementation.cache_tag}"
        try:
            with open(file, "rb") as opened:
                rooms = marshal.loads(opened.read())
        except (OSError, EOFError, ValueError):
            return None
        _load(rooms, self._library)
        return type(sys.__spec__)(name, self)  # type: ignore[arg-type]  # importlib.machinery.ModuleSpec

    def create_module(self, spec: object) -> ModuleType:
        """importlib.abc.Loader.create_module: it has been made already."""
        return sys.modules[spec.name]  # type: ignore[attr-defined]

    def exec_module(self, module: ModuleType) -> None:
        """importlib.abc.Loader.exec_module: it has been run already."""
