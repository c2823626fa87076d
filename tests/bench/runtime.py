# SPDX-License-Identifier: Apache-2.0
"""What oci-gpu-runtime adds to a call of the runtime behind it, which is /bin/true here; and plain runc beside it.

Must not: calculate; what was measured is given as it was.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.bench.rounds import Sample
from tests.bench.stage import ENVIRONMENT, Kit, Scene, hook_of
from tests.bench.variants import BARE, by_key

PROGRAM = "/usr/bin/oci-gpu-runtime"
TRUE = "/bin/true"
SETTINGS = "/etc/oci-gpu-hook.conf"


def play(kit: Kit, rounds: int) -> dict[str, list[Sample]]:
    """Each call so many times, by turns."""
    Path(SETTINGS).write_text(f"runtime = {TRUE}\n")
    none, gpu = [Scene(kit, by_key(key), f"runtime-{key}") for key in ("none", "gpu-1")]
    for scene in (none, gpu):
        # A hook of ours is to be added first.
        scene.bundle.config.pop("hooks")
        scene.bundle.write()
    # Where Docker and containerd have theirs.
    asks = (gpu.path / "config.json").read_bytes()
    bundle = Path("/run/moby")
    bundle.mkdir()
    config = bundle / "config.json"
    bare = hook_of(kit, BARE)
    assert bare is not None
    calls = {
        "true": [TRUE],
        "bare": [bare.program, *bare.words[1:]],
        "runc": ["/usr/sbin/runc", "state", "none"],
        "state": [PROGRAM, "state", "none"],
        "create": [PROGRAM, "create", "--bundle", str(none.path), "none"],
        "create-gpu": [PROGRAM, "create", "--bundle", str(bundle), "none"],
    }
    samples: dict[str, list[Sample]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, words in calls.items():
            config.write_bytes(asks)
            sample = _call(words, fails=name == "runc")
            if number:
                samples[name].append(sample)
    for scene in (none, gpu):
        scene.remove()
    return samples


def _call(words: list[str], *, fails: bool) -> Sample:
    null = [(os.POSIX_SPAWN_OPEN, fd, "/dev/null", os.O_RDWR, 0) for fd in (0, 1, 2)]
    begun = time.perf_counter_ns()
    child = os.posix_spawn(words[0], words, ENVIRONMENT, file_actions=null)
    _, status = os.waitpid(child, 0)
    taken = (time.perf_counter_ns() - begun) / 1e6
    said = "" if (status != 0) == fails else f"ended with {os.waitstatus_to_exitcode(status)}"
    return Sample(taken, 0.0, 0.0, 0, False, said)
