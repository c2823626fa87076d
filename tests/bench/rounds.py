# SPDX-License-Identifier: Apache-2.0
"""The measuring itself: every variant once a round, in random order, under a real runc.

Two measures of a start: the hook alone, by the C timer around it, and the whole `runc run`.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from oci_gpu_hook.host import leases as held
from oci_gpu_hook.host.root import HostRoot
from tests.bench.stage import COMMAND, ENVIRONMENT, SAVED, Kit, Scene
from tests.bench.variants import COLD, STALE, WARM, Variant, by_key

_CACHE = "/etc/ld.so.cache"
SETTINGS = Path("/etc/oci-gpu-hook.conf")
# Which hooks a load is started with.
LOADED = ("true", "gpu-1")
_BLOCKS = 5
_CGROUPS = Path("/sys/fs/cgroup")


class Sample(NamedTuple):
    """One start.  Times in ms, memory in KiB; `said` is why it failed, "" if it did not."""

    run: float
    hook: float
    cpu: float
    memory: int
    saved: bool  # whether the saved inventory was written during the start
    said: str


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def start(scene: Scene) -> Sample:
    """One container from its start to its end, in a root of its own."""
    scene.lay()
    try:
        scene.record.write_text("")
        before = _saved()
        words = ["runc", "run", "--bundle", str(scene.path), f"bench-{os.getpid()}-{scene.name}"]
        run, status = timed(words, str(scene.errors))
        return _sample(scene, run, status, _saved() != before)
    finally:
        scene.clear()


def timed(words: list[str], errors: str = "/dev/null") -> tuple[float, int]:
    """How long a program takes, in ms, and how it ends; errors: the file that its stderr is."""
    files = [("/dev/null", os.O_RDONLY), ("/dev/null", os.O_WRONLY), (errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)]
    actions = [(os.POSIX_SPAWN_OPEN, fd, path, how, 0o644) for fd, (path, how) in enumerate(files)]
    begun = time.perf_counter_ns()
    child = os.posix_spawnp(words[0], words, ENVIRONMENT, file_actions=actions)
    _, status = os.waitpid(child, 0)
    return (time.perf_counter_ns() - begun) / 1e6, os.waitstatus_to_exitcode(status)


def _sample(scene: Scene, run: float, status: int, saved: bool) -> Sample:
    said = scene.errors.read_text(errors="replace").strip()
    failed = (said or f"the container ended with {status}, as its GPU is not there") if status else ""
    recorded = scene.record.read_text().split()
    if not recorded:
        return Sample(run, 0.0, 0.0, 0, saved, failed)
    wall, user, system, memory, ended = [int(word) for word in recorded[:5]]
    if ended and not failed:
        failed = f"the hook ended with {os.waitstatus_to_exitcode(ended)}"
    return Sample(run, wall / 1e6, (user + system) / 1e3, memory, saved, failed)


def _cgroup() -> str:
    """A cgroup with a process, as a container's."""
    folder = _CGROUPS / "devices" if (_CGROUPS / "devices").is_dir() else _CGROUPS
    group = folder / f"bench-{os.getpid()}"
    group.mkdir(exist_ok=True)
    return str(group)


def _saved() -> list[tuple[str, int, int]]:
    """What lies in the saved inventory's folder, so that a change shows."""
    entries = sorted(os.scandir(SAVED), key=lambda entry: entry.name)
    # Each start that is counted writes these.
    kept = [entry for entry in entries if not entry.name.startswith("leases")]
    return [(entry.name, entry.inode(), entry.stat().st_mtime_ns) for entry in kept]


class Node:
    """What is kept on the node that this process is on: the folder in /run, as a start is to meet it."""

    def __init__(self) -> None:
        self._aside = SAVED.with_name(f"{SAVED.name}.{WARM}")
        self._cache = os.stat(_CACHE)
        self._state = ""

    def make(self, saved: str) -> None:
        """Bring it into the state that a variant is to meet; a warm one is kept as its starts leave it."""
        if saved == WARM == self._state:
            return
        times = self._cache.st_atime_ns, self._cache.st_mtime_ns
        os.utime(_CACHE, ns=times)
        if self._state == WARM:
            SAVED.rename(self._aside)
        else:
            shutil.rmtree(SAVED)
        if saved == WARM and self._aside.exists():
            # The same files: a start asks for more than their names.
            self._aside.rename(SAVED)
        else:
            SAVED.mkdir()
            if saved != COLD:
                subprocess.run(
                    [COMMAND, "inventory", "refresh"], check=True, stdout=subprocess.DEVNULL, env=ENVIRONMENT
                )
        if saved == STALE:
            # What ldconfig leaves behind when somebody has installed a driver.
            os.utime(_CACHE, ns=(times[0], times[1] + 1_000_000_000))
        self._state = saved

    def count(self, *, counted: bool, leases: int) -> None:
        """Set whether holders are counted, and plant so many leases of a process that goes on, over eight GPUs."""
        SETTINGS.unlink(missing_ok=True)
        (SAVED / "leases").unlink(missing_ok=True)
        if not counted:
            return
        SETTINGS.write_text("gpu-holders = 1000\n")
        host, stat = HostRoot(), Path("/proc/self/stat").read_bytes()
        with held.Leases(host, is_written=True):
            mine = held.lease_of("bench", os.getpid(), stat, _cgroup(), 1000)
            gpus = [f"0000{gpu.name}" for gpu in sorted(Path("/proc/driver/nvidia/gpus").iterdir())]
            held.write(host, [mine._replace(devices=(gpus[number % 8],)) for number in range(leases)])


def play(kit: Kit, variants: Sequence[Variant], rounds: int) -> dict[str, list[Sample]]:
    """All rounds; the first start of each variant only warms what is cold and is not counted."""
    scenes = {variant.key: Scene(kit, variant, variant.key) for variant in variants}
    samples: dict[str, list[Sample]] = {variant.key: [] for variant in variants}
    state = Node()
    for number in range(rounds + 1):
        for variant in random.sample(variants, len(variants)):
            state.make(variant.saved)
            state.count(counted=variant.counted, leases=variant.leases)
            sample = start(scenes[variant.key])
            if number:
                samples[variant.key].append(sample)
        if number == rounds or number % max(1, rounds // 10) == 0:
            say(f"bench: round {number} of {rounds}")
    for scene in scenes.values():
        scene.remove()
    state.count(counted=False, leases=0)
    os.rmdir(_cgroup())
    return samples


def play_load(kit: Kit, starts: int, at_once: int) -> dict[str, list[Sample]]:
    """So many starts of each hook, `at_once` of them at any time: by turns, so that both meet the same machine."""
    Node().make(WARM)
    scenes = {key: [Scene(kit, by_key(key), f"load-{key}-{it}") for it in range(at_once)] for key in LOADED}
    samples: dict[str, list[Sample]] = {key: [] for key in LOADED}
    with ThreadPoolExecutor(at_once) as pool:
        for block in range(_BLOCKS):
            size = starts * (block + 1) // _BLOCKS - starts * block // _BLOCKS
            for key in LOADED:
                free: SimpleQueue[Scene] = SimpleQueue()
                for scene in scenes[key]:
                    free.put(scene)
                samples[key] += list(pool.map(_start_free, [free] * size))
            say(f"bench: load, {len(samples[LOADED[-1]])} of {starts} starts each")
    for scene in [scene for of_key in scenes.values() for scene in of_key]:
        scene.remove()
    return samples


def _start_free(free: SimpleQueue[Scene]) -> Sample:
    scene = free.get()
    try:
        return start(scene)
    finally:
        free.put(scene)
