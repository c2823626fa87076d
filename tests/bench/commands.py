# SPDX-License-Identifier: Apache-2.0
"""How long a person waits for the command line, on a node whose inventory is saved.

Must not: calculate; what was measured is given as it was.
"""

from __future__ import annotations

import subprocess
import time

from tests.bench.rounds import Node, Sample
from tests.bench.stage import COMMAND, ENTRY, ENVIRONMENT, Kit, Scene
from tests.bench.variants import WARM, by_key


def play(kit: Kit, rounds: int) -> dict[str, list[Sample]]:
    """Each command so many times, by turns."""
    Node().make(WARM)
    scene = Scene(kit, by_key("gpu-1"), "commands")
    scene.lay()
    cli = kit.scratch / "nvidia-container-cli"
    cli.symlink_to(ENTRY)
    configure = f"{cli} --user configure --no-cgroups --device=0 --compute --utility {scene.path}/rootfs"
    commands = {
        "info": [COMMAND, "info"],
        "plan": [COMMAND, "plan", "--bundle", str(scene.path)],
        # As enroot and LXC call it, in a mount namespace of theirs; and that alone.
        "unshare true": ["unshare", "--mount", "true"],
        "unshare nvidia-container-cli configure": ["unshare", "--mount", *configure.split()],
    }
    samples: dict[str, list[Sample]] = {name: [] for name in commands}
    try:
        for number in range(rounds + 1):
            for name, words in commands.items():
                sample = _run(words)
                if number:
                    samples[name].append(sample)
    finally:
        scene.clear()
        scene.remove()
    return samples


def _run(words: list[str]) -> Sample:
    begun = time.perf_counter_ns()
    done = subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT)
    taken = (time.perf_counter_ns() - begun) / 1e6
    lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
    return Sample(taken, 0.0, 0.0, 0, False, lines[-1] if done.returncode else "")
