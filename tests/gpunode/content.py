# SPDX-License-Identifier: Apache-2.0
"""Everything that a simulated node adds to the machine, as one value that faults may change.

Must not: write; node.py and layers.py carry it out.
"""

from __future__ import annotations

import json
import os

from . import catalogue, procfs
from .description import Description, render

LIBEXEC = "/usr/libexec/gpunode"
HOOKS_FOLDER = f"{LIBEXEC}/hooks.d"
PROCDRIVER = f"{LIBEXEC}/procdriver"
NOMEMLOCK = f"{LIBEXEC}/nomemlock.so"

# prestart: the first stage there is, so it comes before the hook under test whatever its stage.
HOOK = {
    "version": "1.0.0",
    "hook": {"path": PROCDRIVER},
    "when": {"always": True},
    "stages": ["prestart"],
}


def library_folder() -> str:
    """Where this distribution's 64-bit libraries live: Debian's multiarch folder, or lib64."""
    machine = os.uname().machine
    for folder in (f"/usr/lib/{machine}-linux-gnu", "/usr/lib64", "/usr/lib"):
        if os.path.isdir(folder) and not os.path.islink(folder):
            return folder
    raise FileNotFoundError("no library folder below /usr")


class Content:
    """What there is to add: each table maps a path on the node to what lies there."""

    def __init__(self, node: Description, built: str, devices: str) -> None:
        with open(f"{built}/mig-minors", encoding="ascii") as file:
            mig_minors = file.read()
        self.node = node
        self.library_folder = library_folder()
        self.files: dict[str, str] = {}  # -> the built file to copy
        self.links: dict[str, str] = {}  # -> where it points
        self.texts = dict(catalogue.TEXTS)  # -> what it says
        self.sockets = list(catalogue.SOCKETS)
        self.cached = True  # whether ld.so.cache knows the driver's libraries
        majors = procfs.choose_majors(devices)
        self.registered = procfs.registered(majors)
        self.nodes = procfs.nodes(node, majors)
        self.proc = procfs.tree(node, mig_minors, os.uname().machine)
        self.proc["gpunode/description"] = render(node)
        self._add_driver(built)
        self._add_simulation(built)

    def library(self, name: str) -> str:
        """The path on the node of a file or link in the library folder."""
        return f"{self.library_folder}/{name}"

    def _add_driver(self, built: str) -> None:
        driver = self.node.driver
        for library in catalogue.libraries(driver):
            name = library.file(driver)
            self.files[self.library(name)] = f"{built}/lib/{name}"
        for name, target in catalogue.links(driver).items():
            self.links[self.library(name)] = target
        for name in catalogue.PROGRAMS:
            self.files[f"/usr/bin/{name}"] = f"{built}/bin/{name}"
        for name in catalogue.FIRMWARE:
            self.texts[f"/lib/firmware/nvidia/{driver}/{name}"] = f"simulated {name} {driver}\n"

    def _add_simulation(self, built: str) -> None:
        for path in (PROCDRIVER, NOMEMLOCK):
            self.files[path] = f"{built}/libexec/{os.path.basename(path)}"
        self.texts[f"{HOOKS_FOLDER}/00-gpunode-procdriver.json"] = json.dumps(HOOK)
        self.texts[f"{LIBEXEC}/proc/.keep"] = ""
