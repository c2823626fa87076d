# SPDX-License-Identifier: Apache-2.0
"""Docker's daemon on a simulated node: shell lines that start it, and what a container sees of the node's GPUs.

systemd is the node's PID 1, so that every daemon, container and cgroup goes with it; the network, /etc, /run, /usr,
/var/lib and /opt are the node's own.  The daemons are the distribution's, or another version's where DOCKER_FROM names
a folder with its dockerd, docker, containerd, ctr, containerd-shim-runc-v2 and docker-proxy, and with its cli-plugins.
Must not import the source tree's modules.
"""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

from tests.integration.engines import SIMULATED, in_turn, version
from tests.integration.inside import ALLOWED, COMPUTE, DENIED, gpus, node

# Newer systemds boot no cgroup v1.
BOOTS_V1 = version("systemctl") < (258,)
FOLDER = os.environ.get("DOCKER_FROM", "/usr/bin")
LINK = "ln -s ../libexec/oci/hooks.d/oci-gpu-hook /usr/bin/nvidia-container-runtime-hook\n"
SETTINGS = "runtime = /usr/bin/simulated-runc\n"
RUNTIME = "--runtime oci-gpu-runtime"
NAMES = ("oci-gpu-runtime", "simulated-runc", "simulated-crun")
RUNTIMES = {name: {"path": f"/usr/bin/{name}"} for name in NAMES}
# wait_for: a loaded machine may take long, and nothing goes on before the condition holds.
_BEFORE = """
PATH={folder}:$PATH
export PATH DOCKER_CONFIG=/run/docker-client DOCKER_BUILDKIT=0
mkdir $DOCKER_CONFIG
ln -s {folder}/cli-plugins $DOCKER_CONFIG
mount -t tmpfs none /var/lib
mount -t tmpfs none /opt
for name in runc crun; do install -m 755 {simulated} /usr/bin/simulated-$name; done
mkdir -p /etc/docker
printf %s {configuration} >/etc/docker/daemon.json
wait_for() {{
    for try in $(seq 12000); do
        if eval "$*" >/dev/null 2>&1; then return; fi
        sleep 0.05
    done
    echo "waited in vain: $*" >&2
    cat /run/dockerd.log >&2
    return 1
}}
start_dockerd() {{
    dockerd >>/run/dockerd.log 2>&1 &
    wait_for "docker version || ! kill -0 $!"
    docker version >/dev/null || {{ cat /run/dockerd.log >&2; return 1; }}
}}
# As an administrator does after a change of daemon.json; whose default-runtime it asks for at last.
reload_dockerd() {{
    kill -HUP $(cat /run/docker.pid)
    wait_for "docker info --format '{{{{.DefaultRuntime}}}}' | grep -x $1"
}}
"""
_START = """
start_dockerd
tar -C {image} -c . | docker import --change 'CMD ["/bin/sleep", "100000"]' - image >/dev/null
"""
# Each node of the container's, and each of the host's GPUs by a node of its own making, where it may make one.
LOOK = """
exec 2>&1
for n in 0 1 2 3 4 5 6 7; do mknod /dev/tried$n c 195 $n 2>/dev/null; done
for path in $(find /dev/nvidia* /dev/tried* 2>/dev/null); do echo $path $({ true <$path; } 2>&1); done
test ! -e /dev/nvidiactl || /app/cuda || :
"""


def docker(
    image: Path,
    scripts: dict[str, str],
    configuration: dict[str, Any] | None = None,
    *,
    before: str = LINK,
    start: bool = True,
    settings: str = SETTINGS,
    **how: Any,
) -> dict[str, list[str]]:
    """What each of some scripts prints that run in turn beside one daemon, which has the image as ``image``.

    configuration: what daemon.json has beside our runtimes; before: shell lines, ahead of the daemon; how: as in_turn.
    """
    document = {"runtimes": RUNTIMES, "pidfile": "/run/docker.pid", **(configuration or {})}
    lines = _BEFORE.format(folder=FOLDER, simulated=SIMULATED, configuration=shlex.quote(json.dumps(document)))
    lines += before + (_START.format(image=image) if start else "")
    how = {"booted": True, "own_network": True, "settings": settings, **how}
    if not BOOTS_V1:
        how["cgroup"] = "v2"
    return in_turn(scripts, lines, **how)


def look(name: str) -> str:
    """The shell line that looks into a container that runs."""
    return f"docker exec {name} /bin/sh -c {shlex.quote(LOOK)}"


def run(options: str, command: str = LOOK) -> str:
    """The shell line that starts a container of Docker's; what goes wrong is printed, too."""
    words = f"docker run --rm --network none {options} image /bin/sh -c {shlex.quote(command)}"
    return f"{words} 2>&1 || echo failed"


def opened(lines: list[str]) -> set[str]:
    """The nodes that could be opened, of those that were tried."""
    return {line.split()[0] for line in lines if line.endswith(ALLOWED)}


def denied(lines: list[str]) -> set[str]:
    """The nodes that the device cgroup keeps closed."""
    return {line.split()[0] for line in lines if line.endswith(DENIED)}


def nodes(indices: list[int], *, compute: bool = True) -> set[str]:
    """The device nodes of a container with these GPUs."""
    return {node(index) for index in indices} | (COMPUTE if compute else {"/dev/nvidiactl"})


def tried(indices: list[int]) -> set[str]:
    """The nodes that a container may make itself for these GPUs."""
    return {node(index).replace("nvidia", "tried") for index in indices}


def uuid(index: int) -> str:
    """A GPU's UUID, by NVML's index."""
    return str(gpus()[index]["uuid"])
