# SPDX-License-Identifier: Apache-2.0
"""Many container starts at a time: ours beside /bin/true, in blocks by turns so that both meet the same machine.

Must not: calculate; what was measured is given as it was.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

from tests.bench.rounds import Node, Sample, say, start
from tests.bench.stage import Kit, Scene
from tests.bench.variants import WARM, by_key

HOOKS = ("true", "gpu-1")
_BLOCKS = 5


def play(kit: Kit, starts: int, at_once: int) -> dict[str, list[Sample]]:
    """So many starts of each hook, `at_once` of them at any time."""
    Node().make(WARM)
    free = {key: _scenes(kit, key, at_once) for key in HOOKS}
    samples: dict[str, list[Sample]] = {key: [] for key in HOOKS}
    with ThreadPoolExecutor(at_once) as pool:
        for block in range(_BLOCKS):
            size = starts * (block + 1) // _BLOCKS - starts * block // _BLOCKS
            for key in HOOKS:
                samples[key] += list(pool.map(_start, [free[key]] * size))
            say(f"bench: load, {len(samples[HOOKS[-1]])} of {starts} starts each")
    for queue in free.values():
        while not queue.empty():
            queue.get().remove()
    return samples


def _scenes(kit: Kit, key: str, number: int) -> SimpleQueue[Scene]:
    queue: SimpleQueue[Scene] = SimpleQueue()
    for which in range(number):
        queue.put(Scene(kit, by_key(key), f"load-{key}-{which}"))
    return queue


def _start(free: SimpleQueue[Scene]) -> Sample:
    scene = free.get()
    try:
        return start(scene)
    finally:
        free.put(scene)
