# SPDX-License-Identifier: Apache-2.0
"""A virtual machine under QEMU: what its kernel starts first, and its life from power-on to power-off.

Its programs speak on the serial console: a line `E2E TEXT` is for whoever waits, `E2E-TABLE ROW` is a row of the
result, and `E2E-RESULT passed` or `E2E-RESULT failed ...` the end.
Must not know what is tested, nor use KVM: where it is offered it may hang this kernel, and a test that sometimes hangs
is none.
"""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import threading
from collections.abc import Callable

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


def run(
    machine: list[str],
    kernel: str,
    initramfs: str,
    line: str,
    image: str,
    *,
    patience: int,
    console: bool,
    say: Callable[[str], None],
) -> tuple[bool, list[str]]:
    """Run it to its end; whether it said that all rows passed, and its table.

    machine: QEMU's program with the board and the processor; line: the kernel's command line; image: the disk, which
    stays as it is; patience: in seconds; console: whether to show all that is printed.
    """
    disk = f"if=none,id=root,format=raw,file={image},snapshot=on,cache=unsafe"
    boot = ["-kernel", kernel, "-initrd", initramfs, "-append", line]
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
                say(text[len("E2E-RESULT ") :])
            elif text.startswith("E2E "):
                say(text[len("E2E ") :])
            elif console:
                print(text, flush=True)
        process.wait()
    finally:
        watchdog.cancel()
        process.kill()
    if not ended:
        print("\n".join(last))
        say("the machine ended without a result; its last lines are above")
    return passed, table
