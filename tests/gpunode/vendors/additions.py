# SPDX-License-Identifier: Apache-2.0
"""What other vendors' drivers add to a node, as one value, and the few words in which each vendor says it."""

from __future__ import annotations

from collections.abc import Iterator

from ..description import Description
from ..pci import DRM_MAJOR
from ..procfs import DeviceNode
from ..sysfs import Sysfs, pci_files

ACCEL_MAJOR = 261  # given to compute accelerators by the kernel's list


class Additions:
    """Each table maps a path on the node to what lies there.

    libraries: path -> SONAME; programs: path -> the nodes that the program looks at, apart by spaces.
    """

    def __init__(self, node: Description, library_folder: str, free: Iterator[int]) -> None:
        self.library_folder = library_folder
        self.nodes: list[DeviceNode] = []
        self.device_links: dict[str, str] = {}
        self.registered: dict[str, int] = {}
        self.sysfs = Sysfs()
        self.libraries: dict[str, str] = {}
        self.programs: dict[str, str] = {}
        self.texts: dict[str, str] = {}
        self.links: dict[str, str] = {}
        self._free = free
        # The kernel numbers cards and render nodes as they come: NVIDIA's were first.
        cards = [gpu.dri[0] for gpu in node.gpus if gpu.dri]
        renders = [gpu.dri[1] for gpu in node.gpus if gpu.dri]
        self._card = max(cards, default=-1) + 1
        self._render = max(renders, default=127) + 1
        self._accel = 0

    def major(self, name: str, fixed: int = 0) -> int:
        """The major that /proc/devices has under this name; one that this kernel does not use, unless it is fixed."""
        if name not in self.registered:
            self.registered[name] = fixed or next(self._free)
        return self.registered[name]

    def pci(self, address: str, identity: str, kind: str, driver: str) -> str:
        """A PCI device, `1002:740f`, of a class; its folder in sysfs."""
        files = pci_files(address, driver, kind, identity, f"{identity.partition(':')[0]}:0001")
        return self.sysfs.pci_device(address, driver, files)

    def node(
        self, path: str, number: tuple[int, int], kind: str, parent: str = "", mode: int = 0o666, **files: str
    ) -> None:
        """A device node, whose device is of a class and belongs to a PCI device or to none."""
        self.nodes.append(DeviceNode(path, number[0], number[1], mode))
        lines = {name: f"{text}\n" for name, text in files.items()}
        self.sysfs.character_device(parent, kind, path, number, lines)
        properties = ["I:1000000"]
        if parent:
            place = _place(parent)
            properties += [f"E:ID_PATH={place}", f"E:ID_PATH_TAG={place.translate(str.maketrans(':.', '__'))}"]
        database = f"/run/udev/data/c{number[0]}:{number[1]}"
        self.texts[database] = "".join(f"{line}\n" for line in properties)

    def drm(self, parents: list[str], *, cards: bool = True) -> int:
        """DRM's nodes of PCI and platform devices, in the order in which their driver found them; the first's minor."""
        first = self._render
        self.major("drm", DRM_MAJOR)
        for parent in parents:
            found = [("render", "renderD", self._render)]
            self._render += 1
            if cards:
                found.append(("card", "card", self._card))
                self._card += 1
            for kind, name, minor in found:
                path = f"/dev/dri/{name}{minor}"
                self.node(path, (DRM_MAJOR, minor), "drm", parent, 0o660)
                self.device_links[f"/dev/dri/by-path/{_place(parent)}-{kind}"] = f"../{name}{minor}"
        return first

    def accel(self, parent: str) -> int:
        """A node of the accel subsystem; its number."""
        number = self._accel
        self._accel += 1
        major = self.major("accel", ACCEL_MAJOR)
        self.node(f"/dev/accel/accel{number}", (major, number), "accel", parent)
        return number

    def library(self, path: str, soname: str = "", *, development: bool = False) -> None:
        """A library, and the links that ldconfig and a package make; a name alone is in the usual folder."""
        path = path if path.startswith("/") else f"{self.library_folder}/{path}"
        folder, _, name = path.rpartition("/")
        soname = soname or name
        self.libraries[path] = soname
        if soname != name:
            self.links[f"{folder}/{soname}"] = name
        if development:
            self.links[f"{folder}/{name.partition('.so')[0]}.so"] = soname

    def program(self, nodes: str, *paths: str) -> None:
        """Programs that say which of these nodes may be opened."""
        self.programs.update(dict.fromkeys(paths, nodes))


def numbered(file: str) -> str:
    """The SONAME of most libraries: with the first number alone."""
    name, _, version = file.partition(".so.")
    return f"{name}.so.{version.partition('.')[0]}"


def _place(parent: str) -> str:
    """udev's ID_PATH of a device, by its folder in sysfs."""
    return f"{'platform' if parent.startswith('devices/platform/') else 'pci'}-{parent.rpartition('/')[2]}"
