# SPDX-License-Identifier: Apache-2.0
"""Instructions that a path takes in user space, held against what was recorded: no machine's speed comes into it.

    python3 -m tests.bench.instructions [--record] [--python PYTHON] [--tool perf|valgrind]

perf counts the real thing; valgrind, where the machine has no counter, with a stand-in for the kernel's mount calls.
What would differ from run to run is fixed: the hash seed and the addresses.  Must not: measure time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from tests.bench import phases, stage
from tests.bench.figures import median
from tests.bench.rounds import Node, say, start
from tests.bench.stage import Hook, Kit, Scene
from tests.bench.variants import WARM, by_key
from tests.gpunode import node

RECORDED = stage.HERE / "instructions.json"
PATHS = ("no-request", "gpu-1", "all")
TOLERANCE = 0.10
_SHOWN = 8
_RUNS = {"perf": 5, "valgrind": 1}


def main() -> int:
    """Count, then record or compare."""
    options = _options()
    if os.geteuid() != 0:
        print("bench: needs root, for containers and the simulated node", file=sys.stderr)
        return 1
    tool = options.tool or ("perf" if perf_counts() else "valgrind")
    with tempfile.TemporaryDirectory(prefix="oci-gpu-hook-bench-") as scratch:
        kit = stage.make_kit(Path(scratch), options.python, [])
        counted = stage.on_node(
            kit, node.prepare(stage.DESCRIPTION, []), "v2", partial(count, kit, tool)
        )
    key = f"Python {python_version(options.python)}, {platform.machine()}, {tool}"
    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    if options.record:
        recorded[key] = counted
        RECORDED.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")
        say(f"bench: recorded for {key}")
        return 0
    if key not in recorded:
        say(f"bench: nothing is recorded for {key}: --record does it")
        return 1
    lines, failed = compare(recorded[key], counted)
    print(f"{key}\n" + "\n".join(lines))
    return int(failed)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench-instructions", description="Count instructions.")
    parser.add_argument("--record", action="store_true", help="write the counts anew, for review")
    parser.add_argument("--python", default="/usr/bin/python3", help="for which ours is installed")
    parser.add_argument(
        "--tool", choices=tuple(_RUNS), help="perf where it can count, else valgrind"
    )
    return parser.parse_args()


def python_version(python: str) -> str:
    """Major and minor, on which all counts depend."""
    program = "import sys; print('%d.%d' % sys.version_info[:2])"
    command = [python, "-IS", "-c", program]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def perf_counts() -> bool:
    """Whether there is perf, and a counter that it can read."""
    if not shutil.which("perf"):
        return False
    command = ["perf", "stat", "-x,", "-e", "instructions:u", "true"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode == 0 and any(perf_lines(done.stderr))


def perf_lines(text: str) -> list[int]:
    """The counts in what `perf stat -x,` wrote: one, or one for each kind of core.  Pure."""
    return [
        int(found) for found in re.findall(r"^(\d+),[^,]*,[^,]*instructions", text, re.MULTILINE)
    ]


def callgrind_total(text: str) -> int:
    """The count in one file of callgrind's.  Pure."""
    found = re.search(r"^(?:totals|summary): (\d+)", text, re.MULTILINE)
    return int(found[1]) if found else 0


def count(kit: Kit, tool: str) -> dict[str, Any]:
    """Each path's instructions, and how many lines of each Python function it runs."""
    door = seeded(kit)
    record = kit.scratch / "lines"
    traced = phases.stopwatched(kit, "lines", record)
    state = Node()
    found: dict[str, Any] = {}
    for key in PATHS:
        say(f"bench: counting instructions, {by_key(key).title}")
        state.make(WARM)
        totals = [_count(kit, tool, key, door) for _ in range(_RUNS[tool] + 1)][1:]
        lines: dict[str, float] = {}
        if traced:
            record.unlink(missing_ok=True)
            _start(Scene(kit, by_key(key), f"lines-{key}", traced))
            lines = phases.read(record)
        found[key] = {
            "instructions": int(median(totals)),
            "lines": {name: round(value * 1e6) for name, value in sorted(lines.items())},
        }
    return found


