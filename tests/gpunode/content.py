# SPDX-License-Identifier: Apache-2.0
"""Everything that a simulated node adds to the machine, as one value that faults may change.

Must not: write; node.py and layers.py carry it out.
"""

from __future__ import annotations

import json
import os

from . import catalogue, pci, procfs
from .description import Description, Gpu, render
from .sysfs import PCI_DEVICES, Sysfs
from .vendors.additions import Additions

LIBEXEC = "/usr/libexec/gpunode"
HOOKS_FOLDER = f"{LIBEXEC}/hooks.d"
CDI_FOLDER = f"{LIBEXEC}/cdi"
PROCDRIVER = f"{LIBEXEC}/procdriver"
NOMEMLOCK = f"{LIBEXEC}/nomemlock.so"

# prestart: the first stage there is, so it comes before the hook under test whatever its stage.
HOOK = {"version": "1.0.0", "hook": {"path": PROCDRIVER}, "when": {"always": True}, "stages": ["prestart"]}
# The same for an engine that starts the hooks of CDI specs before its other ones.
_EDITS = {"hooks": [{"hookName": "prestart", "path": PROCDRIVER}]}
SPEC = {"cdiVersion": "0.5.0", "kind": "gpunode.test/driver", "devices": [{"name": "proc", "containerEdits": _EDITS}]}


LAYOUTS = ("host", "multiarch", "lib64", "current")
CURRENT = "nvidia/current"  # where Debian's packages keep the libraries, with links beside


def library_folder(layout: str = "host") -> str:
    """Where 64-bit libraries live: as this distribution has it, or as the layout says."""
    machine = os.uname().machine
    multiarch = f"/usr/lib/{machine}-linux-gnu"
    if layout != "host":
        return "/usr/lib64" if layout == "lib64" else multiarch
    for folder in (multiarch, "/usr/lib64", "/usr/lib"):
        if os.path.isdir(folder) and not os.path.islink(folder):
            return folder
    raise FileNotFoundError("no library folder below /usr")


def twin_folder(folder: str) -> str:
    """Where i386 libraries live beside a folder of 64-bit ones."""
    beside = {"/usr/lib64": "/usr/lib", "/usr/lib": "/usr/lib32"}
    return beside.get(folder, "/usr/lib/i386-linux-gnu")


