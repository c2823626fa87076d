# SPDX-License-Identifier: Apache-2.0
"""What is called without a container's start: people's commands, and what oci-gpu-runtime adds to a call of a runtime.

The runtime behind it is /bin/true here; plain runc is beside it.  The node's inventory is saved.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.bench.rounds import SETTINGS, Node, Sample, timed
from tests.bench.stage import COMMAND, ENTRY, Kit, Scene
from tests.bench.variants import BARE, WARM, by_key

PROGRAM = "/usr/bin/oci-gpu-runtime"
TRUE = "/bin/true"
RUNC = "plain `runc state`"


def play(kit: Kit, rounds: int) -> dict[str, list[Sample]]:
    """Each command for people so many times, by turns."""
    Node().make(WARM)
    scene = Scene(kit, by_key("gpu-1"), "commands")
    scene.lay()
    cli = kit.scratch / "nvidia-container-cli"
    cli.symlink_to(ENTRY)
    configure = f"{cli} --user configure --no-cgroups --device=0 --compute --utility {scene.path}/rootfs"
    calls = {
        "info": [COMMAND, "info"],
        "plan": [COMMAND, "plan", "--bundle", str(scene.path)],
        # As enroot and LXC call it, in a mount namespace of theirs; and that alone.
        "unshare true": ["unshare", "--mount", "true"],
        "unshare nvidia-container-cli configure": ["unshare", "--mount", *configure.split()],
    }
    try:
        return _by_turns(calls, rounds)
    finally:
        scene.clear()
        scene.remove()


def play_runtime(kit: Kit, rounds: int) -> dict[str, list[Sample]]:
    """Each call of a runtime so many times, by turns."""
    SETTINGS.write_text(f"runtime = {TRUE}\n")
    none, gpu = [Scene(kit, by_key(key), f"runtime-{key}") for key in ("none", "gpu-1")]
    for scene in (none, gpu):
        # A hook of ours is to be added first.
        scene.bundle.config.pop("hooks")
        scene.bundle.write()
    # Where Docker and containerd have theirs.
    bundle = Path("/run/moby")
    bundle.mkdir()
    bare = kit.hooks[BARE]
    calls = {
        "/bin/true alone": [TRUE],
        "`python3 -IS -c pass` (P)": [bare.program, *bare.words[1:]],
        RUNC: ["runc", "state", "none"],
        "`state`": [PROGRAM, "state", "none"],
        "`create`, no GPU": [PROGRAM, "create", "--bundle", str(none.path), "none"],
        "`create`, 1 GPU": [PROGRAM, "create", "--bundle", str(bundle), "none"],
    }
    samples = _by_turns(calls, rounds, (gpu.path / "config.json", bundle / "config.json"))
    for scene in (none, gpu):
        scene.remove()
    return samples


def _by_turns(calls: dict[str, list[str]], rounds: int, *copied: tuple[Path, Path]) -> dict[str, list[Sample]]:
    """copied: what is written anew for each call, and to where.  The first round only warms what is cold."""
    samples: dict[str, list[Sample]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, words in calls.items():
            for source, target in copied:
                shutil.copy(source, target)
            taken, code = timed(words)
            # It knows no container.
            said = "" if (code != 0) == (name == RUNC) else f"ended with {code}"
            if number:
                samples[name].append(Sample(taken, 0.0, 0.0, 0, False, said))
    return samples
