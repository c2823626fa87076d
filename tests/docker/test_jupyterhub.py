# SPDX-License-Identifier: Apache-2.0
"""JupyterHub's spawners on a real daemon: each user's server has that user's GPUs and no others.

Each way is the manual's own lines.  The spawners are the real ones, which a hub would start; the daemon's default
runtime is ours, and it is a Swarm of one.
"""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from tests import manual
from tests.docker.dockerd import LINK, SETTINGS, docker, look
from tests.docker.test_options import Case, has_what_it_asked_for
from tests.docker.test_swarm import INIT, PREPARE
from tests.integration.engines import REPOSITORY, Installed
from tests.integration.inside import gpus

VENV = REPOSITORY / ".build/jupyterhub"
SPAWN = f"{VENV}/bin/python {REPOSITORY}/tests/docker/spawn.py"
BY_RUNTIME, BY_REQUEST, BY_USER, TELLS, SWARM = manual.blocks("oci-gpu-hook-jupyterhub.7")[:5]
# As JupyterHub's documentation has them.
OLD = f"""
c.DockerSpawner.read_only_volumes = {{"nvidia_driver_580.65.06": "/usr/local/nvidia"}}
nodes = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia{gpus()[7]["minor"]}")
c.DockerSpawner.extra_host_config = {{"devices": [f"/dev/{{name}}:/dev/{{name}}:rw" for name in nodes]}}
"""
IMAGE = '\nc.DockerSpawner.image = "{}"\n'
# How each user asks; ann and bob are the names that the lines by user have, and the guest is none of these.  What users
# of real images are, bob is: the nodes are root's.
LINES = {
    "ada": BY_RUNTIME,
    "ben": BY_REQUEST,
    "ann": BY_USER + IMAGE.format("asks"),
    "bob": f'{BY_USER}\nc.DockerSpawner.extra_create_kwargs = {{"user": "1000:100"}}\n',
    "guest": BY_USER + IMAGE.format("asks"),
    "old": OLD + IMAGE.format("old"),
    "late": f"{BY_RUNTIME}\n{TELLS}".replace('"2"', '"77"'),
}
GIVEN = {"ada": 2, "ben": 3, "ann": 5, "bob": 6, "old": 7}
TASKS = ("first", "second")
# As CUDA's images ask; and as those of nvidia-docker 1's time say where they expect a driver.
IMAGES = """
docker create --name root image >/dev/null
for made in 'asks NVIDIA_VISIBLE_DEVICES=all' 'old LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64'; do
    docker export root | docker import --change "ENV ${made#* }" - ${made%% *} >/dev/null
done
"""


def spawned(spawner: str, lines: dict[str, str]) -> str:
    """The shell lines that start a server for each user."""
    files = [f"printf %s {shlex.quote(text)} >/run/{spawner}/{user}\n" for user, text in lines.items()]
    return f"mkdir /run/{spawner}\n{''.join(files)}{SPAWN} {spawner} /run/{spawner}\n"


@pytest.fixture(scope="module")
def seen(installed: Installed, patterns: dict[str, Path]) -> dict[str, list[str]]:
    """What each user's server sees."""
    target = str((VENV / "up-to-date").relative_to(REPOSITORY))
    subprocess.run(["make", "--silent", "-C", REPOSITORY, target], check=True)
    scripts = {"said": IMAGES + spawned("DockerSpawner", LINES)}
    scripts |= {user: look(f"jupyter-{user}") for user in LINES if user != "late"}
    scripts["swarm"] = f"{INIT}\n{spawned('SwarmSpawner', dict.fromkeys(TASKS, SWARM))}"
    for user in TASKS:
        name = f"$(docker ps --quiet --filter name=jupyter-{user})"
        scripts[user] = f"docker exec {name} /bin/sh -c 'echo $DOCKER_RESOURCE_GPU'\n{look(name)}"
    return docker(
        installed,
        patterns["debian"],
        scripts,
        {"default-runtime": "oci-gpu-runtime"},
        before=f"{LINK}{PREPARE}",
        settings=f"{SETTINGS}swarm-resources = DOCKER_RESOURCE_GPU\n",
    )


@pytest.mark.parametrize("user", GIVEN)
def test_a_server_has_its_users_gpus(seen: dict[str, list[str]], user: str) -> None:
    # nvidia-docker 1 gave all capabilities.
    lines = [line for line in seen[user] if user != "old" or not line.startswith("/dev/nvidia-modeset ")]
    has_what_it_asked_for(Case("", "", [GIVEN[user]], mknod=user != "bob"), lines)


def test_other_users_have_none_whatever_the_image_asks_for(seen: dict[str, list[str]]) -> None:
    has_what_it_asked_for(Case("", "", []), seen["guest"])


def test_a_user_whose_server_does_not_start_reads_why(seen: dict[str, list[str]]) -> None:
    (said,) = seen["said"]
    assert said.startswith("late 503 unknown device '77': this host has indices 0 to 7 ("), said


def test_a_server_has_the_gpu_of_its_tasks_share(seen: dict[str, list[str]]) -> None:
    by_uuid = {gpu["uuid"]: index for index, gpu in enumerate(gpus())}
    shares = [seen[user][0] for user in TASKS]
    assert len(set(shares)) == len(TASKS), shares
    for user, share in zip(TASKS, shares):
        uuid, _, number = share.rpartition("-")
        assert number in ("0", "1")
        has_what_it_asked_for(Case("", "", [by_uuid[uuid]]), seen[user][1:])
