# SPDX-License-Identifier: Apache-2.0
"""GPUs that the node chooses, for Docker and podman: no container has what another holds."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.docker.dockerd import LOOK, SETTINGS, docker, look, opened, run
from tests.integration.engines import PODMAN_RUN, Installed, podman, remove_podmans_parents

COUNTED = f"{SETTINGS}gpu-holders = 1\ndocker-count = any\n"
# Who has a GPU alone can make a folder of its name.
ALONE = """
gpu=$(ls /dev | grep 'nvidia[0-9]')
mkdir /shared/$gpu && echo alone $gpu || echo clash $gpu
sleep 0.2
rmdir /shared/$gpu
"""
# Of both engines together; HOSTILE_LOAD=1000 by hand.
STARTS, AT_ONCE = int(os.environ.get("HOSTILE_LOAD", "48")), 16
DETACHED = "docker run --detach --network none --name {name} {options} image /bin/sleep 1000 >/dev/null"


def begun(name: str, options: str) -> str:
    return f"{DETACHED.format(name=name, options=options)}\n{look(name)}"


def given(lines: list[str]) -> set[str]:
    """The GPUs whose nodes a container has and can open."""
    return {path for path in opened(lines) if path.startswith("/dev/nvidia") and path[-1].isdigit()}


@pytest.fixture(scope="module")
def seen(installed: Installed, patterns: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("podman")
    by_runtime = "--runtime oci-gpu-runtime --env NVIDIA_VISIBLE_DEVICES"
    words = f"{PODMAN_RUN} --rm --env NVIDIA_VISIBLE_DEVICES=any --rootfs {folder}/root /bin/sh -c "
    inner = shlex.quote(LOOK)
    beside = podman(f"{words} {inner}", runtime="runc", folder=folder)
    shared = words.replace("--rootfs", "--volume /run/shared:/shared --rootfs")
    scripts = {
        "one": begun("one", "--gpus 1"),
        "two": begun("two", "--gpus 2"),
        "any": begun("any", """--gpus '"device=any:2"'"""),
        "runtime": begun("runtime", f"{by_runtime}=any"),
        "podman": f"cp -a {patterns['debian']} {folder}/root\nenv --unset=DOCKER_CONFIG {beside}",
        "restarted": f"docker restart --time 0 two >/dev/null\n{look('two')}",
        "paused": f"docker pause any >/dev/null\n{run('--gpus 4')}\ndocker unpause any >/dev/null",
        "all": run("--gpus all"),
        "freed": f"docker rm --force any one >/dev/null\n{run('--gpus 4')}",
        "both": f"""
mkdir /run/shared
by_docker() {{
    docker run --rm --network none --volume /run/shared:/shared --gpus 1 image /bin/sh -c {shlex.quote(ALONE)} 2>&1
}}
by_podman() {{
    env --unset=DOCKER_CONFIG {podman(f"{shared} {shlex.quote(ALONE)}", runtime="runc", folder=folder)} 2>&1
}}
docker rm --force two runtime >/dev/null
for loop in $(seq {AT_ONCE // 2}); do
    for engine in by_docker by_podman; do
        for number in $(seq {-(-STARTS // AT_ONCE)}); do $engine || :; done &
        echo $! >>/run/loops
    done
done
wait $(cat /run/loops)
""",
    }
    try:
        yield docker(
            installed,
            patterns["debian"],
            scripts,
            {"default-runtime": "simulated-runc"},
            settings=COUNTED,
            timeout=600 + 2 * STARTS,
        )
    finally:
        remove_podmans_parents()


def test_nobody_has_what_another_holds(seen: dict[str, list[str]]) -> None:
    names = {"one": 1, "two": 2, "any": 2, "runtime": 1, "podman": 1}
    found = {name: given(seen[name]) for name in names}
    assert {name: len(gpus) for name, gpus in found.items()} == names, seen
    held = [gpu for name in ("one", "two", "any", "runtime") for gpu in found[name]]
    assert len(set(held)) == 6
    assert not found["podman"] & set(held)


def test_a_restart_starts_anew_and_a_pause_holds(seen: dict[str, list[str]]) -> None:
    assert len(given(seen["restarted"])) == 2
    assert "4 devices are asked for, and 2 have room" in " ".join(seen["paused"])


def test_two_engines_at_once_have_none_in_common(seen: dict[str, list[str]]) -> None:
    """Eight at a time by each, for the eight GPUs."""
    lines = seen["both"]
    assert not [line for line in lines if "clash" in line], lines
    alone = [line for line in lines if line.startswith("alone nvidia")]
    refused = [line for line in lines if "have room" in line]
    print(f"of {STARTS} starts {len(alone)} had a GPU alone, {len(refused)} found no room")
    assert len({*alone}) > 4, lines
    assert len(alone) >= STARTS // 3, lines


def test_all_is_all_or_a_refusal_and_an_end_frees(seen: dict[str, list[str]]) -> None:
    assert "is held by" in " ".join(seen["all"])
    assert len(given(seen["freed"])) == 4
