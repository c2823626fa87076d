# SPDX-License-Identifier: Apache-2.0
"""Boot a virtual machine whose kernel has the dmem controller, run the rows in it, and say whether all passed.

    python3 -m tests.memory.run [--only WORD] [--break FAULT] [--console]

`--only` runs the rows whose names contain a word; `--break` plants a fault in the hook, which must make it fail;
`--console` shows all that the machine prints.  Exit status 0 only if every row passed.
"""

from __future__ import annotations

import argparse
import glob
import os
import platform
import shutil
import subprocess
import sys

from tests import machine
from tests.gpunode import node
from tests.guest.places import SOURCES
from tests.guest.tree import REPOSITORY, Fault, make_image, renew
from tests.memory.base import Base, say
from tests.memory.places import NEWEST
from tests.memory.rows import ROWS
from tests.policy.debian import run

PATIENCE = 3600  # seconds for the machine, from power-on to power-off, on a busy host
MACHINE = ["qemu-system-x86_64", "-M", "q35", "-cpu", "max"]
KERNEL_LINE = (
    "console=ttyS0 quiet panic=-1 mitigations=off nokaslr systemd.show_status=0 systemd.log_level=warning tsc=reliable"
)
# Whose drivers the rows' nodes have.
DESCRIPTIONS = ("h100x8",)
VENDORS = ("amd",)

# What `--break` replaces in a module of the hook.  Only crun meets the controller, and has a process below its scope.
FAULTS = {
    "controller": Fault("changes/dmem.py", '_write(controllers, "+dmem")', "pass"),
    "inner": Fault("changes/dmem.py", "for folder in own:", "for folder in own[:1]:"),
    "region": Fault("planning/memoryshare.py", ".get(held.address, {})", ".get(min(self.regions or [""]), {})"),
}


def _add_newest(root: str) -> None:
    """The newest runtimes, of the root that tests/newest.sh makes, with the libraries that they need."""
    folder, made = f"{root}/{NEWEST}", f"{REPOSITORY}/.build/newest"
    shutil.rmtree(folder, ignore_errors=True)
    programs = ("/usr/bin/crun", "/usr/sbin/runc")
    words = [f"{REPOSITORY}/tests/newest.sh", made, "ldd", *programs]
    said = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()
    libraries = {word for word in said if word.startswith("/") and ".so" in word}
    for path in (*programs, *libraries):
        place = f"{folder}/{'bin' if path in programs else 'lib'}/{os.path.basename(path)}"
        os.makedirs(os.path.dirname(place), exist_ok=True)
        shutil.copy(f"{made}/root{path}", place)
    [loader] = glob.glob(f"{folder}/lib/ld-linux-*")
    inside = f"/{NEWEST}/lib/{os.path.basename(loader)}"
    own = ("--set-interpreter", inside, "--force-rpath", "--set-rpath", os.path.dirname(inside))
    for path in programs:
        run("patchelf", *own, f"{folder}/bin/{os.path.basename(path)}")


def main() -> int:
    """Make or find the base, renew it, boot, judge."""
    parser = argparse.ArgumentParser(description="Memory limits on a kernel with dmem, in a virtual machine.")
    parser.add_argument("--only", default="", metavar="WORD")
    parser.add_argument("--break", dest="fault", default="", choices=FAULTS)
    parser.add_argument("--console", action="store_true")
    options = parser.parse_args()
    if platform.machine() != "x86_64":
        raise SystemExit("test-memory: the virtual machine is x86_64's: run this on such a machine")
    if not any(options.only in name for name in ROWS):
        raise SystemExit(f"test-memory: no row's name contains {options.only!r}")
    if os.geteuid():
        raise SystemExit("test-memory: needs root, to make the machine's file system with its owners")
    base = Base()

    def image() -> str:
        renew(base.root, options.only, FAULTS.get(options.fault), "x86_64", DESCRIPTIONS)
        # Compiled here: emulated, this takes minutes.
        node.prepare(DESCRIPTIONS[0], [], f"{base.root}/{SOURCES}/.build/gpunode", vendors=VENDORS)
        _add_newest(base.root)
        return make_image(base.root, f"{base.folder}/root.img")

    return machine.test(MACHINE, base, KERNEL_LINE, image, patience=PATIENCE, console=options.console, say=say)


if __name__ == "__main__":
    sys.exit(main())