def seeded(kit: Kit) -> Hook:
    """Our door, but that its interpreter has a fixed hash seed."""
    changed = kit.scratch / "seeded-door"
    changed.write_bytes(with_seed(phases.door_of(kit)))
    changed.chmod(0o755)
    return Hook(str(changed), kit.ours.words)


def with_seed(door: bytes) -> bytes:
    """A door that gives its interpreter PYTHONHASHSEED, of which none from outside would reach it.  Pure."""
    changed = door.replace(b" PYTHONUTF8=1", b" PYTHONHASHSEED=0 PYTHONUTF8=1")
    if changed == door:
        raise ValueError(
            "the door does not set PYTHONUTF8 any more: with_seed must find another place"
        )
    return changed


def _count(kit: Kit, tool: str, key: str, door: Hook) -> int:
    out = kit.scratch / "counted"
    out.mkdir()
    commands = {"perf": _under_perf, "valgrind": _under_valgrind}
    words = ["env", "setarch", "-R", *commands[tool](kit, out)]
    # env finds the others by the hook's own PATH.
    hook = Hook("/usr/bin/env", [*words, door.program, *door.words[1:]])
    _start(Scene(kit, by_key(key), f"{tool}-{key}", hook))
    texts = [path.read_text(errors="replace") for path in out.iterdir()]
    shutil.rmtree(out)
    total = sum(callgrind_total(text) + sum(perf_lines(text)) for text in texts)
    if not total:
        raise RuntimeError(f"{tool} counted nothing: {texts}")
    return total


def _under_perf(kit: Kit, out: Path) -> list[str]:
    return ["perf", "stat", "-x,", "-e", "instructions:u", "-o", f"{out}/perf"]


def _under_valgrind(kit: Kit, out: Path) -> list[str]:
    kernel = kit.scratch / "kernel.so"
    if not kernel.exists():
        source = str(stage.HERE / "kernel.c")
        stage.quiet("cc", "-O2", "-Wall", "-shared", "-fPIC", "-o", str(kernel), source, "-ldl")
    mounts = kit.scratch / "mounts"
    mounts.mkdir(exist_ok=True)
    preload = ["env", f"LD_PRELOAD={kernel}", f"BENCH_MOUNTS={mounts}"]
    quiet = ["-q", f"--log-file={kit.scratch}/valgrind.log", "--trace-children=yes"]
    return [*preload, "valgrind", "--tool=callgrind", *quiet, f"--callgrind-out-file={out}/%p"]


def _start(scene: Scene) -> None:
    sample = start(scene)
    scene.remove()
    if sample.said:
        raise RuntimeError(f"{scene.name}: {sample.said}")


def compare(recorded: dict[str, Any], counted: dict[str, Any]) -> tuple[list[str], bool]:
    """A sentence for each path, those that grew too much with what grew in them.  Pure."""
    lines = []
    failed = False
    for path, now in counted.items():
        before = recorded.get(path)
        if before is None:
            lines.append(f"{path}: not recorded")
            failed = True
            continue
        change = now["instructions"] / before["instructions"] - 1
        numbers = f"{now['instructions']:,} instructions, recorded {before['instructions']:,}"
        lines.append(f"{path}: {numbers}, {change:+.2%}")
        if now["instructions"] > before["instructions"] * (1 + TOLERANCE):
            failed = True
            lines[-1] += f": more than {TOLERANCE:.0%}"
            lines += grown(before["lines"], now["lines"])
        elif change < -TOLERANCE:
            lines[-1] += ": record it anew, so that it stays so"
    return lines, failed


def grown(before: dict[str, int], now: dict[str, int]) -> list[str]:
    """The Python functions of which more lines are run than before, most first.  Pure."""
    more = {name: now[name] - before.get(name, 0) for name in now}
    most = sorted(more, key=lambda name: (-more[name], name))[:_SHOWN]
    found = [
        f"    {name}: {more[name]:+} lines run, was {before.get(name, 0)}"
        for name in most
        if more[name] > 0
    ]
    return found or [
        "    no Python function runs more lines: the interpreter or the door takes more"
    ]


if __name__ == "__main__":
    sys.exit(main())
