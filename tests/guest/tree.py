# SPDX-License-Identifier: Apache-2.0
"""The root file system of a virtual machine for pytest's rows, brought up to date for each run, and made into a disk.

Must not touch anything outside the tree and the simulated drivers' cache in it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable

from tests.gpunode import build, description
from tests.gpunode.node import ANY_CUDA, ANY_DRIVER
from tests.guest.base import compile_python
from tests.guest.places import INSTALLED, ONLY, SOURCES
from tests.policy.debian import run
from tests.selinux.files import write

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Of the repository, what the tests use.
_PARTS = ("Makefile", "setup.cfg", "oci_gpu_hook", "hooks.d", "packaging", "policy", "tests")


class Fault:
    """What is replaced in a module of the hook, once: a row must fail then, or somebody else refuses."""

    def __init__(self, module: str, text: str, other: str) -> None:
        self.module, self.text, self.other = module, text, other

    def plant(self, package: str) -> None:
        """In the package's sources."""
        path = f"{package}/{self.module}"
        with open(path, encoding="utf-8") as file:
            source = file.read()
        if source.count(self.text) != 1:
            raise SystemExit(f"there is no {self.text!r} in {self.module} to be broken")
        write(path, source.replace(self.text, self.other))


def renew(root: str, only: str, fault: Fault | None, architecture: str, descriptions: Iterable[str]) -> None:
    """This tree's sources and the simulated drivers, as they are now.

    only: a word of rows' names; descriptions: of the nodes whose drivers the rows need.
    """
    sources = f"{root}/{SOURCES}"
    shutil.rmtree(sources, ignore_errors=True)
    os.makedirs(sources)
    ignored = shutil.ignore_patterns("__pycache__")
    for name in _PARTS:
        path = f"{REPOSITORY}/{name}"
        if os.path.isdir(path):
            shutil.copytree(path, f"{sources}/{name}", ignore=ignored, symlinks=True)
        else:
            shutil.copy(path, sources)
    if fault:
        fault.plant(f"{sources}/oci_gpu_hook")
    for name in ("oci_gpu_hook", "tests/gpunode"):
        compile_python(root, f"{SOURCES}/{name}")
    _install(root)
    nodes = [description.load(name) for name in descriptions]
    drivers = {(node.driver, node.cuda_number) for node in nodes}
    for driver, cuda in {*drivers, (ANY_DRIVER, ANY_CUDA)}:
        build.build(driver, cuda, f"{sources}/.build/gpunode", architecture)
    write(f"{root}/{ONLY}", only)


def _install(root: str) -> None:
    """``make install``: byte code is the same on every architecture, and emulated this takes two minutes."""
    tree = f"{root}/{INSTALLED}"
    shutil.rmtree(tree, ignore_errors=True)
    sources = f"{root}/{SOURCES}"
    # What a page says is none of the tests' here, and what makes one may not be in this tree.
    run("make", "-s", "-t", "-C", sources, "generated")
    run("make", "-s", "-C", sources, "install", f"DESTDIR={tree}", "PYTHON=/usr/bin/python3")


def make_image(root: str, image: str) -> str:
    """The root file system as a disk, its labels included."""
    if os.path.exists(image):
        os.unlink(image)
    options = ["-O", "^has_journal,^metadata_csum", "-E", "lazy_itable_init=1,root_owner=0:0"]
    run("mke2fs", "-q", "-t", "ext4", *options, "-d", root, image, "1500M")
    return image
