# SPDX-License-Identifier: Apache-2.0
"""`make bench`: measure the installed hook on the simulated node, and write what came out to a folder.

    python3 -m tests.bench [--rounds N] [--output DIR] [--compare FILE] ...

Must not: leave anything behind but that folder, or fail because something is slow.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, Callable

from tests.bench import commands, figures, growth, rounds, stage, tables
from tests.bench.variants import VARIANTS, by_key
from tests.gpunode import node


def main() -> int:
    """Measure the parts that were asked for, in this order, and write them."""
    options = _options()
    if os.geteuid() != 0:
        print("bench: needs root, for containers and the simulated node", file=sys.stderr)
        return 1
    before = json.loads(options.compare.read_text()) if options.compare else None
    begun = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="oci-gpu-hook-bench-") as scratch:
        kit = stage.make_kit(Path(scratch), options.python)
        bench: dict[str, Any] = {
            "date": time.strftime("%Y-%m-%d"),
            "machine": _machine(options),
            "rounds": options.rounds,
        }
        failed = [part for part in options.only or MEASURED if not _measure(part, kit, options, bench)]
    text = tables.document(bench, before)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "table.md").write_text(text)
    (options.output / "bench.json").write_text(json.dumps(bench, indent=1) + "\n")
    print(text)
    rounds.say(f"bench: {time.monotonic() - begun:.0f} s; written to {options.output}")
    return 1 if failed else 0


def _measure(part: str, kit: stage.Kit, options: argparse.Namespace, bench: dict[str, Any]) -> bool:
    """One part; where it cannot be done the others still are."""
    try:
        bench["variants" if part == "rounds" else part] = MEASURED[part](kit, options)
    except RuntimeError as err:
        rounds.say(f"bench: {part} could not be measured: {err}")
        return False
    return True


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description="Measure the hook.")
    parser.add_argument("--rounds", type=int, default=40, help="how often each variant is started")
    parser.add_argument("--output", type=Path, default=Path(".build/bench"), metavar="DIR")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="an earlier bench.json")
    parser.add_argument("--python", default="/usr/bin/python3", help="for which ours is installed")
    parser.add_argument("--cgroup", default="v2", choices=("v1", "v2", "host"))
    parser.add_argument("--load", type=int, default=500, help="container starts of the load")
    parser.add_argument("--at-once", type=int, default=8, help="how many of them at a time")
    parser.add_argument("--only", action="append", choices=MEASURED, help="one part, repeatable")
    options = parser.parse_args()
    options.output = options.output.resolve()
    return options


def _machine(options: argparse.Namespace) -> dict[str, str]:
    version = subprocess.run(["runc", "--version"], capture_output=True, text=True, check=True).stdout
    python = subprocess.run([options.python, "-IS", "--version"], capture_output=True, text=True, check=True).stdout
    return {
        "kernel": f"Linux {platform.release()} {platform.machine()}",
        "processors": f"{os.cpu_count()} processors",
        "python": python.strip(),
        "runtime": version.splitlines()[0],
        "cgroup": f"cgroup {options.cgroup}",
    }


def _on_node(kit: stage.Kit, options: argparse.Namespace, work: Callable[[], Any]) -> Any:
    return stage.on_node(kit, node.prepare(stage.DESCRIPTION, []), options.cgroup, work)


def _rounds(kit: stage.Kit, options: argparse.Namespace) -> dict[str, Any]:
    return figures.rows(VARIANTS, _on_node(kit, options, lambda: rounds.play(kit, VARIANTS, options.rounds)))


def _commands(kit: stage.Kit, options: argparse.Namespace) -> dict[str, Any]:
    samples = _on_node(kit, options, partial(commands.play, kit, max(1, options.rounds // 4)))
    return {name: figures.load(taken) for name, taken in samples.items()}


def _load(kit: stage.Kit, options: argparse.Namespace) -> dict[str, Any]:
    samples = _on_node(kit, options, partial(rounds.play_load, kit, options.load, options.at_once))
    hooks = {key: {"title": by_key(key).title, **figures.load(samples[key])} for key in rounds.LOADED}
    return {"at_once": options.at_once, "hooks": hooks}


# In the order in which they are measured.
MEASURED: dict[str, Callable[[stage.Kit, argparse.Namespace], dict[str, Any]]] = {
    "rounds": _rounds,
    "growth": lambda kit, options: growth.play(kit, options.cgroup, max(1, options.rounds // 5)),
    "load": _load,
    "commands": _commands,
    "runtime": lambda kit, options: figures.runtime(
        _on_node(kit, options, partial(commands.play_runtime, kit, options.rounds))
    ),
}

if __name__ == "__main__":
    sys.exit(main())
