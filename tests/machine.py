# SPDX-License-Identifier: Apache-2.0
"""A virtual machine under QEMU: its tree of Debian's packages, what its kernel starts first, and its life to power-off.

Its programs speak on the serial console: a line `E2E TEXT` is for those who wait, `E2E-TABLE ROW` is a row of the
result, and `E2E-RESULT passed` or `E2E-RESULT failed ...` the end.
Must not know what is tested, nor use KVM: where it is offered it may hang this kernel, and a test that sometimes hangs
is none.
"""

from __future__ import annotations

import argparse
import glob
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from tests.policy import debian
from tests.selinux.files import write

# insmod resolves nothing: each after what it needs.
KERNEL_MODULES = (
    "virtio_ring",
    "virtio",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "virtio_blk",
    "overlay",
)
# Emulated, on all machines alike.
EMULATED = ("-accel", "tcg,thread=multi,tb-size=512", "-smp", "2", "-m", "2048")
_BARE = ("-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio", "-no-reboot")
# Of no use without a person.
_UNWANTED = (
    *(f"usr/share/{name}" for name in ("doc", "man", "info", "locale", "lintian", "perl*", "bash-completion")),
    *("usr/lib/*/perl*", "usr/lib/python3*/test", "usr/lib/apt"),
)
_ACCOUNTS = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
_GROUPS = "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n"


def suite() -> str:
    """This machine's Debian release: what is built here then runs there."""
    with open("/etc/os-release", encoding="utf-8") as file:
        settings = dict(line.rstrip().split("=", 1) for line in file if "=" in line)
    return settings["VERSION_CODENAME"].strip('"')


def unpack(archive: str, packages: Iterable[str], roots: Iterable[str], *options: str) -> None:
    """Debian's packages in each of `roots`, not configured; `archive` is made for that, and removed.

    options: of mmdebstrap.
    """
    merged = "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr"
    included = f"--include={','.join(packages)}"
    debian.run("mmdebstrap", "--variant=extract", merged, *options, included, suite(), archive)
    for root in roots:
        os.makedirs(root, exist_ok=True)
        unwanted = [f"--exclude=./{name}" for name in _UNWANTED]
        debian.run("tar", "-C", root, *unwanted, "--exclude=./dev/*", "-xpf", archive)
        write(f"{root}/etc/passwd", _ACCOUNTS)
        write(f"{root}/etc/group", _GROUPS)
        # dash makes its link when it is configured.
        if not os.path.lexists(f"{root}/usr/bin/sh"):
            os.symlink("dash", f"{root}/usr/bin/sh")
    os.unlink(archive)


def interpreter(root: str) -> str:
    """The name of the Python of a tree, as "python3.11"."""
    return os.path.basename(os.path.realpath(f"{root}/usr/bin/python3"))


