# SPDX-License-Identifier: Apache-2.0
"""The modules of a container's start, loaded from one linked file instead of forty.

To import a module takes a search of the file system and a good deal of the import system's bookkeeping: for all modules
of a GPU container as much time as the interpreter's own start.  `packaging/link.py` writes the linked file when the
hook is installed, from the sources that are installed beside it.  A start keeps that file open, so all its modules are
of one version, even while an upgrade replaces the package.  Where the file is missing, damaged or of another Python,
the import system finds the same modules in the package.

The entry scripts import this module by itself, without the package around it.  It must not import what is not built
into every interpreter, and must not know what a linked module does.
"""

import gc
import marshal
import posix
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, NoReturn, Union

    # First byte and size of a group's part of the file; or the file of an extension module.
    Place = Union[tuple[int, int], str]

# The file begins with the number of the bytecode's form (importlib.util.MAGIC_NUMBER), which one cache tag's Pythons
# before a release change, and with the index's size, each in so many bytes.  The index follows, and then the groups.
_SIZE_BYTES = 4

# importlib.machinery.ModuleSpec, without an import.
_ModuleSpec: "Any" = type(sys.__spec__)


class Finder:
    """Finds linked modules for the import statement (importlib.abc.MetaPathFinder).

    The first module of a group that is imported loads the whole group.  `begin` is the first byte of the groups in
    `file`, and `places` has the part of each module's group, counted from there; and where the interpreter's extension
    modules lie that a start needs: to search for one takes as long as to load it.
    """

    def __init__(self, library: str, file: int, begin: int, places: "dict[str, Place]") -> None:
        self._library = library
        self._file = file
        self._begin = begin
        self._places = places

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        place = self._places.get(name)
        if place is None:
            return None
        if isinstance(place, str):
            return _extension_spec(name, place)
        return _ModuleSpec(name, self) if self._load(*place) else None

    def _load(self, first: int, size: int) -> bool:
        """Make and run the modules of a group, in dependency order; False if the file is damaged."""
        try:
            group = marshal.loads(posix.pread(self._file, size, self._begin + first))
        except (OSError, EOFError, ValueError, TypeError):
            return False
        for name, is_package, imports, code in group:
            # From here on the module is in sys.modules, where the import statement looks first.
            del self._places[name]
            parent, _, child = name.rpartition(".")
            module = sys.modules[name] = type(sys)(name)
            module.__package__ = name if is_package else parent
            if is_package:
                # Leads to those of its modules that are not linked.
                module.__path__ = [f"{self._library}/{name.replace('.', '/')}"]
            if parent and parent not in sys.modules:
                __import__(parent)
            namespace = module.__dict__
            for source, names in imports:
                if source not in sys.modules:
                    __import__(source)
                theirs = sys.modules[source].__dict__
                try:
                    namespace.update(zip(names, map(theirs.__getitem__, names)))
                except KeyError:
                    # A module of a group that was not loaded yet.
                    for imported in names:
                        if imported not in theirs:
                            __import__(f"{source}.{imported}")
                        namespace[imported] = theirs[imported]
            exec(code, namespace)
            if parent:
                setattr(sys.modules[parent], child, module)
        return True

    def create_module(self, spec: "Any") -> "ModuleType":
        """importlib.abc.Loader: the module that `find_spec` has loaded."""
        return sys.modules[spec.name]

    def exec_module(self, module: "ModuleType") -> None:
        """importlib.abc.Loader: it has been run already."""


def _extension_spec(name: str, path: str) -> object:
    try:
        posix.stat(path)
    except OSError:
        return None
    loader = sys.modules["_frozen_importlib_external"].ExtensionFileLoader(name, path)
    return _ModuleSpec(name, loader, origin=path)


def find_linked(library: str) -> None:
    try:
        path = f"{library}/oci_gpu_hook/__linked__/modules.{sys.implementation.cache_tag}"
        file = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
        head = posix.read(file, 2 * _SIZE_BYTES)
        if head[:_SIZE_BYTES] != sys.modules["_frozen_importlib_external"].MAGIC_NUMBER:
            return
        size = int.from_bytes(head[_SIZE_BYTES:], "little")
        places = {**marshal.loads(posix.read(file, size))}
    except (OSError, EOFError, ValueError, TypeError, KeyError, AttributeError):
        return
    sys.meta_path.insert(0, Finder(library, file, 2 * _SIZE_BYTES + size, places))  # type: ignore[arg-type]  # by its methods


def prepare() -> None:
    """Have the import statement find the package of this file, by the way that is quickest for one start."""
    # A start is over before there is garbage worth collecting.
    gc.disable()
    library = __file__[: __file__.rindex("/oci_gpu_hook/")]
    # Last: the standard library's modules are found without a look at ours.
    del sys.path[0]
    sys.path.append(library)
    find_linked(library)


def run() -> "NoReturn":
    prepare()
    from oci_gpu_hook.__main__ import main

    sys.exit(main())
