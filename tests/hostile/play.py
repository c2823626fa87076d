# SPDX-License-Identifier: Apache-2.0
"""Plays attacks on the simulated node, one after another: a line of JSON for each start.

node.py ... -- python -m tests.hostile.play KIT RUNTIME INJECTOR NAME...
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys

from tests.hostile import inputs, links, linux, races, sources, volumes
from tests.hostile.scene import Kit, Scene

FAMILIES = (links, volumes, sources, inputs, races)
BY_NAME = {attack.name.replace("/", "-"): attack for family in FAMILIES for attack in family.ATTACKS}
# A race is lost by chance: so often a container is started, the naive one's until it is caught.
STARTS = {attack.name: 4 for attack in races.ATTACKS}


def own_ipc() -> None:
    """Queues and shared memory of the node's own: others make theirs in the machine's meanwhile."""
    linux.check(ctypes.CDLL(None, use_errno=True).unshare(linux.CLONE_NEWIPC), "unshare")
    for kind, path in (("tmpfs", "/dev/shm"), ("mqueue", "/dev/mqueue")):
        os.makedirs(path, exist_ok=True)
        subprocess.run(["mount", "-t", kind, "none", path], check=True)


def main() -> None:
    file, runtime, injector, *names = sys.argv[1:]
    own_ipc()
    linux.adopt_orphans()
    kit = Kit.read(file)
    for name in names:
        for _ in range(STARTS.get(name, 1) * (12 if injector == "naive" else 1)):
            scene = Scene(kit, f"{name}-{runtime}-{injector}", runtime, BY_NAME[name].root)
            BY_NAME[name].make(scene)
            outcome = scene.play(injector)
            scene.remove()
            print(json.dumps([name, *outcome]), flush=True)
            if outcome.escapes:
                break


if __name__ == "__main__":
    main()
