# SPDX-License-Identifier: Apache-2.0
"""The manual's files for Compose, run as they are by docker-compose 1.29, and by podman-compose.

Compose 2 reads the same files, and has CDI with Docker 26: the lane of the newest engines has both.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from tests import manual
from tests.docker.dockerd import LOOK, docker, nodes, opened, tried
from tests.integration.engines import NO_PIDS_LIMIT, in_turn, podman, version
from tests.integration.inside import node

OPTIONS = f"--network=none {NO_PIDS_LIMIT} --ulimit nofile=1024:1024 --ulimit nproc=1024:1024"
HAS_CDI = version("docker-compose") >= (2,)
RESERVATIONS, RUNTIME, CDI = manual.blocks("oci-gpu-hook-docker.7", "COMPOSE")
ENVIRONMENT = RUNTIME.replace("    runtime: oci-gpu-runtime\n", "")

# As an administrator does for the variable alone.
BY_DEFAULT = """
sed -i 's/"default-runtime": "simulated-runc"/"default-runtime": "oci-gpu-runtime"/' /etc/docker/daemon.json
reload_dockerd oci-gpu-runtime
"""


def up(file: str, more: str = "") -> str:
    """The shell lines that run a service's container once."""
    look = shlex.quote(LOOK.replace("$", "$$"))
    return f"""
mkdir -p /run/compose && cd /run/compose
printf %s {shlex.quote(file.replace("IMAGE", "image"))} >docker-compose.yml
cat >docker-compose.override.yml <<'END'
version: "3.8"
services: {{gpu: {{network_mode: none, stdin_open: true, entrypoint: /bin/sh{more}}}}}
END
docker-compose run --rm -T gpu -c {look.replace("$$", "$")} </dev/null 2>&1 || echo failed
"""


@pytest.fixture(scope="module")
def seen(patterns: dict[str, Path]) -> dict[str, list[str]]:
    scripts = {
        "reservations": up(RESERVATIONS),
        "all": up(RESERVATIONS.replace('device_ids: ["1", "5"]', "count: all")),
        "runtime": up(RUNTIME),
        "environment": BY_DEFAULT + up(ENVIRONMENT),
    }
    configuration: dict[str, Any] = {"default-runtime": "simulated-runc"}
    if HAS_CDI:
        spec = "mkdir -p /etc/cdi\noci-gpu-hook cdi generate --output /etc/cdi/nvidia.yaml\n"
        scripts = {"cdi": spec + up(CDI), **scripts}
        configuration["features"] = {"cdi": True}
    return docker(patterns["debian"], scripts, configuration, cgroup="v1")


@pytest.mark.skipif(not HAS_CDI, reason="Compose 1 and Docker 20.10 know no CDI")
def test_compose_2_has_what_cdi_gives(seen: dict[str, list[str]]) -> None:
    # The spec is for all capabilities.
    assert opened(seen["cdi"]) - {"/dev/nvidia-modeset"} == nodes([2, 6]) | tried([2, 6]), seen["cdi"]


@pytest.mark.parametrize(("name", "gpus"), [("reservations", [1, 5]), ("runtime", [2]), ("environment", [2])])
def test_docker_compose_has_what_is_named(seen: dict[str, list[str]], name: str, gpus: list[int]) -> None:
    assert opened(seen[name]) == nodes(gpus) | tried(gpus), seen[name]


def test_all_is_all(seen: dict[str, list[str]]) -> None:
    assert opened(seen["all"]) == nodes([*range(8)]) | tried([*range(8)]), seen["all"]


def test_podman_compose_passes_the_variable_on(patterns: dict[str, Path], tmp_path: Path) -> None:
    """It reads no ``deploy``."""
    engine = podman('"$@"', runtime="runc", folder=tmp_path)
    script = f"""
mkdir -p /run/compose && cd /run/compose
# A network of its own costs time, and podman-compose asks for one whatever the file says.
cat >/usr/bin/our-podman <<'END'
#!/bin/bash
words=()
while (($#)); do
    case $1 in --net | --network-alias) shift ;; --network=*:*) ;; *) words+=("$1") ;; esac
    shift
done
set -- "${{words[@]}}"
exec {engine}
END
chmod 755 /usr/bin/our-podman
tar -C {patterns["debian"]} -c . | our-podman import - localhost/image >/dev/null
printf %s {shlex.quote(ENVIRONMENT.replace("IMAGE", "localhost/image"))} >docker-compose.yml
podman-compose --podman-path /usr/bin/our-podman --podman-run-args '{OPTIONS}' run -T gpu nvidia-smi 2>&1
"""
    lines = in_turn({"run": script}, description="h100x8")["run"]
    assert any(line.startswith(f"{node(2)} ") and "allowed" in line for line in lines), lines