class Content:
    """What there is to add: each table maps a path on the node to what lies there."""

    def __init__(self, node: Description, built: str, devices: str, root: str = "", layout: str = "host") -> None:
        with open(f"{built}/mig-minors", encoding="ascii") as file:
            mig_minors = file.read()
        self.node = node
        self.driver_root = root  # empty: the driver lies on the host itself
        self.library_folder = root + library_folder(layout)
        self.twin_folder = root + twin_folder(library_folder(layout))
        # /lib is a link below a driver root, and may be one on the host.
        firmware = f"{root}/usr/lib/firmware" if root else "/lib/firmware"
        self.firmware_folder = f"{firmware}/nvidia/{node.driver}"
        self.files: dict[str, str] = {}  # -> the built file to copy
        self.links: dict[str, str] = {}  # -> where it points
        self.texts: dict[str, str] = {}  # -> what it says
        self.sockets = [root + path for path in catalogue.SOCKETS if node.driver]
        majors = procfs.choose_majors(devices)
        self.registered = procfs.registered(node, majors)
        self.nodes = procfs.nodes(node, majors, mig_minors)
        self.device_links = pci.device_links(node)
        self.proc = procfs.tree(node, mig_minors, os.uname().machine)
        self.proc["gpunode/description"] = render(node)
        self.sysfs = Sysfs()
        for gpu in node.gpus:
            self._add_pci(gpu)
        if node.driver:
            self._add_libraries(built, layout)
            self._add_driver(built)
            self._add_storage()
        self._add_simulation(built)

    def library(self, name: str) -> str:
        """The path on the node of a file or link in the library folder."""
        if name.startswith("xorg/") and self.library_folder.endswith("-linux-gnu"):
            return f"{os.path.dirname(self.library_folder)}/{name}"
        return f"{self.library_folder}/{name}"

    def libraries(self, start: str = "") -> list[str]:
        """Every file and link in a library folder, i386 too, whose name starts with that."""
        folders = (f"{self.library_folder}/", f"{self.twin_folder}/")
        return [
            path
            for path in [*self.files, *self.links]
            if path.startswith(folders) and os.path.basename(path).startswith(start)
        ]

    def _add_libraries(self, built: str, layout: str) -> None:
        driver = self.node.driver
        inner = f"{CURRENT}/" if layout == "current" else ""
        for library in catalogue.libraries(driver):
            name = library.file(driver)
            # An inner file is still found from the folder itself, as is every link.
            place = name if library.folder else inner + name
            self.files[self.library(place)] = f"{built}/lib/{name}"
            if place != name:
                self.links[self.library(name)] = place
        for name, target in catalogue.links(driver).items():
            self.links[self.library(name)] = target
        if os.uname().machine == "x86_64":
            twins = catalogue.twins(driver)
            for library in twins:
                name = library.file(driver)
                self.files[f"{self.twin_folder}/{name}"] = f"{built}/lib32/{name}"
            for name, target in catalogue.links_of(twins, driver).items():
                self.links[f"{self.twin_folder}/{name}"] = target
        configuration = "/etc/ld.so.conf" if self.driver_root else "/etc/ld.so.conf.d/gpunode.conf"
        folders = [path[len(self.driver_root) :] for path in (self.library_folder, self.twin_folder)]
        self.texts[self.driver_root + configuration] = "".join(f"{path}\n" for path in folders)

    def _add_driver(self, built: str) -> None:
        driver, root = self.node.driver, self.driver_root
        for path, text in catalogue.texts(driver).items():
            self.texts[root + path] = text
        for name in catalogue.PROGRAMS:
            self.files[f"{root}/usr/bin/{name}"] = f"{built}/bin/{name}"
        for name in catalogue.FIRMWARE:
            self.texts[f"{self.firmware_folder}/{name}"] = f"simulated {name} {driver}\n"
        if root:  # the links of every distribution, the absolute one too
            self.links[f"{root}/lib"] = "usr/lib"
            self.links[f"{root}/var/run"] = "/run"
        if self.library_folder == f"{root}/usr/lib64" and root:
            self.links[f"{root}/lib64"] = "usr/lib64"

    def _add_pci(self, gpu: Gpu) -> None:
        """A GPU on the bus, and where DRM's nodes of it lead; NVIDIA's other nodes lead nowhere in sysfs."""
        if gpu.dri:
            folder = self.sysfs.pci_device(gpu.bus_id, "nvidia", pci.files(gpu))
            for kind, number in zip(("card", "renderD"), gpu.dri):
                path = f"/dev/dri/{kind}{number}"
                self.sysfs.character_device(folder, "drm", path, (pci.DRM_MAJOR, number), {})
            return
        folder = f"{PCI_DEVICES}/{gpu.bus_id}"
        self.sysfs.files.update({f"{folder}/{name}": text for name, text in pci.files(gpu).items()})
        # Of which udev reads no more than the last name.
        self.sysfs.links[f"{folder}/subsystem"] = "../../../../bus/pci"
        self.sysfs.links[f"{folder}/driver"] = "../../../../bus/pci/drivers/nvidia"

    def add_vendors(self, additions: Additions, built: dict[str, str]) -> None:
        """Other vendors' drivers; what the node has already, it keeps."""
        there = {node.path for node in self.nodes}
        self.nodes += [node for node in additions.nodes if node.path not in there]
        self.registered = {**additions.registered, **self.registered}
        for own, added in (
            (self.device_links, additions.device_links),
            (self.files, built),
            (self.links, additions.links),
            (self.texts, additions.texts),
            (self.sysfs.files, additions.sysfs.files),
            (self.sysfs.links, additions.sysfs.links),
        ):
            own.update((name, value) for name, value in added.items() if name not in own)

    def _add_storage(self) -> None:
        """What GPUDirect Storage needs beside its nodes; it is never the driver's own."""
        if self.node.nvidia_fs:
            self.texts["/etc/cufile.json"] = '{"logging": {"level": "ERROR"}}\n'
            self.texts["/run/udev/data/+module:nvidia_fs"] = "I:1\n"

    def _add_simulation(self, built: str) -> None:
        self.files[PROCDRIVER] = os.path.join(os.path.dirname(os.path.abspath(__file__)), "procdriver.py")
        self.files[NOMEMLOCK] = f"{built}/libexec/{os.path.basename(NOMEMLOCK)}"
        self.texts[f"{HOOKS_FOLDER}/00-gpunode-procdriver.json"] = json.dumps(HOOK)
        self.texts[f"{CDI_FOLDER}/gpunode.json"] = json.dumps(SPEC)
        self.texts[f"{LIBEXEC}/containers.conf"] = "[containers]\npids_limit = 0\n"
        for name in ("proc", "sys"):
            self.texts[f"{LIBEXEC}/{name}/.keep"] = ""
