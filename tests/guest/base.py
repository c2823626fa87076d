# SPDX-License-Identifier: Apache-2.0
"""What of a virtual machine for pytest's rows is slow to make and seldom changes: Debian's packages and wheels.

Kept below a lane's folder by the hash of what decides it.  Nothing of it runs on this machine: packages are unpacked,
and Python's byte code is the same on every architecture.

Must not touch anything outside the cache, or know a lane.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable

from tests import machine
from tests.policy.debian import run

# What the rows need, of every architecture.
PACKAGES = (
    "bash",
    "busybox-static",
    "coreutils",
    "crun",
    "dash",
    "findutils",
    "grep",
    "libc-bin",
    "mount",
    "procps",
    "python3",
    "python3-click",
    "python3-pyudev",
    "python3-yaml",
    "runc",
    "sed",
    "util-linux",
)
# As setup.cfg has them.
WHEELS = ("hypothesis>=6.100", "nvidia-ml-py>=12", "pytest>=8,<9", "pytest-xdist>=3.7")
# What packages do when they are configured.
_LINKS = {"usr/bin/cc": "gcc", "var/run": "/run", "var/lock": "/run/lock"}
_FOLDERS = ("proc", "sys", "dev", "run", "tmp", "opt")


def key(*paths: str) -> str:
    """Of everything that decides what a base holds, but for Debian's updates; paths: of the files among it."""
    digest = hashlib.sha256(machine.suite().encode())
    for path in paths:
        with open(path, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()[:16]


def clear(cache: str) -> None:
    """What was kept in a folder: of other inputs, or half made."""
    os.makedirs(cache, exist_ok=True)
    for name in os.listdir(cache):
        shutil.rmtree(os.path.join(cache, name), ignore_errors=True)


class Packages:
    """The tree of Debian's packages, and where it lies; recipe: files that decide what it holds, beside this one."""

    def __init__(self, cache: str, say: Callable[[str], None], *recipe: str) -> None:
        self.cache = cache
        self.say = say
        self.folder = os.path.join(cache, key(os.path.abspath(__file__), machine.__file__, *recipe))
        self.root = os.path.join(self.folder, "root")

    def is_made(self) -> bool:
        """Whether all of it is there."""
        return os.path.exists(f"{self.folder}/complete")

    def make(self, architecture: str, more: Iterable[str], *options: str) -> None:
        """Unpack it; architecture: as wheels name it; more: packages; options: of mmdebstrap."""
        clear(self.cache)
        os.makedirs(self.root)
        self.say("unpacking Debian (packages are not configured: nothing of it runs here)")
        machine.unpack(f"{self.folder}/root.tar", (*PACKAGES, *more), [self.root], *options)
        for name, target in _LINKS.items():
            path = f"{self.root}/{name}"
            if os.path.isdir(path) and not os.path.islink(path):
                os.rmdir(path)
            if not os.path.lexists(path):
                os.symlink(target, path)
        for name in _FOLDERS:
            os.makedirs(f"{self.root}/{name}", exist_ok=True)
        self.say(f"installing {', '.join(WHEELS)} into it")
        machine.install_wheels(self.root, WHEELS, architecture)
        # Of the same release, this machine's Python writes what that one reads.
        for name in ("python3", machine.interpreter(self.root)):
            compile_python(self.root, f"usr/lib/{name}")

    def complete(self) -> None:
        """Say that all of it is there."""
        with open(f"{self.folder}/complete", "w", encoding="ascii"):
            pass


def compile_python(root: str, below: str) -> None:
    """Byte code of what lies in a folder of the tree: emulated, this would take minutes."""
    run(*("/usr/bin/python3", "-m", "compileall", "-q", "-j", "2", "-s", root, "-p", "/"), f"{root}/{below}")
