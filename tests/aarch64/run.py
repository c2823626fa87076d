# SPDX-License-Identifier: Apache-2.0
"""Boot an aarch64 virtual machine with Debian's kernel and runtimes, and run the rows in it, as tests.guest.lane says.

A fault that is planted is one that only this architecture shows.
Must not run a program of the machine's on this one.
"""

from __future__ import annotations

import sys

from tests.aarch64.base import Base
from tests.aarch64.rows import ROWS
from tests.guest.lane import run
from tests.guest.tree import Fault

# pauth and sve, which newer processors have, take much of the time of an emulated one.
MACHINE = ["qemu-system-aarch64", "-M", "virt", "-cpu", "neoverse-n1"]
KERNEL_LINE = "console=ttyAMA0 quiet panic=-1 mitigations=off nokaslr log_buf_len=4M"

# What `--break` replaces in a module of the hook, each by what x86_64 has there.
# Every container meets the number; the flags, one whose libraries only ld.so.cache leads to; the order, no GPU's names.
FAULTS = {
    "number": Fault("kernel/syscalls.py", '"aarch64": 280', '"aarch64": 281'),
    "flags": Fault("formats/ldcache.py", "(183, 64): 0x0A03", "(183, 64): 0x0303"),
    "order": Fault("formats/ldcache.py", 'NATIVE_FLAGS["aarch64"] in', 'NATIVE_FLAGS["x86_64"] in'),
}

if __name__ == "__main__":
    nodes = ("v100", "h100x8", "h100mig")
    sys.exit(run(Base(), MACHINE, KERNEL_LINE, ROWS, FAULTS, patience=5400, descriptions=nodes))
