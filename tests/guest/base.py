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
from collections.abc import Iterable

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


def key(*paths: str, words: str = "") -> str:
    """Of all that decides what a base holds; paths: of the files among it; words: Debian's updates, if they do."""
    digest = hashlib.sha256(f"{machine.suite()}{words}".encode())
    for path in paths:
        with open(path, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()[:16]


def clear(cache: str) -> None:
    """What was kept in a folder: of other inputs, or half made."""
    os.makedirs(cache, exist_ok=True)
    for name in os.listdir(cache):
        shutil.rmtree(os.path.join(cache, name), ignore_errors=True)


class Base:
    """The kept part of a lane's machine, and where it lies: the tree of Debian's packages, the kernel, the first disk.

    A lane adds what it alone has in `finish`; one whose rows are not pytest's fills all of it by itself.
    """

    def __init__(
        self,
        lane: str,
        architecture: str,
        cache: str,
        recipe: Iterable[str],
        packages: Iterable[str],
        *options: str,
        words: str = "",
    ) -> None:
        """architecture: as wheels name it; cache: a folder; recipe: files that decide what it holds, beside this one;
        packages: beside all lanes'; options: of mmdebstrap; words: as of `key`."""
        self.lane = lane
        self.architecture = architecture
        self._cache = cache
        self._packages = (*PACKAGES, *packages)
        self._options = options
        self.folder = os.path.join(cache, key(os.path.abspath(__file__), machine.__file__, *recipe, words=words))
        self.root = os.path.join(self.folder, "root")
        self.vmlinuz = os.path.join(self.folder, "vmlinuz")
        self.initramfs = os.path.join(self.folder, "initramfs")

    def say(self, text: str) -> None:
        print(f"{self.lane}: {text}", flush=True)

    def finish(self) -> None:
        """What follows, once the packages and wheels are there."""
        raise NotImplementedError

    def make(self) -> bool:
        """Everything that is kept; whether it had to be made."""
        if os.path.exists(f"{self.folder}/complete"):
            return False
        # Of other inputs, or half made.
        clear(self._cache)
        os.makedirs(self.root)
        self.fill()
        with open(f"{self.folder}/complete", "w", encoding="ascii"):
            pass
        return True

    def fill(self) -> None:
        """The folder, which is empty but for the tree's."""
        self.say("unpacking Debian (packages are not configured: nothing of it runs here)")
        machine.unpack(f"{self.folder}/root.tar", self._packages, [self.root], *self._options)
        for name, target in _LINKS.items():
            path = f"{self.root}/{name}"
            if os.path.isdir(path) and not os.path.islink(path):
                os.rmdir(path)
            if not os.path.lexists(path):
                os.symlink(target, path)
        for name in _FOLDERS:
            os.makedirs(f"{self.root}/{name}", exist_ok=True)
        self.say(f"installing {', '.join(WHEELS)} into it")
        machine.install_wheels(self.root, WHEELS, self.architecture)
        # Of the same release, this machine's Python writes what that one reads.
        for name in ("python3", machine.interpreter(self.root)):
            compile_python(self.root, f"usr/lib/{name}")
        self.finish()


def compile_python(root: str, below: str) -> None:
    """Byte code of what lies in a folder of the tree: emulated, this would take minutes."""
    run(*("/usr/bin/python3", "-m", "compileall", "-q", "-j", "2", "-s", root, "-p", "/"), f"{root}/{below}")
