# SPDX-License-Identifier: Apache-2.0
"""JupyterHub's spawners on a real daemon: a cell of each user's kernel has that user's GPUs and no others.

Each way is the manual's own lines.  One hub serves all ways of DockerSpawner, each for its
own users; another is in the network of a Swarm of one.  Hub, proxy, servers and kernels are the real ones, and the
daemon's default runtime is ours.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests import manual
from tests.docker import notebook
from tests.docker.dockerd import LINK, SETTINGS, docker
from tests.integration.engines import REPOSITORY, Installed
from tests.integration.inside import gpus

HERE = REPOSITORY / "tests/docker"
ADDRESS = "192.0.2.1"
BY_RUNTIME, BY_REQUEST, BY_USER, _, SWARM = manual.blocks("oci-gpu-hook-jupyterhub.7")[:5]
# As JupyterHub's documentation has them.
OLD = """
c.DockerSpawner.read_only_volumes = {{"nvidia_driver_580.65.06": "/usr/local/nvidia"}}
nodes = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia{}")
c.DockerSpawner.extra_host_config = {{
    "devices": [f"/dev/{{name}}:/dev/{{name}}:rw" for name in nodes],
}}
"""
# How each user asks; ann and bob are the names that the lines by user have, and the guest is none of these.
LINES = {
    "ada": BY_RUNTIME,
    "ben": BY_REQUEST,
    "ann": BY_USER,
    "bob": BY_USER,
    "guest": BY_USER,
    "old": OLD.format(gpus()[7]["minor"]),
}
GIVEN = {"ada": [2], "ben": [3], "ann": [5], "bob": [6], "guest": [], "old": [7]}
# What users of real images are, whose nodes are root's.
JOVYAN = 'c.DockerSpawner.extra_create_kwargs = {"user": "1000:100"}'
IMAGE = 'c.DockerSpawner.image = "{}"'
BESIDE = {
    "ann": IMAGE.format("asks"),
    "bob": JOVYAN,
    "guest": IMAGE.format("asks"),
    "old": IMAGE.format("old-notebook"),
}
TASKS = ("first", "second")
# The Swarm's daemon must have its resources from its start on.  NODE_PATH: a Node.js from elsewhere does not look for
# modules where Debian has the proxy's.
BEFORE = f"""{LINK}
oci-gpu-hook configure docker --swarm GPU --shares 2
mkdir -p /run/hub/docker /run/hub/swarm
export NODE_PATH=/usr/share/nodejs
tell() {{
    for name in $(docker ps --all --quiet); do docker logs --tail 40 $name >&2 || :; done
    return 1
}}
start_dockerd
docker network create --subnet 192.0.2.0/24 --gateway {ADDRESS} hub >/dev/null
"""
# The host's address in the containers' network is the hub's, and the Swarm's.
DOCKER_HUB = f"""
PATH={notebook.VENV}/bin:$PATH PASTED=/run/hub/docker SPAWNER=docker NETWORK=hub HUB_ADDRESS={ADDRESS} \\
    {notebook.VENV}/bin/python {HERE}/hub_client.py {" ".join(LINES)} || tell
"""
# A service can name no runtime.  The hub is in the services' network as it would be in a container there: it has that
# one's addresses and its name server.
SWARM_HUB = f"""
docker swarm init --advertise-addr {ADDRESS} >/dev/null
docker network create --driver overlay --attachable notebooks >/dev/null
docker run --detach --name hub --network notebooks notebook sleep 100000 >/dev/null
names=$(docker inspect --format '{{{{.ResolvConfPath}}}}' hub)
PATH={notebook.VENV}/bin:$PATH PASTED=/run/hub/swarm SPAWNER=docker-swarm NETWORK=notebooks HUB_ADDRESS=hub \\
    nsenter --net=/proc/$(docker inspect --format '{{{{.State.Pid}}}}' hub)/ns/net unshare --mount \\
    /bin/sh -euc "mount --bind $names /etc/resolv.conf
        exec {notebook.VENV}/bin/python {HERE}/hub_client.py {" ".join(TASKS)}" || tell
"""


def paste() -> str:
    """The shell lines that write each user's lines."""
    files = {f"docker/{user}": f"{text}\n{BESIDE.get(user, '')}\n" for user, text in LINES.items()}
    files |= {f"swarm/{user}": SWARM for user in TASKS}
    return "".join([f"printf %s {shlex.quote(text)} >/run/hub/{path}\n" for path, text in files.items()])


@pytest.fixture(scope="module")
def seen(
    installed: Installed, patterns: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """What each user's cell has printed."""
    notebook.environment()
    root = tmp_path_factory.mktemp("notebook") / "root"
    image = notebook.notebook(root, patterns["debian"])
    printed = docker(
        installed,
        root,
        {"docker": image.load() + paste() + DOCKER_HUB, "swarm": SWARM_HUB},
        {"default-runtime": "oci-gpu-runtime"},
        before=BEFORE,
        start=False,
        settings=f"{SETTINGS}swarm-resources = DOCKER_RESOURCE_GPU\n",
        timeout=1200,
    )
    cells = [json.loads(line) for lines in printed.values() for line in lines]
    return {cell["user"]: cell for cell in cells}


def has_exactly(cell: dict[str, Any], indices: list[int]) -> None:
    """The GPUs whose nodes the kernel has and can open, and those that it cannot open by nodes of its own making."""
    minors = [gpus()[index]["minor"] for index in indices]
    assert cell["gpus"] == {f"/dev/nvidia{minor}": "ENXIO" for minor in sorted(minors)}, cell
    if cell["uid"] == 0:
        allowed = {number for number, answer in cell["tried"].items() if answer == "ENXIO"}
        assert allowed == {str(minor) for minor in minors}, cell
        assert set(cell["tried"].values()) == {"EPERM", *(["ENXIO"] if minors else [])}, cell
    else:
        assert set(cell["tried"].values()) == {""}, cell
    assert cell["cuda"] == ([0, len(minors)] if minors else None), cell


@pytest.mark.parametrize("user", GIVEN)
def test_a_cell_has_its_users_gpus(seen: dict[str, dict[str, Any]], user: str) -> None:
    has_exactly(seen[user], GIVEN[user])
    assert seen[user]["uid"] == (1000 if BESIDE.get(user) == JOVYAN else 0)


def test_an_image_of_nvidia_docker_1_finds_the_driver_where_it_looks(seen: dict[str, dict[str, Any]]) -> None:
    """By an empty volume that dockerd has made, and no command before: as everybody who has a GPU does."""
    found = {user: cell["library"].startswith("/usr/local/nvidia/lib64/") for user, cell in seen.items()}
    assert found == {user: user != "guest" for user in [*LINES, *TASKS]}


def test_a_cell_has_the_gpu_of_its_tasks_share(seen: dict[str, dict[str, Any]]) -> None:
    by_uuid = {gpu["uuid"]: index for index, gpu in enumerate(gpus())}
    shares = [seen[user]["share"] for user in TASKS]
    assert len(set(shares)) == len(TASKS), shares
    for user, share in zip(TASKS, shares):
        uuid, _, number = share.rpartition("-")
        assert number in ("0", "1")
        has_exactly(seen[user], [by_uuid[uuid]])
