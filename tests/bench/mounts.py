# SPDX-License-Identifier: Apache-2.0
"""What the mounts of a node cost a start: the same container beside none, and beside thousands.

In a root in which nothing has been started yet, and again in its old root.  Each round visits each number of mounts
once, in random order.  Must not: calculate; what was measured is given as it was.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Callable

from tests.bench.rounds import Node, Sample, again, say, start
from tests.bench.stage import Kit, Scene
from tests.bench.variants import WARM, variants
from tests.gpunode import linux

MOUNTS = (0, 500, 2000, 5000)
_STARTS = 2  # of each hook in each root, on each visit, after one that only warms what is cold


def play(kit: Kit, rounds: int) -> dict[str, list[Sample]]:
    """The samples of each ``HOOK ROOT MOUNTS``: ours, and the candidate's if there is one."""
    Node().make(WARM)
    keys = ["gpu-1"] + (["candidate-gpu-1"] if kit.candidate else [])
    rows = {row.key: row for row in variants(kit.candidate is not None)}
    scenes = {key: Scene(kit, rows[key], f"mounts-{key}") for key in keys}
    samples: dict[str, list[Sample]] = {}
    folder = kit.scratch / "mounts"
    folder.mkdir()
    for number in range(1, rounds + 1):
        for mounts in random.sample(MOUNTS, len(MOUNTS)):
            _mount(folder, mounts)
            for key, scene in random.sample([*scenes.items()], len(scenes)):
                samples.setdefault(f"{key} fresh {mounts}", []).extend(_taken(start, scene))
                scene.lay()
                samples.setdefault(f"{key} old {mounts}", []).extend(_taken(again, scene))
                scene.clear()
            linux.unmount(str(folder))
        if number % max(1, rounds // 5) == 0:
            say(f"bench: mounts, round {number} of {rounds}")
    for scene in scenes.values():
        scene.remove()
    return samples


def _taken(how: Callable[[Scene], Sample], scene: Scene) -> list[Sample]:
    return [how(scene) for _ in range(_STARTS + 1)][1:]


def _mount(folder: Path, mounts: int) -> None:
    """So many filesystems more on the node, as a pod has some eight; they go with the one at `folder`."""
    linux.mount("none", str(folder), "tmpfs")
    for number in range(mounts):
        point = folder / str(number)
        point.mkdir()
        linux.mount("tmpfs", str(point), "tmpfs", options="size=64k")
