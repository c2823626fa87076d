# SPDX-License-Identifier: Apache-2.0
"""Docker and its containerd, as the distribution has them, on a node of their own: GPUs by --gpus and by environment.

``--gpus`` needs one link; the environment a runtime that adds hooks (hooked_runtime.py).  systemd is the node's PID 1,
so that every daemon, container and cgroup goes with it.
"""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from tests.integration.conftest import Maker
from tests.integration.engines import REPOSITORY, Installed, in_turn
from tests.integration.inside import ALLOWED, COMPUTE, DENIED, node

pytestmark = pytest.mark.skipif(
    shutil.which("dockerd", path="/usr/sbin:/usr/bin") is None, reason="RHEL has no Docker"
)
RUNTIME = REPOSITORY / "tests/integration/hooked_runtime.py"
NAMES = ("hooked-runc", "hooked-crun", "simulated-runc")
# The one link is there before the daemon, which looks for it once.  /var is the machine's, and so no data lies there.
DAEMON = """
ln -s /usr/libexec/oci/hooks.d/oci-gpu-hook /usr/bin/nvidia-container-runtime-hook
for name in {names}; do install -m 755 {runtime} /usr/bin/$name; done
echo 'remapped:x:64124:64124::/:/bin/false' >>/etc/passwd
echo 'remapped:x:64124:' >>/etc/group
echo 'remapped:100000:65536' >/etc/subuid && cp /etc/subuid /etc/subgid
mkdir -p /run/docker /run/data && mount -t tmpfs none /run/data
echo '{{}}' >/run/docker.json
export DOCKER_HOST=unix:///run/docker.sock
dockerd --config-file /run/docker.json --data-root /run/data --exec-root /run/docker --pidfile /run/docker.pid \\
    --host $DOCKER_HOST --iptables=false --bridge=none {options} >/run/docker.log 2>&1 &
for try in $(seq 200); do docker version >/dev/null 2>&1 && break; sleep 0.05; done
tar -C {image} -c . | docker import - image >/dev/null || {{ cat /run/docker.log >&2; exit 1; }}
"""
# Each node of the container's, and each of the host's GPUs by a node of its own making, where it may make one.
LOOK = """
for n in 0 1 2 3 4 5 6 7; do mknod /dev/tried$n c 195 $n 2>/dev/null; done
for path in $(find /dev/nvidia* /dev/tried* 2>/dev/null); do echo $path $({ true <$path; } 2>&1); done
test ! -e /dev/nvidiactl || /app/cuda
"""
GIVEN = {*COMPUTE, node(1), node(5)}
ASKS = "--env NVIDIA_VISIBLE_DEVICES=1,5"
BY_GPUS = """--runtime simulated-runc --gpus '"device=1,5"'"""
UNKNOWN = (
    "oci-gpu-hook: unknown device '77': this host has indices 0 to 7 "
    "(the container's author must ask for one that exists; 'oci-gpu-hook info' lists them)"
)
DOCKER_SAYS = (
    "docker: Error response from daemon: failed to create shim task: OCI runtime create failed: "
    "runc create failed: unable to start container process: error during container init: "
    "error running hook #{}: error running hook: exit status 5, stdout: , stderr: "
)


def opened(lines: list[str]) -> set[str]:
    """The nodes that could be opened, of those that were tried."""
    return {line.split()[0] for line in lines if line.endswith(ALLOWED)}


def tried(paths: set[str]) -> set[str]:
    """A container's own nodes for these GPUs."""
    return {path.replace("nvidia", "tried") for path in paths}


def docker(
    installed: Installed, image: Path, scripts: dict[str, str], options: str = "", **how: str
) -> dict[str, list[str]]:
    """What each of some shell lines prints that are run where a Docker daemon is."""
    runtimes = "".join(f" --add-runtime {name}=/usr/bin/{name}" for name in NAMES)
    daemon = DAEMON.format(
        names=" ".join(NAMES), runtime=RUNTIME, image=image, options=options + runtimes
    )
    return in_turn(installed, scripts, daemon, booted=True, **how)


