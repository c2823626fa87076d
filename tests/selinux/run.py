# SPDX-License-Identifier: Apache-2.0
"""Boot a virtual machine with an enforcing SELinux, run every case in it, and say whether all passed.

    python3 -m tests.selinux.run [--only WORD] [--policy FOLDER] [--break FAULT] [--console]

`--only` runs the rows whose names contain a word; `--policy` takes the modules from another folder; `--break`
plants a fault in the hook, which must make it fail; `--console` shows all that the machine prints.  Exit status 0 only
if every row passed.
Must not use KVM: where it is offered it may hang this kernel, and a test that sometimes hangs is none.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import threading
import time

from tests.selinux.base import REPOSITORY, Base, say
from tests.selinux.tree import FAULTS, Tree

PATIENCE = 900  # seconds for the machine, from power-on to power-off, on a busy host
KERNEL_LINE = (
    "console=ttyS0 quiet panic=-1 mitigations=off lsm=selinux selinux=1 enforcing=1 audit=1"
    " audit_backlog_limit=8192 nokaslr systemd.show_status=0 tsc=reliable log_buf_len=4M"
)


def boot(base: Base, image: str, console: bool) -> tuple[bool, list[str]]:
    """Run the machine to its end; whether it said that all rows passed, and its table."""
    words = [
        "qemu-system-x86_64",
        "-M",
        "q35",
        "-accel",
        "tcg,thread=multi,tb-size=512",
        "-cpu",
        "max",
        "-smp",
        "2",
        "-m",
        "2048",
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-serial",
        "stdio",
        "-no-reboot",
        "-kernel",
        base.vmlinuz,
        "-initrd",
        base.initramfs,
        "-append",
        KERNEL_LINE,
        "-drive",
        f"if=none,id=root,format=raw,file={image},snapshot=on,cache=unsafe",
        "-device",
        "virtio-blk-pci,drive=root",
    ]
    machine = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert machine.stdout is not None
    watchdog = threading.Timer(PATIENCE, machine.kill)
    watchdog.start()
    passed = False
    table: list[str] = []
    last: list[str] = []
    try:
        for line in machine.stdout:
            line = line.rstrip()
            last = [*last[-30:], line]
            if line.startswith("E2E-TABLE "):
                table.append(line[len("E2E-TABLE ") :])
            elif line.startswith("E2E-RESULT "):
                passed = line.startswith("E2E-RESULT passed")
                last = []
                say(line[len("E2E-RESULT ") :])
            elif line.startswith("E2E "):
                say(line[len("E2E ") :])
            elif console:
                print(line, flush=True)
        machine.wait()
    finally:
        watchdog.cancel()
        machine.kill()
    if last and not table:
        print("\n".join(last))
        say("the machine ended without a result; its last lines are above")
    return passed, table


def main() -> int:
    """Make or find the tree, renew it, boot, judge."""
    parser = argparse.ArgumentParser(description="The SELinux cases, in a virtual machine.")
    parser.add_argument("--only", default="", metavar="WORD")
    parser.add_argument("--policy", default=os.path.join(REPOSITORY, "policy"), metavar="FOLDER")
    parser.add_argument("--break", dest="fault", default="", choices=FAULTS)
    parser.add_argument("--console", action="store_true")
    options = parser.parse_args()
    begun = time.monotonic()
    if platform.machine() != "x86_64":
        raise SystemExit(
            "test-selinux: the virtual machine is x86_64's: run this on such a machine"
        )
    if os.geteuid():
        raise SystemExit(
            "test-selinux: needs root, to write labels and device nodes into the machine's file system"
        )
    base = Base()
    cold = base.make()
    say(f"base {'made' if cold else 'found'}: {time.monotonic() - begun:.0f} s")
    tree = Tree(base)
    tree.renew(options.policy, options.only, options.fault)
    image = tree.make_image()
    say(f"image made: {time.monotonic() - begun:.0f} s; booting")
    passed, table = boot(base, image, options.console)
    print("\n".join(table))
    say(
        f"{'passed' if passed else 'FAILED'} in {time.monotonic() - begun:.0f} s, {'cold' if cold else 'warm'}"
    )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
