# SPDX-License-Identifier: Apache-2.0
"""Docker Swarm gives each task a share of a GPU, and its container has that GPU alone, whatever its image asks for.

On a node with two GPUs, each named twice: four services have them all, and two at a time share one; the first has
another vendor's device, too.  Environments are not accepted there: what Swarm has given is, by dockerd's own record.
The node has a network of its own, and a Swarm of one.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests import manual
from tests.docker.dockerd import LOOK, SETTINGS, denied, docker, opened
from tests.integration.engines import REPOSITORY
from tests.integration.inside import COMPUTE

SERVICES = ("first", "second", "third", "fourth")
SHARES = 2
ADDRESS = "192.0.2.1"
CARDS = ["NEURON=neuron0", "NEURON=neuron1"]
CONFIGURATION = {"default-runtime": "oci-gpu-runtime", "debug": False, "node-generic-resources": CARDS}
COUNTED = "swarm-resources = DOCKER_RESOURCE_GPU, OCI_NEURON=DOCKER_RESOURCE_NEURON\n"
PRIVILEGED = "accept-environment = privileged\n"
# As images of CUDA's ask; and as one that would pass its own request off as Swarm's.
IMAGES = """
docker create --name root image >/dev/null
for request in 'asks NVIDIA_VISIBLE_DEVICES=all OCI_NEURON=all' \\
    'claims DOCKER_RESOURCE_GPU=all DOCKER_RESOURCE_NEURON=all'; do
    docker export root | docker import --change "ENV ${request#* }" - ${request%% *} >/dev/null
done
docker rm root >/dev/null
"""
ALWAYS = "sed -i /accept-environment/d /etc/oci-gpu-hook.conf\n"
PREPARE = f"""
ip link add swarm0 type bridge
ip address add {ADDRESS}/24 dev swarm0
ip link set swarm0 up
oci-gpu-hook configure docker --swarm GPU --shares {SHARES}
"""
INIT = f"docker swarm init --advertise-addr {ADDRESS} >/dev/null"
WORDS = ("GPU_SHARE", "CUDA_VISIBLE_DEVICES", "XLA_PYTHON_CLIENT_MEM_FRACTION")


def task() -> str:
    """What a service's container does: it looks, and says what its start script has made of its share."""
    said = " ".join(f"${word}" for word in WORDS)
    command = f"echo $DOCKER_RESOURCE_GPU {said}; echo looked; exec sleep 100000"
    look = LOOK.replace("/dev/tried*", "/dev/tried* /dev/neuron*")
    return f"{look}\nset -- /bin/sh -c {shlex.quote(command)}\n{manual.start_script()}"


def create(name: str, options: str = "--generic-resource GPU=1", image: str = "asks") -> str:
    """The shell line of a service, with one share."""
    options += f" --detach --no-resolve-image --env SHARES={SHARES}"
    words = f"{options} --name {name} {image} /bin/sh -c {shlex.quote(task())}"
    return f"docker service create {words} >/dev/null\n"


def printed(name: str) -> str:
    """The shell lines that wait for a service's task and print what it has printed."""
    logs = f"docker service logs --raw {name}"
    return f'wait_for "{logs} | grep -x looked"\n{logs} 2>&1\n'


@pytest.fixture(scope="module")
def two_gpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The description of a node with the first two GPUs of h100x8."""
    made = json.loads((REPOSITORY / "tests/gpunode/descriptions/h100x8.json").read_text())
    made["gpus"] = sorted(made["gpus"], key=lambda gpu: str(gpu["bus_id"]))[:2]
    path = tmp_path_factory.mktemp("swarm") / "two.json"
    path.write_text(json.dumps(made))
    return path


@pytest.fixture(scope="module")
def seen(patterns: dict[str, Path], two_gpus: Path) -> dict[str, list[str]]:
    with_card = "--generic-resource GPU=1 --generic-resource NEURON=1"
    services = create("first", with_card) + "".join(create(name) for name in SERVICES[1:])
    scripts = {
        "daemon.json": "cat /etc/docker/daemon.json",
        "init": f"{INIT}\n{IMAGES}{services}",
        **{name: printed(name) for name in SERVICES},
        "uncounted": create("one", "") + create("other", "", "claims"),
        "one": printed("one"),
        "other": printed("other"),
        "accepted": ALWAYS
        + create("asks", "")
        + create("claims", "", "claims")
        + create("author", "--env NVIDIA_VISIBLE_DEVICES=0"),
        "asks, accepted": printed("asks"),
        "claims, accepted": printed("claims"),
        "author": printed("author"),
    }
    state = "docker service ps --format '{{.CurrentState}}: {{.Error}}' --no-trunc fifth"
    # Only now: who is first in time need not be the first that Swarm serves.
    scripts["fifth"] = create("fifth") + f'wait_for "{state} | grep insufficient"\n{state}'
    node: dict[str, Any] = {"description": str(two_gpus), "vendors": ("neuron",)}
    settings = f"{SETTINGS}{COUNTED}{PRIVILEGED}"
    return docker(patterns["debian"], scripts, CONFIGURATION, before=PREPARE, settings=settings, **node)


def test_each_task_has_the_gpu_of_its_share(seen: dict[str, list[str]], two_gpus: Path) -> None:
    by_uuid = {gpu["uuid"]: f"/dev/nvidia{gpu['minor']}" for gpu in json.loads(two_gpus.read_text())["gpus"]}
    had = []
    for name in SERVICES:
        *looked, said, last = seen[name]
        assert last == "looked"
        share, *started = said.split(" ")
        had.append(share)
        uuid, _, number = share.rpartition("-")
        assert started == [number, uuid, "0.45"]
        own = by_uuid[uuid]
        nodes = {path for path in opened(looked) if "neuron" not in path}
        assert nodes == COMPUTE | {own, own.replace("nvidia", "tried")}, seen[name]
        assert looked[-1] == "cuInit 0, 1 devices"
        assert len(opened(looked) - nodes) == (name == "first"), seen[name]
    assert sorted(had) == sorted(f"{uuid}-{n}" for uuid in by_uuid for n in range(SHARES))


def test_an_image_has_nothing_that_swarm_does_not_count(seen: dict[str, list[str]]) -> None:
    """Also where environments are accepted; what a service's author says is then none of the image's."""
    for name in ("one", "other", "asks, accepted", "claims, accepted"):
        assert opened(seen[name]) == set() and len(denied(seen[name])) == 8, seen[name]
    assert len(opened(seen["author"]) - COMPUTE) == 2, seen["author"]


def test_a_task_waits_while_all_shares_are_taken(seen: dict[str, list[str]]) -> None:
    assert seen["fifth"][0].startswith("Pending"), seen["fifth"]


def test_the_daemons_other_settings_are_kept(seen: dict[str, list[str]]) -> None:
    written = json.loads("".join(seen["daemon.json"]))
    for name in ("default-runtime", "debug"):
        assert written[name] == CONFIGURATION[name]
    assert written["node-generic-resources"][:2] == CARDS
    assert len(written["node-generic-resources"]) == 2 + 2 * SHARES