def run(options: str) -> str:
    """The shell line that starts a container of Docker's; what goes wrong is printed, too."""
    return f"docker run --rm --network none {options} image /bin/sh -c {shlex.quote(LOOK)} 2>&1 || echo failed"


@pytest.mark.parametrize("cgroup", ["v1", "v2"])
def test_a_container_has_what_it_asked_for(
    installed: Installed, patterns: dict[str, Path], cgroup: str
) -> None:
    scripts = {
        "gpus": run(BY_GPUS),
        "env": run(f"--runtime hooked-runc {ASKS}"),
        "silent": run("--runtime hooked-runc"),
        "unknown": run("--runtime hooked-runc --env NVIDIA_VISIBLE_DEVICES=77"),
        "unknown by gpus": run("--runtime simulated-runc --gpus device=77"),
    }
    seen = docker(installed, patterns["debian"], scripts, cgroup=cgroup)
    for name in ("gpus", "env"):
        assert opened(seen[name]) == GIVEN | tried({node(1), node(5)}), seen[name]
        assert sum(line.endswith(DENIED) for line in seen[name]) == 6
        assert seen[name][-1] == "cuInit 0, 2 devices"
    assert len(seen["silent"]) == 8 and opened(seen["silent"]) == set(), seen["silent"]
    for name, hook in (("unknown", 0), ("unknown by gpus", 1)):
        assert seen[name][0] == f"{DOCKER_SAYS.format(hook)}{UNKNOWN}: unknown."
        assert seen[name][-1] == "failed"


def test_with_userns_remap(installed: Installed, patterns: dict[str, Path]) -> None:
    """The container's root is nobody here; its nodes are bound from the host."""
    scripts = {
        "gpus": run(BY_GPUS),
        "env": run(f"--runtime hooked-runc {ASKS}"),
        "device": run(f"--runtime hooked-runc --device /dev/fuse {ASKS}"),
        "silent": run("--runtime hooked-runc --device /dev/fuse"),
        "map": "docker run --rm --network none image /bin/cat /proc/self/uid_map",
    }
    seen = docker(installed, patterns["debian"], scripts, "--userns-remap remapped")
    for name in ("gpus", "env", "device"):
        assert opened(seen[name]) == GIVEN, seen[name]
        assert seen[name][-1] == "cuInit 0, 2 devices"
    assert seen["silent"] == []
    assert seen["map"][0].split() == ["0", "100000", "65536"]


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_containerd_without_docker(
    installed: Installed, patterns: dict[str, Path], bundle: Maker, runtime: str
) -> None:
    """The daemon that Docker has started, asked by ctr.  cgroup v1: crun wants controllers that v2 may not have."""
    root = bundle("debian").rootfs
    words = "ctr --address /run/docker/containerd/containerd.sock run --rm"

    def ctr(name: str, devices: str) -> str:
        options = f"--runc-binary /usr/bin/hooked-{runtime} --env NVIDIA_VISIBLE_DEVICES={devices}"
        return f"{words} {options} --rootfs {root} {name} /bin/sh -c {shlex.quote(LOOK)}"

    scripts = {
        "env": ctr("env", "1,5"),
        "silent": ctr("silent", ""),
        "unknown": f"{ctr('unknown', '77')} 2>&1 || echo failed",
    }
    seen = docker(installed, patterns["debian"], scripts, cgroup="v1")
    assert opened(seen["env"]) >= GIVEN, seen["env"]
    assert seen["env"][-1] == "cuInit 0, 2 devices"
    assert opened(seen["silent"]) == set(), seen["silent"]
    assert seen["unknown"][-1] == "failed"
    # containerd shows the last line of a runtime's log, and crun's own comes after ours.
    assert runtime == "crun" or seen["unknown"][0].endswith(f"{UNKNOWN}: unknown")
