# SPDX-License-Identifier: Apache-2.0
"""What is slow and seldom changes: Debian's packages for arm64, and the tests' Python packages.

Kept below .build/aarch64 by the hash of what decides it.  Nothing of it runs on this machine: packages are unpacked,
and Python's byte code is the same on every architecture.

Must not touch anything outside the cache.
"""

from __future__ import annotations

import glob
import hashlib
import os
import shutil

from tests import machine
from tests.aarch64.places import SOURCES
from tests.policy.debian import run

HERE = os.path.dirname(os.path.abspath(__file__))
REPOSITORY = os.path.dirname(os.path.dirname(HERE))
CACHE = os.path.join(REPOSITORY, ".build", "aarch64")

PACKAGES = (
    "bash",
    "busybox-static",
    "coreutils",
    "crun",
    "dash",
    "findutils",
    "gcc",
    "grep",
    "libc-bin",
    "libc6-dev",
    "linux-image-cloud-arm64",
    "make",
    "mount",
    "musl-tools",
    "podman",
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
_FOLDERS = ("proc", "sys", "dev", "run", "tmp")


def say(text: str) -> None:
    """Progress, for those who wait."""
    print(f"test-aarch64: {text}", flush=True)


def _key() -> str:
    """Of everything that decides what the base holds, but for Debian's updates."""
    digest = hashlib.sha256(machine.suite().encode())
    for path in (os.path.abspath(__file__), machine.__file__):
        with open(path, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()[:16]


class Base:
    """The kept part, and where it lies."""

    def __init__(self) -> None:
        self.folder = os.path.join(CACHE, _key())
        self.root = os.path.join(self.folder, "root")
        self.vmlinuz = os.path.join(self.folder, "vmlinuz")
        self.initramfs = os.path.join(self.folder, "initramfs")

    def make(self) -> bool:
        """Everything that is kept; whether it had to be made."""
        if os.path.exists(f"{self.folder}/complete"):
            return False
        os.makedirs(CACHE, exist_ok=True)
        # Of other inputs, or half made.
        for name in os.listdir(CACHE):
            shutil.rmtree(os.path.join(CACHE, name), ignore_errors=True)
        os.makedirs(self.root)
        self._unpack()
        self._install_wheels()
        shutil.copy(glob.glob(f"{self.root}/boot/vmlinuz-*")[0], self.vmlinuz)
        modules, busybox = f"{self.root}/usr/lib/modules", f"{self.root}/usr/bin/busybox"
        machine.make_initramfs(self.initramfs, modules, busybox, f"/{SOURCES}/tests/aarch64/init")
        for name in ("boot", "usr/lib/modules"):
            shutil.rmtree(f"{self.root}/{name}")
        with open(f"{self.folder}/complete", "w", encoding="ascii"):
            pass
        return True

    def _unpack(self) -> None:
        say("unpacking Debian for arm64 (packages are not configured: nothing of it runs here)")
        machine.unpack(f"{self.folder}/root.tar", PACKAGES, [self.root], "--architectures=arm64")
        for name, target in _LINKS.items():
            path = f"{self.root}/{name}"
            if os.path.isdir(path) and not os.path.islink(path):
                os.rmdir(path)
            if not os.path.lexists(path):
                os.symlink(target, path)
        for name in _FOLDERS:
            os.makedirs(f"{self.root}/{name}", exist_ok=True)

    def _install_wheels(self) -> None:
        say(f"installing {', '.join(WHEELS)} into it")
        machine.install_wheels(self.root, WHEELS, "aarch64")
        # Of the same release, this machine's Python writes what that one reads.
        for name in ("python3", machine.interpreter(self.root)):
            compile_python(self.root, f"usr/lib/{name}")


def compile_python(root: str, below: str) -> None:
    """Byte code of what lies in a folder of the tree: emulated, this would take minutes."""
    run(*("/usr/bin/python3", "-m", "compileall", "-q", "-j", "2", "-s", root, "-p", "/"), f"{root}/{below}")
