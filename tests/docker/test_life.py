# SPDX-License-Identifier: Apache-2.0
"""A container's life behind oci-gpu-runtime: its GPUs stay its own, and the runtime is called until the end.

With runc and with crun, on cgroup v1, whose controllers Docker can set here.  The daemon has live-restore, so that
containers outlive it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docker.dockerd import LINK, denied, docker, look, nodes, opened, run, tried
from tests.integration.engines import Installed

ASKS = "--env NVIDIA_VISIBLE_DEVICES=1,5"
BY_GPUS = """--gpus '"device=1,5"'"""
GIVEN = [1, 5]
START = f"docker run --detach --network none --name kept {ASKS} image /bin/sleep 100000 >/dev/null"
# Its hook is added without Python, to what dockerd writes.
ALONE = "sed -i s,/usr/bin/python3,/bin/false, /usr/bin/oci-gpu-runtime"
# With crun dockerd sends a limit of 0 for the memory that was not named, which the kernel refuses: with ours or not.
UPDATE = "--cpus 1.5 --memory 1g --memory-swap 2g"
FIXED = {"default-runtime": "oci-gpu-runtime", "live-restore": True}


def has_its_own(lines: list[str]) -> None:
    """Its own GPUs can be opened, and no others of the host's."""
    assert opened(lines) == nodes(GIVEN) | tried(GIVEN), lines
    assert len(denied(lines)) == 6, lines
    assert lines[-1] == "cuInit 0, 2 devices"


def scripts(tree: Path, runtime: str) -> dict[str, str]:
    """One container from its start to its end, as `kept`, and what is tried on it, in turn."""
    return {
        "start": f"{START}\n{look('kept')}",
        "update": f"docker update {UPDATE} kept >/dev/null\n{look('kept')}",
        "cpus": "docker exec kept cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us",
        "pause": f"docker pause kept >/dev/null && docker unpause kept >/dev/null\n{look('kept')}",
        "restart": f"docker restart -t 0 kept >/dev/null\n{look('kept')}",
        "daemon": f"""
# The kernel ends its containerd with it: a new daemon that still sees that one waits for it in vain.
old=$(cat /run/docker/containerd/containerd.pid)
kill -KILL $(cat /run/docker.pid)
wait_for "! docker version && ! kill -0 $old"
start_dockerd
docker inspect --format '{{{{.RestartCount}}}} {{{{.State.Status}}}}' kept
{look("kept")}
""",
        # As a package's upgrade does: each file is renamed over the old one, which is gone.
        "upgrade": f"""
cp -a --remove-destination {tree}/usr/. /usr/
{look("kept")}
""",
        "stop": "docker stop -t 0 kept && docker start kept\n" + look("kept"),
        "gpus": run(f"--runtime simulated-{runtime} {BY_GPUS}"),
        "alone": f"{ALONE}\n" + run(f"--network bridge {ASKS}").replace("--network none ", ""),
        "end": "docker rm --force kept; docker ps --all --quiet; pgrep sleep || echo nobody",
    }


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_from_start_to_end(installed: Installed, patterns: dict[str, Path], runtime: str) -> None:
    seen = docker(
        patterns["debian"],
        scripts(installed.tree, runtime),
        FIXED,
        settings=f"runtime = /usr/bin/simulated-{runtime}\n",
        cgroup="v1",
    )
    for name in ("start", "update", "pause", "restart", "upgrade", "gpus", "alone"):
        has_its_own(seen[name])
    assert seen["cpus"] == ["150000"]
    assert seen["daemon"][0] == "0 running"
    has_its_own(seen["daemon"][1:])
    assert seen["stop"][:2] == ["kept", "kept"]
    has_its_own(seen["stop"][2:])
    assert seen["end"] == ["kept", "nobody"]


def test_with_userns_remap(patterns: dict[str, Path]) -> None:
    """The container's root is nobody here; its nodes are bound from the host."""
    before = """
echo 'remapped:x:64124:64124::/:/bin/false' >>/etc/passwd
echo 'remapped:x:64124:' >>/etc/group
echo 'remapped:100000:65536' >/etc/subuid && cp /etc/subuid /etc/subgid
"""
    scripts = {
        "gpus": run(f"--runtime simulated-runc {BY_GPUS}"),
        "env": run(ASKS),
        "device": run(f"--device /dev/fuse {ASKS}"),
        "silent": run("--device /dev/fuse"),
        "map": run("", "cat /proc/self/uid_map"),
        "exec": f"{START}\n{look('kept')}\ndocker rm --force kept",
    }
    seen = docker(
        patterns["debian"],
        scripts,
        {"default-runtime": "oci-gpu-runtime", "userns-remap": "remapped"},
        before=LINK + before,
    )
    for name in ("gpus", "env", "device", "exec"):
        assert opened(seen[name]) == nodes(GIVEN), seen[name]
        assert "cuInit 0, 2 devices" in seen[name]
    assert seen["silent"] == []
    assert seen["map"][0].split() == ["0", "100000", "65536"]
