# SPDX-License-Identifier: Apache-2.0
"""Boot an aarch64 virtual machine with Debian's kernel and runtimes, run the rows in it, and say whether all passed.

    python3 -m tests.aarch64.run [--only WORD] [--break FAULT] [--console]

`--only` runs the rows whose names contain a word; `--break` plants a fault in the hook that only this architecture
shows, which must make it fail; `--console` shows all that the machine prints.  Exit status 0 only if every row passed.
Must not run a program of the machine's on this one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys

from tests import machine
from tests.aarch64.base import REPOSITORY, Base, compile_python, say
from tests.aarch64.places import INSTALLED, ONLY, SOURCES
from tests.aarch64.rows import ROWS
from tests.gpunode import build, description
from tests.gpunode.node import ANY_CUDA, ANY_DRIVER
from tests.policy.debian import run
from tests.selinux.files import write

PATIENCE = 5400  # seconds for the machine, from power-on to power-off, on a busy host
# pauth and sve, which newer processors have, take much of the time of an emulated one.
MACHINE = ["qemu-system-aarch64", "-M", "virt", "-cpu", "neoverse-n1"]
KERNEL_LINE = "console=ttyAMA0 quiet panic=-1 mitigations=off nokaslr log_buf_len=4M"
ARCHITECTURE = "aarch64"
# Whose drivers the rows' nodes have.
DESCRIPTIONS = ("v100", "h100x8", "h100mig")
# Of the repository, what the tests use.
_PARTS = ("Makefile", "setup.cfg", "oci_gpu_hook", "hooks.d", "packaging", "policy", "tests")

# What `--break` replaces in a module of the hook, each by what x86_64 has there: its path, the text, and the other.
# Every container meets the number; the flags, one whose libraries only ld.so.cache leads to; the order, no GPU's names.
FAULTS = {
    "number": ("kernel/syscalls.py", '"aarch64": 280', '"aarch64": 281'),
    "flags": ("formats/ldcache.py", "(183, 64): 0x0A03", "(183, 64): 0x0303"),
    "order": ("formats/ldcache.py", 'NATIVE_FLAGS["aarch64"] in', 'NATIVE_FLAGS["x86_64"] in'),
}


def renew(root: str, only: str, fault: str) -> None:
    """This tree's sources and the simulated drivers, as they are now."""
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
        _break(f"{sources}/oci_gpu_hook", *FAULTS[fault])
    for name in ("oci_gpu_hook", "tests/gpunode"):
        compile_python(root, f"{SOURCES}/{name}")
    _install(root)
    cache = f"{sources}/.build/gpunode"
    nodes = [description.load(name) for name in DESCRIPTIONS]
    drivers = {(node.driver, node.cuda_number) for node in nodes}
    for driver, cuda in {*drivers, (ANY_DRIVER, ANY_CUDA)}:
        build.build(driver, cuda, cache, ARCHITECTURE)
    write(f"{root}/{ONLY}", only)


def _install(root: str) -> None:
    """``make install``: byte code is the same on every architecture, and emulated this takes two minutes."""
    tree = f"{root}/{INSTALLED}"
    shutil.rmtree(tree, ignore_errors=True)
    sources = f"{root}/{SOURCES}"
    run("make", "-s", "-C", sources, "install", f"DESTDIR={tree}", "PYTHON=/usr/bin/python3")


def _break(package: str, module: str, text: str, other: str) -> None:
    with open(f"{package}/{module}", encoding="utf-8") as file:
        source = file.read()
    if source.count(text) != 1:
        raise SystemExit(f"test-aarch64: there is no {text!r} in {module} to be broken")
    write(f"{package}/{module}", source.replace(text, other))


def make_image(base: Base) -> str:
    """The root file system as a disk."""
    image = f"{base.folder}/root.img"
    if os.path.exists(image):
        os.unlink(image)
    options = ["-O", "^has_journal,^metadata_csum", "-E", "lazy_itable_init=1,root_owner=0:0"]
    run("mke2fs", "-q", "-t", "ext4", *options, "-d", base.root, image, "1500M")
    return image


def main() -> int:
    """Make or find the base, renew it, boot, judge."""
    parser = argparse.ArgumentParser(description="The main job on aarch64, in a virtual machine.")
    parser.add_argument("--only", default="", metavar="WORD")
    parser.add_argument("--break", dest="fault", default="", choices=FAULTS)
    parser.add_argument("--console", action="store_true")
    options = parser.parse_args()
    if not any(options.only in name for name in ROWS):
        raise SystemExit(f"test-aarch64: no row's name contains {options.only!r}")
    if os.geteuid():
        raise SystemExit("test-aarch64: needs root, to make the machine's file system with its owners")
    base = Base()

    def image() -> str:
        renew(base.root, options.only, options.fault)
        return make_image(base)

    return machine.test(MACHINE, base, KERNEL_LINE, image, patience=PATIENCE, console=options.console, say=say)


if __name__ == "__main__":
    sys.exit(main())
