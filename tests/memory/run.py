# SPDX-License-Identifier: Apache-2.0
"""Boot a virtual machine whose kernel has the dmem controller, and run the rows in it, as tests.guest.lane says."""

from __future__ import annotations

import glob
import os
import platform
import shutil
import subprocess
import sys

from tests.gpunode import node
from tests.guest import lane
from tests.guest.places import NEWEST, SOURCES
from tests.guest.tree import REPOSITORY, Fault
from tests.memory.base import Base
from tests.memory.rows import ROWS
from tests.policy.debian import run

MACHINE = ["qemu-system-x86_64", "-M", "q35", "-cpu", "max"]
KERNEL_LINE = (
    "console=ttyS0 quiet panic=-1 mitigations=off nokaslr systemd.show_status=0 systemd.log_level=warning tsc=reliable"
)
DESCRIPTION = "h100x8"
VENDORS = ("amd",)

# What `--break` replaces in a module of the hook.  Only crun meets the controller, and has a process below its scope.
FAULTS = {
    "controller": Fault("changes/dmem.py", 'cgroup.write(_CONTROLLERS, "+dmem")', "pass"),
    "inner": Fault("changes/dmem.py", "cgroups[len(above) :]", "cgroups[len(above) :][:1]"),
    "region": Fault("planning/memoryshare.py", ".get(held.address, {})", ".get(min(self.regions or ['']), {})"),
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
    if platform.machine() != "x86_64":
        raise SystemExit("test-memory: the virtual machine is x86_64's: run this on such a machine")
    base = Base()

    def add() -> None:
        # Compiled here: emulated, this takes minutes.
        node.prepare(DESCRIPTION, [], f"{base.root}/{SOURCES}/.build/gpunode", vendors=VENDORS)
        _add_newest(base.root)

    return lane.run(base, MACHINE, KERNEL_LINE, ROWS, FAULTS, patience=3600, descriptions=(DESCRIPTION,), add=add)


if __name__ == "__main__":
    sys.exit(main())
