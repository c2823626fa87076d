# SPDX-License-Identifier: Apache-2.0
"""What is slow and seldom changes: Debian's packages, the base policy, the container's root with its wheels.

Kept below .build/selinux by the policy's name and the hash of what decides it: its recipe, Debian's release, kernel's
and policy's versions.  The policy is Debian's, or another whose module store is given.

Must not touch anything outside the cache, or this machine's own policy.
"""

from __future__ import annotations

import glob
import os
import shutil
import subprocess

from tests import machine
from tests.guest import base as guest
from tests.policy import debian
from tests.policy.debian import run
from tests.selinux import images
from tests.selinux.files import write

HERE = os.path.dirname(os.path.abspath(__file__))
REPOSITORY = os.path.dirname(os.path.dirname(HERE))
CACHE = os.path.join(REPOSITORY, ".build", "selinux")
# What of a root a module store is.
_STORE = ("etc/selinux", "var/lib/selinux")

PACKAGES = ("attr", "kmod", "policycoreutils", "python3-selinux", "selinux-utils", "systemd")
# What `inventory refresh` asks NVML by on the host, and agents in containers.
NVML_WHEEL = "nvidia-ml-py"
KERNEL_PACKAGE = "linux-image-cloud-amd64"
LAYER = "var/lib/containers/storage/overlay/app/diff"
GUEST = "usr/lib/e2e"
MULTIARCH = "x86_64-linux-gnu"


def kernel_package() -> str:
    """The current kernel's package: its name changes with each update."""
    text = subprocess.run(["apt-cache", "depends", KERNEL_PACKAGE], check=True, capture_output=True, text=True).stdout
    for line in text.splitlines():
        kind, _, name = line.strip().partition(": ")
        if kind == "Depends" and name.startswith("linux-image-"):
            return name
    raise SystemExit(f"test-selinux: {KERNEL_PACKAGE} depends on no kernel")


class Base(guest.Base):
    """The kept part, and where it lies; store: the root of another policy's module store, "" for Debian's policy."""

    def __init__(self, store: str) -> None:
        self.kernel = kernel_package()
        self.store = store
        self.policy = debian.store_name(store) if store else debian.STORE
        given = (debian.binary(store), debian.file_contexts(store)) if store else ()
        recipe = (os.path.abspath(__file__), debian.__file__, images.__file__, *given)
        cache = os.path.join(CACHE, self.policy)
        words = f"{self.kernel} {debian.version()}"
        super().__init__("test-selinux", "x86_64", cache, recipe, (*PACKAGES, *images.LIBRARIES), words=words)

    def fill(self) -> None:
        self._download()
        self._unpack()
        self._make_policy()
        self._make_layer()
        self.say("adding Docker and podman, and an image for each")
        images.install(self.root, f"{self.folder}/scratch", LAYER)
        modules, busybox = f"{self.folder}/kernel/lib/modules", f"{self.root}/usr/bin/busybox"
        machine.make_initramfs(self.initramfs, modules, busybox, f"/{GUEST}/load")

    def _download(self) -> None:
        self.say(f"downloading {self.kernel}")
        [package] = debian.download(f"{self.folder}/downloads", self.kernel)
        run("dpkg", "-x", package, f"{self.folder}/kernel")
        shutil.copy(glob.glob(f"{self.folder}/kernel/boot/vmlinuz-*")[0], self.vmlinuz)

    def _unpack(self) -> None:
        self.say("unpacking Debian (packages are not configured: no service is enabled)")
        machine.unpack(f"{self.folder}/root.tar", self._packages, [self.root, f"{self.root}/{LAYER}"])
        # Without one, systemd takes each boot for the first and presets all units.
        write(f"{self.root}/etc/machine-id", "0123456789abcdef0123456789abcdef\n")
        write(f"{self.root}/etc/ld.so.conf", f"/usr/lib/{MULTIARCH}\n/usr/lib/{MULTIARCH}/vdpau\n")
        for name in ("proc", "sys", "dev", "run", "tmp", "var/lib/containers"):
            os.makedirs(f"{self.root}/{name}", exist_ok=True)

    def _make_policy(self) -> None:
        if self.store:
            for name in _STORE:
                shutil.copytree(f"{self.store}/{name}", f"{self.root}/{name}", dirs_exist_ok=True)
        else:
            self.say("linking the base policy with its container module")
            debian.link(self.root, f"{self.folder}/scratch")
        write(f"{self.root}/etc/selinux/config", f"SELINUX=enforcing\nSELINUXTYPE={self.policy}\n")

    def _make_layer(self) -> None:
        layer = f"{self.root}/{LAYER}"
        for root, wheels in ((layer, ("distributed", NVML_WHEEL)), (self.root, (NVML_WHEEL,))):
            self.say(f"installing {', '.join(wheels)} into {os.path.relpath(root, self.folder)}")
            machine.install_wheels(root, wheels, self.architecture)
            # By its own Python: a cache of another version's would not be used.
            run("chroot", root, "/usr/bin/python3", "-IS", "-m", "compileall", "-q", "/usr/lib")
        for name in ("app", "tmp", "victim", "dev", "proc", "sys"):
            os.makedirs(f"{layer}/{name}", exist_ok=True)
        os.chmod(f"{layer}/tmp", 0o1777)
