# SPDX-License-Identifier: Apache-2.0
"""Where a start's time goes: the same starts, once as they are and once with the stopwatch in the interpreter.

The door is left as it is but for the interpreter's path, which leads to the stopwatch.  The time before the first
line of Python is that of an interpreter left by _exit; what neither knows is the door's and the shutdown's.
Must not: show the stopwatched start's whole time, for it is longer.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

from tests.bench import figures
from tests.bench.rounds import Node, Sample, say, start
from tests.bench.stage import HERE, Hook, Kit, Scene
from tests.bench.stopwatch import IMPORTS, PHASES, REST
from tests.bench.variants import by_key

PATHS = ("no-request", "gpu-1", "large", "gpu-8", "all", "cold")
INTERPRETER, WORK, DOOR = "interpreter", "hook and errors", "door and shutdown"
NAMES = (INTERPRETER, IMPORTS, *dict.fromkeys(PHASES.values()), WORK, DOOR)
HOW = (
    "Medians, under runc. Interpreter: a start of `python3 -IS` that leaves by `_exit` at once. Imports to hook: by "
    "a stopwatch that wraps the import statement and the rooms' functions from outside, in an interpreter with the "
    "door's own flags. Door and shutdown: what is left of the same path's time without the stopwatch."
)

# Flags go to the interpreter, as the door would have given them; the rest is what the door has run.
_WRAPPER = """#!/bin/sh
flags=
while :; do
    case $1 in
    -c) break ;;
    -X | -W) flags="$flags $1 $2"; shift 2 ;;
    -*) flags="$flags $1"; shift ;;
    *) break ;;
    esac
done
exec {python} $flags {stopwatch} {what} {record} "$@"
"""


def stopwatched(kit: Kit, what: str, record: Path) -> Hook | None:
    """Our door with the stopwatch in the interpreter's place; None where the door names none."""
    door = (kit.installed.tree / kit.ours.program.lstrip("/")).read_bytes()
    if kit.python.encode() not in door or door.startswith(b"\x7fELF"):
        return None
    interpreter = kit.scratch / f"{what}-python"
    stopwatch = HERE / "stopwatch.py"
    wrapper = _WRAPPER.format(python=kit.python, stopwatch=stopwatch, what=what, record=record)
    interpreter.write_text(wrapper)
    interpreter.chmod(0o755)
    changed = kit.scratch / f"{what}-door"
    changed.write_bytes(door.replace(kit.python.encode(), os.fsencode(interpreter)))
    changed.chmod(0o755)
    return Hook(str(changed), kit.ours.words)


def play(kit: Kit, rounds: int) -> dict[str, Any]:
    """Plain and stopwatched starts of each path, in random order in each round."""
    record = kit.scratch / "phases"
    door = stopwatched(kit, "time", record)
    if door is None:
        say("bench: the door names no interpreter: no phases")
        return {}
    scenes = {key: Scene(kit, by_key(key), f"plain-{key}") for key in (*PATHS, "left")}
    watched = {key: Scene(kit, by_key(key), f"watched-{key}", door) for key in PATHS}
    plain: dict[str, list[float]] = {key: [] for key in scenes}
    spent: dict[str, list[dict[str, float]]] = {key: [] for key in PATHS}
    state = Node()
    jobs = [(key, False) for key in scenes] + [(key, True) for key in watched]
    for number in range(rounds + 1):
        for key, watch in random.sample(jobs, len(jobs)):
            record.unlink(missing_ok=True)
            state.make(by_key(key).saved)
            sample = _succeed(key, start(watched[key] if watch else scenes[key]))
            if number and watch:
                spent[key].append(read(record))
            elif number:
                plain[key].append(sample.hook)
        if number % max(1, rounds // 5) == 0:
            say(f"bench: phases, round {number} of {rounds}")
    for scene in (*scenes.values(), *watched.values()):
        scene.remove()
    return assemble(plain, spent)


def _succeed(key: str, sample: Sample) -> Sample:
    if sample.said:
        raise RuntimeError(f"{by_key(key).title}, for its phases: {sample.said}")
    return sample


def read(record: Path) -> dict[str, float]:
    """What the stopwatch wrote, in millions; nothing where the door answered without Python."""
    if not record.exists():
        return {}
    found: dict[str, float] = {}
    for line in record.read_text().partition("end 0\n")[0].splitlines():
        name, value = line.rsplit(" ", 1)
        found[name] = found.get(name, 0.0) + int(value) / 1e6
    return found


def assemble(
    plain: dict[str, list[float]], spent: dict[str, list[dict[str, float]]]
) -> dict[str, Any]:
    """The medians of each path's phases.  Pure."""
    bare = figures.median(plain["left"])
    paths = {}
    for key, runs in spent.items():
        whole = figures.median(plain[key])
        started = any(runs)
        names = {IMPORTS: IMPORTS, WORK: REST, **{name: name for name in PHASES.values()}}
        taken = {
            name: figures.median([run.get(source, 0.0) for run in runs])
            for name, source in names.items()
        }
        taken[INTERPRETER] = bare if started else 0.0
        taken[DOOR] = max(0.0, whole - sum(taken.values()))
        paths[key] = {
            "title": by_key(key).title,
            "whole": round(whole, 4),
            "stopwatch": round(figures.median([run.get("stopwatch", 0.0) for run in runs]), 4),
            "phases": {name: round(taken[name], 4) for name in NAMES},
        }
    return {"how": HOW, "bare": round(bare, 4), "paths": paths}
