# SPDX-License-Identifier: Apache-2.0
"""The kept part of the aarch64 machine: Debian's packages for arm64 with their kernel, below .build/aarch64.

Must not touch anything outside the cache.
"""

from __future__ import annotations

import glob
import os
import shutil

from tests import machine
from tests.guest.base import Packages
from tests.guest.places import SOURCES
from tests.guest.tree import REPOSITORY

CACHE = os.path.join(REPOSITORY, ".build", "aarch64")
_PACKAGES = ("gcc", "libc6-dev", "linux-image-cloud-arm64", "make", "musl-tools", "podman")


def say(text: str) -> None:
    """Progress, for those who wait."""
    print(f"test-aarch64: {text}", flush=True)


class Base:
    """The kept part, and where it lies."""

    def __init__(self) -> None:
        self._packages = Packages(CACHE, say, os.path.abspath(__file__))
        self.folder = self._packages.folder
        self.root = self._packages.root
        self.vmlinuz = os.path.join(self.folder, "vmlinuz")
        self.initramfs = os.path.join(self.folder, "initramfs")

    def make(self) -> bool:
        """Everything that is kept; whether it had to be made."""
        if self._packages.is_made():
            return False
        self._packages.make("aarch64", _PACKAGES, "--architectures=arm64")
        shutil.copy(glob.glob(f"{self.root}/boot/vmlinuz-*")[0], self.vmlinuz)
        modules, busybox = f"{self.root}/usr/lib/modules", f"{self.root}/usr/bin/busybox"
        machine.make_initramfs(self.initramfs, modules, busybox, f"/{SOURCES}/tests/aarch64/init")
        for name in ("boot", "usr/lib/modules"):
            shutil.rmtree(f"{self.root}/{name}")
        self._packages.complete()
        return True
