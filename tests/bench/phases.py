# SPDX-License-Identifier: Apache-2.0
"""Where a start's time goes: the same starts, once as they are and once with the stopwatch in the interpreter.

The door is left as it is but for the interpreter's path, which leads to the stopwatch.  The time before the first
line of Python is that of an interpreter which is started as the door starts it and left by _exit; what neither knows is
the door's and the shutdown's.
Must not: show the stopwatched start's whole time, for it is longer.
"""

from __future__ import annotations

import os
import random
import re
from pathlib import Path
from typing import Any

from tests.bench import figures
from tests.bench.rounds import Node, Sample, say, start
from tests.bench.stage import HERE, LEAVE, Hook, Kit, Scene
from tests.bench.stopwatch import IMPORTS, PHASES, REST
from tests.bench.variants import Variant, by_key

PATHS = ("no-request", "gpu-1", "large", "gpu-8", "all", "cold")
BEGUN = "begun"  # the interpreter's start as the door has it; "left" is a bare one's
INTERPRETER, WORK, DOOR = "interpreter", "hook and errors", "door and shutdown"
NAMES = (INTERPRETER, IMPORTS, *dict.fromkeys(PHASES.values()), WORK, DOOR)
HOW = (
    "Medians, under runc. Interpreter: its start with the door's own flags and environment, and so with our stand-in "
    "for `encodings`, left by `_exit` at once; the dashed line is a bare one's, `python3 -IS`. Imports to hook: by a "
    "stopwatch that wraps the import statement and the rooms' functions from outside, in an interpreter started so. "
    "Door and shutdown: what is left of the same path's time without the stopwatch."
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


def door_of(kit: Kit) -> bytes:
    """The installed door."""
    return (kit.installed.tree / kit.ours.program.lstrip("/")).read_bytes()


def stopwatched(kit: Kit, what: str, record: Path) -> Hook | None:
    """Our door with the stopwatch in the interpreter's place; None where the door names none."""
    door = door_of(kit)
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


def left_at_once(door: str, python: str) -> Hook:
    """The interpreter as the door starts it, but that it leaves before any line of ours.  Pure."""
    environment = re.findall(r"\bPYTHON\w+=\S+", door)
    flags = re.search(rf"exec {re.escape(python)} (.*) -c '", door)
    if not (environment and flags):
        raise ValueError(
            "the door does not start Python as it did: left_at_once must learn how it does"
        )
    words = ["python3", *flags[1].split(), "-c", LEAVE]
    return Hook(python, words, tuple(environment))


def play(kit: Kit, rounds: int) -> dict[str, Any]:
    """Plain and stopwatched starts of each path, in random order in each round."""
    record = kit.scratch / "phases"
    door = stopwatched(kit, "time", record)
    if door is None:
        say("bench: the door names no interpreter: no phases")
        return {}
    begun = left_at_once(door_of(kit).decode(), kit.python)
    scenes = {key: Scene(kit, by_key(key), f"plain-{key}") for key in (*PATHS, "left")}
    scenes[BEGUN] = Scene(kit, by_key("left"), "plain-begun", begun)
    watched = {key: Scene(kit, by_key(key), f"watched-{key}", door) for key in PATHS}
    plain: dict[str, list[float]] = {key: [] for key in scenes}
    spent: dict[str, list[dict[str, float]]] = {key: [] for key in PATHS}
    state = Node()
    jobs = [(key, False) for key in scenes] + [(key, True) for key in watched]
    for number in range(rounds + 1):
        for key, watch in random.sample(jobs, len(jobs)):
            record.unlink(missing_ok=True)
            state.make(row_of(key).saved)
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


def row_of(key: str) -> Variant:
    """The row that a scene's container and inventory are those of."""
    return by_key("left" if key == BEGUN else key)


def _succeed(key: str, sample: Sample) -> Sample:
    if sample.said:
        raise RuntimeError(f"{row_of(key).title}, for its phases: {sample.said}")
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
    begun, bare = figures.median(plain[BEGUN]), figures.median(plain["left"])
    paths = {}
    for key, runs in spent.items():
        whole = figures.median(plain[key])
        started = any(runs)
        names = {IMPORTS: IMPORTS, WORK: REST, **{name: name for name in PHASES.values()}}
        taken = {
            name: figures.median([run.get(source, 0.0) for run in runs])
            for name, source in names.items()
        }
        taken[INTERPRETER] = begun if started else 0.0
        taken[DOOR] = max(0.0, whole - sum(taken.values()))
        paths[key] = {
            "title": by_key(key).title,
            "whole": round(whole, 4),
            "stopwatch": round(figures.median([run.get("stopwatch", 0.0) for run in runs]), 4),
            "phases": {name: round(taken[name], 4) for name in NAMES},
        }
    return {"how": HOW, "bare": round(bare, 4), "paths": paths}
