# SPDX-License-Identifier: Apache-2.0
"""What dockerd itself asks for is accepted where environments are not; and what doctor says of that dockerd."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.docker.dockerd import SETTINGS, docker, nodes, opened, run, tried

BY = "--runtime simulated-runc"
IMAGES_OWN = "NVIDIA_VISIBLE_DEVICES=all"
LINK = "/usr/bin/nvidia-container-runtime-hook"
# As nvidia/cuda's base images have it: the last of all variables.
IMAGE = f"docker export other | docker import --change 'ENV {IMAGES_OWN}' - asks >/dev/null"
PLAN = """
name=$(docker run --detach --network none {options} image /bin/sleep 1000)
config=$(find /run -path "*/moby/$name/config.json")
oci-gpu-hook plan --bundle ${{config%/*}} --json | tr -d '\\n'
echo
docker rm --force $name >/dev/null
"""
DOCTOR = "{ oci-gpu-hook doctor --json || :; } | tr -d '\\n'; echo"


def asked(options: str) -> str:
    return run(f"{BY} {options}")


# By options: the GPUs that are given.
CASES = {
    """--gpus '"device=1,5"'""": [1, 5],
    f"--env {IMAGES_OWN} --gpus device=3": [3],
    # 20.10 adds the hook and no variable, and the container's own is the last one.
    f"--env {IMAGES_OWN} --env NVIDIA_DRIVER_CAPABILITIES=utility --gpus 0": [],
    f"--env {IMAGES_OWN}": [],
}

MORE = {"joined": [6], "image": [], "image, asked": [7]}


@pytest.fixture(scope="module")
def seen(patterns: dict[str, Path]) -> dict[str, list[str]]:
    scripts = {options: asked(options) for options in CASES}
    scripts["other"] = f"""
docker run --detach --name other --network none image /bin/sleep 1000 >/dev/null
{IMAGE}
"""
    scripts["joined"] = asked("--gpus device=6").replace("--network none", "--network container:other")
    scripts["image"] = asked("--gpus 0").replace(" image ", " asks ")
    scripts["image, asked"] = asked("--gpus device=7").replace(" image ", " asks ")
    scripts["plan"] = PLAN.format(options=f"{BY} --gpus device=1")
    scripts["plan of none"] = PLAN.format(options=f"{BY} --gpus 0 --env {IMAGES_OWN}")
    scripts["count 0"] = f"""
docker run --detach --network none --name zero {BY} --gpus 0 image /bin/sleep 1000 >/dev/null
{{ oci-gpu-hook doctor --container zero --json || :; }} | tr -d '\\n'; echo
docker rm --force zero >/dev/null
"""
    scripts["doctor"] = DOCTOR
    scripts["doctor, after the link"] = f"sleep 3.2; touch --no-dereference {LINK}; {DOCTOR}"
    settings = f"{SETTINGS}accept-environment = privileged\n"
    return docker(patterns["debian"], scripts, settings=settings)


@pytest.mark.parametrize("name", [*CASES, *MORE])
def test_what_dockerd_asked_for_is_given(seen: dict[str, list[str]], name: str) -> None:
    """Also in the network of another, and with an image that asks."""
    given = {**CASES, **MORE}[name]
    assert opened(seen[name]) == (nodes(given) | tried(given) if given else set()), seen[name]


def test_the_plan_says_the_same(seen: dict[str, list[str]]) -> None:
    assert json.loads(seen["plan"][0])["request"]["devices"] == ["1"]
    none = json.loads(seen["plan of none"][0])
    assert none["request"] is None
    # Newer ones say void themselves.
    assert not none["notes"] or "NVIDIA_VISIBLE_DEVICES is not accepted" in none["notes"][0]


def test_doctor_tells_of_a_count_of_0(seen: dict[str, list[str]]) -> None:
    """As docker-compose 1.29 sends it if a service has no count."""
    findings = json.loads(seen["count 0"][0])["findings"]
    (request,) = [item for item in findings if item["check"] == "request"]
    assert (request["level"], "0 GPUs (--gpus 0)" in request["seen"]) == ("warn", True), request
    assert "count: all" in request["remedy"]


def test_doctor_knows_the_dockerd_that_runs(seen: dict[str, list[str]]) -> None:
    for name, level, said in (
        ("doctor", "pass", f"{LINK} leads to our hook"),
        ("doctor, after the link", "warn", f"is older than {LINK}: it knows --gpus only if"),
    ):
        findings = json.loads(seen[name][0])["findings"]
        (found,) = [item for item in findings if item["check"] == "Docker" and LINK in item["seen"]]
        assert (found["level"], said in found["seen"]) == (level, True), found