def install_wheels(root: str, wheels: Iterable[str], architecture: str) -> None:
    """Packages from PyPI for the Python of a tree, which need not run here."""
    version = interpreter(root)[len("python") :]
    debian.run(
        *("/usr/bin/python3", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"),
        *("--only-binary=:all:", "--implementation=cp"),
        *(f"--python-version={version}", f"--abi=cp{version.replace('.', '')}"),
        *(f"--platform=manylinux2014_{architecture}", f"--platform=manylinux_2_28_{architecture}"),
        *("--target", f"{root}/usr/lib/python3/dist-packages", *wheels),
    )


def make_initramfs(out: str, modules: str, busybox: str, first: str) -> None:
    """The initial RAM file system `out`: it loads the kernel's modules from the folder `modules`, mounts the disk, and
    starts `first` there; busybox: a static one of the machine's architecture."""
    folder = f"{out}.d"
    for name in ("bin", "modules", "newroot", "dev", "proc", "sys"):
        os.makedirs(f"{folder}/{name}")
    shutil.copy(busybox, f"{folder}/bin/busybox")
    loads = []
    for name in KERNEL_MODULES:
        [module] = glob.glob(f"{modules}/*/kernel/**/{name}.ko", recursive=True)
        shutil.copy(module, f"{folder}/modules/")
        loads.append(f"insmod /modules/{name}.ko")
    write(
        f"{folder}/init",
        "#!/bin/busybox sh\n"
        "/bin/busybox --install -s /bin\n"
        "mount -t devtmpfs dev /dev; mount -t proc proc /proc; mount -t sysfs sys /sys\n"
        + "\n".join(loads)
        + "\nmount -t ext4 -o rw /dev/vda /newroot || echo 'E2E no root file system'\n"
        "for name in dev proc sys; do mount --move /$name /newroot/$name; done\n"
        f"exec switch_root /newroot {first}\n",
        0o755,
    )
    names = subprocess.run(["find", "."], check=True, cwd=folder, capture_output=True).stdout
    line = ["cpio", "--quiet", "-o", "-H", "newc"]
    packed = subprocess.run(line, check=True, cwd=folder, input=names, capture_output=True).stdout
    with open(out, "wb") as file:
        file.write(subprocess.run(["gzip", "-1"], check=True, input=packed, capture_output=True).stdout)


class Base(Protocol):
    """What a machine boots by, which is made once: its kernel and its initial RAM file system."""

    vmlinuz: str
    initramfs: str

    def make(self) -> bool:
        """Make it if it is missing or old; gives whether it did."""

    def say(self, text: str) -> None:
        """Progress, for those who wait."""


def options(lane: str, faults: Iterable[str], *folders: tuple[str, str]) -> argparse.Namespace:
    """A lane's command line, by root: `only`, `fault` and `console`; folders: more options, with their defaults."""
    parser = argparse.ArgumentParser(prog=lane)
    parser.add_argument("--only", default="", metavar="WORD", help="run the rows whose names contain it")
    parser.add_argument("--break", dest="fault", default="", choices=faults, help="what is broken, and must be seen")
    parser.add_argument("--console", action="store_true", help="show all that the machine prints")
    for name, default in folders:
        parser.add_argument(name, default=default, metavar="FOLDER")
    given = parser.parse_args()
    if os.geteuid():
        raise SystemExit(f"{lane}: needs root, to make the machine's file system with its owners and device nodes")
    return given


def test(
    machine: list[str], base: Base, line: str, make_image: Callable[[], str], *, patience: int, console: bool
) -> int:
    """Make or find the base, make the disk, boot, and judge; gives the exit status.

    machine: QEMU's program with the board and the processor; line: the kernel's command line; patience: in seconds;
    console: whether to show all that is printed.
    """
    begun, say = time.monotonic(), base.say
    cold = base.make()
    say(f"base {'made' if cold else 'found'}: {time.monotonic() - begun:.0f} s")
    image = make_image()
    say(f"image made: {time.monotonic() - begun:.0f} s; booting")
    passed = _run(machine, base, line, image, patience=patience, console=console)
    say(f"{'passed' if passed else 'FAILED'} in {time.monotonic() - begun:.0f} s, {'cold' if cold else 'warm'}")
    return 0 if passed else 1


def _run(machine: list[str], base: Base, line: str, image: str, *, patience: int, console: bool) -> bool:
    """Run it to its end, and print its table; whether it said that all rows passed.  The disk stays as it is."""
    disk = f"if=none,id=root,format=raw,file={image},snapshot=on,cache=unsafe"
    boot = ["-kernel", base.vmlinuz, "-initrd", base.initramfs, "-append", line]
    words = [*machine, *EMULATED, *_BARE, *boot, "-drive", disk]
    process = subprocess.Popen(
        [*words, "-device", "virtio-blk-pci,drive=root"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    watchdog = threading.Timer(patience, process.kill)
    watchdog.start()
    passed = ended = False
    table: list[str] = []
    last: list[str] = []
    try:
        for text in process.stdout:
            text = text.rstrip()
            last = [*last[-30:], text]
            if text.startswith("E2E-TABLE "):
                table.append(text[len("E2E-TABLE ") :])
            elif text.startswith("E2E-RESULT "):
                passed = text.startswith("E2E-RESULT passed")
                ended = True
                base.say(text[len("E2E-RESULT ") :])
            elif text.startswith("E2E "):
                base.say(text[len("E2E ") :])
            elif console:
                print(text, flush=True)
        process.wait()
    finally:
        watchdog.cancel()
        process.kill()
    if not ended:
        print("\n".join(last))
        base.say("the machine ended without a result; its last lines are above")
    print("\n".join(table))
    return passed
