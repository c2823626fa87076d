# SPDX-License-Identifier: Apache-2.0
"""GPUs that the node chooses, for Docker and podman: no container has what another holds."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.docker.dockerd import LOOK, SETTINGS, docker, look, opened, run
from tests.integration.engines import PODMAN_RUN, podman, remove_podmans_parents

COUNTED = f"{SETTINGS}gpu-holders = 1\ndocker-count = any\n"
DETACHED = "docker run --detach --network none --name {name} {options} image /bin/sleep 1000 >/dev/null"


def begun(name: str, options: str) -> str:
    return f"{DETACHED.format(name=name, options=options)}\n{look(name)}"


def given(lines: list[str]) -> set[str]:
    """The GPUs whose nodes a container has and can open."""
    return {path for path in opened(lines) if path.startswith("/dev/nvidia") and path[-1].isdigit()}


@pytest.fixture(scope="module")
def seen(patterns: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("podman")
    by_runtime = "--runtime oci-gpu-runtime --env NVIDIA_VISIBLE_DEVICES"
    words = f"{PODMAN_RUN} --rm --env NVIDIA_VISIBLE_DEVICES=any --rootfs {folder}/root /bin/sh -c "
    beside = podman(f"{words} {shlex.quote(LOOK)}", runtime="runc", folder=folder)
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
    }
    try:
        yield docker(patterns["debian"], scripts, {"default-runtime": "simulated-runc"}, settings=COUNTED)
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


def test_all_is_all_or_a_refusal_and_an_end_frees(seen: dict[str, list[str]]) -> None:
    assert "is held by" in " ".join(seen["all"])
    assert len(given(seen["freed"])) == 4
