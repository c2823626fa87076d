# SPDX-License-Identifier: Apache-2.0
"""Boot an aarch64 virtual machine with Debian's kernel and runtimes, run the rows in it, and say whether all passed.

    python3 -m tests.aarch64.run [--only WORD] [--break FAULT] [--console]

`--only` runs the rows whose names contain a word; `--break` plants a fault in the hook that only this architecture
shows, which must make it fail; `--console` shows all that the machine prints.  Exit status 0 only if every row passed.
Must not run a program of the machine's on this one.
"""

from __future__ import annotations

import argparse
import os
import sys

from tests import machine
from tests.aarch64.base import Base, say
from tests.aarch64.rows import ROWS
from tests.guest.tree import Fault, make_image, renew

PATIENCE = 5400  # seconds for the machine, from power-on to power-off, on a busy host
# pauth and sve, which newer processors have, take much of the time of an emulated one.
MACHINE = ["qemu-system-aarch64", "-M", "virt", "-cpu", "neoverse-n1"]
KERNEL_LINE = "console=ttyAMA0 quiet panic=-1 mitigations=off nokaslr log_buf_len=4M"
ARCHITECTURE = "aarch64"
# Whose drivers the rows' nodes have.
DESCRIPTIONS = ("v100", "h100x8", "h100mig")

# What `--break` replaces in a module of the hook, each by what x86_64 has there.
# Every container meets the number; the flags, one whose libraries only ld.so.cache leads to; the order, no GPU's names.
FAULTS = {
    "number": Fault("kernel/syscalls.py", '"aarch64": 280', '"aarch64": 281'),
    "flags": Fault("formats/ldcache.py", "(183, 64): 0x0A03", "(183, 64): 0x0303"),
    "order": Fault("formats/ldcache.py", 'NATIVE_FLAGS["aarch64"] in', 'NATIVE_FLAGS["x86_64"] in'),
}


def main() -> int:
    """Make or find the base, renew it, boot, judge."""
    parser = argparse.ArgumentParser(description="The main job on aarch64, in a virtual machine.")
    parser.add_argument("--only", default="", metavar="WORD")
    parser.add_argument("--break", dest="fault", default="", choices=FAULTS)
    parser.add_argument("--console", action="store_true")
    options = parser.parse_args()
    if not any(options.only in name for name in ROWS):
        raise SystemExit(f"test-aarch64: no row's name contains {options.only!r}")
    if os.geteuid():
        raise SystemExit("test-aarch64: needs root, to make the machine's file system with its owners")
    base = Base()

    def image() -> str:
        renew(base.root, options.only, FAULTS.get(options.fault), ARCHITECTURE, DESCRIPTIONS)
        return make_image(base.root, f"{base.folder}/root.img")

    return machine.test(MACHINE, base, KERNEL_LINE, image, patience=PATIENCE, console=options.console, say=say)


if __name__ == "__main__":
    sys.exit(main())
