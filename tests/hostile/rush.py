# SPDX-License-Identifier: Apache-2.0
"""Many starts that ask for any GPU, more at a time than there are GPUs: a line of JSON for each.

    node.py --cgroup v1 ... -- python -m tests.hostile.rush KIT STARTS AT_ONCE RUNTIME...

A tenth of the hooks is killed, and a tenth of the containers.  Meanwhile the device cgroups are read from outside: two
that hold processes and allow one GPU are two holders.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.hostile import linux
from tests.hostile.load import killed, run
from tests.hostile.scene import STAGE, Kit
from tests.integration.engines import Bundle, meanwhile

DEVICES = Path("/sys/fs/cgroup/devices")
_MAJOR = 195
_CONTROL = 255


class Rush:
    """All starts; each thread has a root of its own, in which its containers follow one another."""

    def __init__(self, kit: Kit, runtimes: list[str], starts: int) -> None:
        self.name = f"rush-{os.getpid()}"
        self.work = kit.work / self.name
        self.pattern, self.hooks, self.runtimes = kit.patterns["busybox"], kit.hooks, runtimes
        self.rows: list[dict[str, Any]] = []
        self.seen = {"looks": 0, "busy": 0, "twice": 0}
        # An iterator gives each number to one thread.
        self.numbers = iter(range(starts))

    def run(self, thread: int) -> None:
        made = Bundle(self.work / str(thread), {}, self.pattern)
        for number in self.numbers:
            self.start(made, number)

    def start(self, made: Bundle, number: int) -> None:
        chance = random.Random(number)
        node, ours = self.hooks[STAGE]
        is_hook_killed, is_killed = chance.random() < 0.1, chance.random() < 0.1
        if is_hook_killed:
            ours = killed(ours, chance.uniform(0.005, 0.15))
        made.config["hooks"] = {STAGE: [node, ours]}
        made.asks("any", "utility")
        made.runs("/bin/sh", "-c", f"echo whole; exec sleep {chance.uniform(0, 0.4):.2f}")
        name, runtime = f"{self.name}-{number}", self.runtimes[number % len(self.runtimes)]

        def kill() -> None:
            time.sleep(chance.uniform(0.05, 0.4))
            subprocess.run([runtime, "kill", name, "KILL"], capture_output=True)

        code, said, told = run(runtime, made, name, kill if is_killed else lambda: None)
        row = {"killed": is_hook_killed or is_killed, "whole": "whole" in said, "code": code, "err": told}
        self.rows.append(row)

    def holders(self) -> dict[int, set[str]]:
        """The containers of each GPU, by its minor: those whose device cgroup allows it and has a process."""
        found: dict[int, set[str]] = {}
        for folder in DEVICES.rglob(f"{self.name}-*"):
            try:
                if (folder / "cgroup.procs").read_text():
                    rules = (folder / "devices.list").read_text()
                    for minor in re.findall(rf"^c {_MAJOR}:(\d+) rw", rules, re.MULTILINE):
                        found.setdefault(int(minor), set()).add(folder.name)
            except OSError:
                continue
        found.pop(_CONTROL, None)
        return found

    def look(self) -> None:
        """Count the looks, the most GPUs that were held at a time, and the GPUs with two holders at once."""
        first, second = self.holders(), self.holders()
        self.seen["looks"] += 1
        self.seen["busy"] = max(self.seen["busy"], len(first))
        # One container may end and the next begin between two files: who is there twice is there.
        self.seen["twice"] += sum(len(first[gpu] & second.get(gpu, set())) > 1 for gpu in first)


def main() -> None:
    file, starts, at_once, *runtimes = sys.argv[1:]
    linux.adopt_orphans()
    rush = Rush(Kit.read(file), runtimes, int(starts))
    with meanwhile(rush.look), ThreadPoolExecutor(int(at_once)) as pool:
        list(pool.map(rush.run, range(int(at_once))))
    for row in rush.rows:
        print(json.dumps(row))
    print(json.dumps({**rush.seen, "left": sorted(os.listdir("/run/oci-gpu-hook"))}))


if __name__ == "__main__":
    main()
