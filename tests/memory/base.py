# SPDX-License-Identifier: Apache-2.0
"""The kept parts of the machine: a Linux with the dmem controller, and Debian's packages with systemd and the runtimes.

Each is kept below .build/memory by the hash of what decides it, so that a change of one does not build the other.
Must not touch anything outside the cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import textwrap
import time

from tests import machine
from tests.gpunode import boot
from tests.guest import base as guest
from tests.guest.places import MODULE, SOURCES
from tests.guest.tree import REPOSITORY
from tests.policy.debian import run
from tests.selinux.files import write

HERE = os.path.dirname(os.path.abspath(__file__))
_CACHE = os.path.join(REPOSITORY, ".build", "memory")
_PACKAGES = ("conmon", "dbus", "kmod", "podman", "systemd")

# All that this systemd starts, beside a message bus; the machine ends with it.
_ROWS = f"""
    [Unit]
    DefaultDependencies=no
    Requires=dbus.service
    After=dbus.service
    SuccessAction=poweroff-immediate
    FailureAction=poweroff-immediate
    [Service]
    Type=oneshot
    Environment=HOME=/root LANG=C.UTF-8
    WorkingDirectory=/{SOURCES}
    ExecStart=/usr/bin/python3 -B -m tests.guest.rows memory
    TimeoutStartSec=infinity
    StandardOutput=tty
    StandardError=tty
    TTYPath=/dev/console
    """


class Base(guest.Base):
    """The kept parts, and where they lie."""

    def __init__(self) -> None:
        recipe = (os.path.abspath(__file__), boot.__file__)
        super().__init__("test-memory", "x86_64", os.path.join(_CACHE, "packages"), recipe, _PACKAGES)
        built = guest.key(f"{HERE}/kernel.sh", f"{HERE}/kernel.config")
        self._kernel = os.path.join(_CACHE, "kernel", built)
        self.vmlinuz = os.path.join(self._kernel, "vmlinuz")

    def make(self) -> bool:
        """Everything that is kept; whether something had to be made."""
        kernel, packages = self._make_kernel(), super().make()
        with open(f"{self._kernel}/version", encoding="ascii") as file:
            version = file.read().strip()
        self.say(f"Linux {version}, {os.path.getsize(self.vmlinuz) / 1e6:.1f} MB")
        self._make_initramfs()
        self._make_module()
        return kernel or packages

    def _make_kernel(self) -> bool:
        if os.path.exists(self._kernel):
            return False
        self.say("building a kernel: five minutes on two cores, if no other needs them")
        begun = time.monotonic()
        guest.clear(os.path.dirname(self._kernel))
        subprocess.run([f"{HERE}/kernel.sh", f"{HERE}/kernel.config", self._kernel], check=True)
        self.say(f"kernel built: {time.monotonic() - begun:.0f} s")
        return True

    def finish(self) -> None:
        """What systemd and dbus start by."""
        # Without one, systemd takes each boot for the first and presets all units.
        write(f"{self.root}/etc/machine-id", "0123456789abcdef0123456789abcdef\n")
        # dbus makes its user when it is configured.
        for name, rest in (("passwd", "100::/nonexistent:/usr/sbin/nologin"), ("group", "")):
            with open(f"{self.root}/etc/{name}", "a", encoding="ascii") as file:
                file.write(f"messagebus:x:100:{rest}\n")
        bus = ("dbus.socket", "dbus.service", "sysinit.target", "basic.target", "shutdown.target")
        for name, text in {**{name: boot.UNITS[name] for name in bus}, "rows.service": _ROWS}.items():
            write(f"{self.root}/etc/systemd/system/{name}", textwrap.dedent(text))

    def _make_initramfs(self) -> None:
        """Of the kernel's modules and of the packages' busybox, either of which may be new."""
        for path in (self.initramfs, f"{self.initramfs}.d"):
            if os.path.isdir(path):
                shutil.rmtree(path)
            elif os.path.exists(path):
                os.unlink(path)
        first = f"/{SOURCES}/tests/memory/init"
        machine.make_initramfs(self.initramfs, f"{self._kernel}/modules", f"{self.root}/usr/bin/busybox", first)

    def _make_module(self) -> None:
        folder = f"{self.folder}/module"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(f"{HERE}/module", folder)
        run("make", "-s", "-C", f"{self._kernel}/headers", f"M={folder}", "modules")
        os.makedirs(os.path.dirname(f"{self.root}/{MODULE}"), exist_ok=True)
        shutil.copy(f"{folder}/regions.ko", f"{self.root}/{MODULE}")
