# SPDX-License-Identifier: Apache-2.0
"""JupyterHub's spawners on a real daemon: the container of each user's server has that user's GPUs and no others.

Each way is the manual's own lines.  One hub serves all ways of DockerSpawner, each for its own users; another is in the
network of a Swarm of one.  Hub, proxy and servers are the real ones, and the daemon's default runtime is ours.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests import manual
from tests.docker import notebook
from tests.docker.dockerd import LINK, SETTINGS, docker, look
from tests.docker.test_options import Case, has_what_it_asked_for
from tests.integration.engines import REPOSITORY
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
    {HERE}/hub.sh {" ".join(LINES)} || tell
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
        exec {HERE}/hub.sh {" ".join(TASKS)}" || tell
"""


def paste() -> str:
    """The shell lines that write each user's lines."""
    files = {f"docker/{user}": f"{text}\n{BESIDE.get(user, '')}\n" for user, text in LINES.items()}
    files |= {f"swarm/{user}": SWARM for user in TASKS}
    return "".join([f"printf %s {shlex.quote(text)} >/run/hub/{path}\n" for path, text in files.items()])


# Where CUDA's library is, as a program finds it that names it only; and the task's share.
LIBRARY = """
import ctypes, os
ctypes.CDLL("libcuda.so.1")
print(os.environ.get("DOCKER_RESOURCE_GPU"), {it.split()[-1] for it in open("/proc/self/maps") if "libcuda.so" in it})
"""


def inside(user: str) -> str:
    """The shell lines that look into the container of a user's server."""
    container = f"$(docker ps --quiet --filter name=jupyter-{user})"
    more = f"docker exec {container} python3 -c {shlex.quote(LIBRARY)} 2>/dev/null || echo none"
    return f"docker exec {container} id -u\n{more}\n{look(container)}"


@pytest.fixture(scope="module")
def seen(patterns: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What is seen in each user's container: the user's number, the library, and the nodes."""
    notebook.environment()
    root = tmp_path_factory.mktemp("notebook") / "root"
    image = notebook.notebook(root, patterns["debian"])
    scripts = {"docker": image.load() + paste() + DOCKER_HUB, **{user: inside(user) for user in LINES}}
    scripts |= {"swarm": SWARM_HUB, **{user: inside(user) for user in TASKS}}
    settings, runtime = f"{SETTINGS}swarm-resources = DOCKER_RESOURCE_GPU\n", {"default-runtime": "oci-gpu-runtime"}
    return docker(root, scripts, runtime, before=BEFORE, start=False, settings=settings, timeout=1200)


@pytest.mark.parametrize("user", GIVEN)
def test_a_server_has_its_users_gpus(seen: dict[str, list[str]], user: str) -> None:
    uid, _, *lines = seen[user]
    is_root = BESIDE.get(user) != JOVYAN
    assert uid == ("0" if is_root else "1000")
    # An image of nvidia-docker 1's time has every capability.
    plain = [line for line in lines if not line.startswith("/dev/nvidia-modeset ") or user != "old"]
    has_what_it_asked_for(Case("", "", GIVEN[user], mknod=is_root), plain)


def test_an_image_of_nvidia_docker_1_finds_the_driver_where_it_looks(seen: dict[str, list[str]]) -> None:
    """By an empty volume that dockerd has made, and no command before: as everybody who has a GPU does."""
    found = {user: "'/usr/local/nvidia/lib64/" in seen[user][1] for user in (*LINES, *TASKS)}
    assert found == {user: user != "guest" for user in found}


def test_a_server_has_the_gpu_of_its_tasks_share(seen: dict[str, list[str]]) -> None:
    by_uuid = {gpu["uuid"]: index for index, gpu in enumerate(gpus())}
    shares = [seen[user][1].split()[0] for user in TASKS]
    assert len(set(shares)) == len(TASKS), shares
    for user, share in zip(TASKS, shares):
        uuid, _, number = share.rpartition("-")
        assert number in ("0", "1")
        has_what_it_asked_for(Case("", "", [by_uuid[uuid]]), seen[user][2:])
