# SPDX-License-Identifier: Apache-2.0
"""The kept part of the aarch64 machine: Debian's packages for arm64 with their kernel, below .build/aarch64.

Must not touch anything outside the cache.
"""

from __future__ import annotations

import glob
import os
import shutil

from tests import machine
from tests.guest import base as guest
from tests.guest.places import SOURCES
from tests.guest.tree import REPOSITORY

_CACHE = os.path.join(REPOSITORY, ".build", "aarch64")
_PACKAGES = ("gcc", "libc6-dev", "linux-image-cloud-arm64", "make", "musl-tools", "podman")


class Base(guest.Base):
    """The kept part, and where it lies."""

    def __init__(self) -> None:
        recipe = [os.path.abspath(__file__)]
        super().__init__("test-aarch64", "aarch64", _CACHE, recipe, _PACKAGES, "--architectures=arm64")

    def finish(self) -> None:
        """The kernel and its modules leave the tree."""
        shutil.copy(glob.glob(f"{self.root}/boot/vmlinuz-*")[0], self.vmlinuz)
        modules, busybox = f"{self.root}/usr/lib/modules", f"{self.root}/usr/bin/busybox"
        machine.make_initramfs(self.initramfs, modules, busybox, f"/{SOURCES}/tests/aarch64/init")
        for name in ("boot", "usr/lib/modules"):
            shutil.rmtree(f"{self.root}/{name}")
