# SPDX-License-Identifier: Apache-2.0
"""What a container has by each way to ask, from docker run to docker exec: exactly the GPUs that were asked for.

The same table by ``--gpus`` with the link alone, and by ``--runtime oci-gpu-runtime``; with that as the daemon's
default-runtime see test_configure.py.  And by Docker's own CDI with a spec of ours, and neither runtime nor link: what
a spec brings, and when its hook refuses a device, is shown with podman (tests/integration/test_cdi.py).
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.docker.dockerd import FOLDER, LOOK, RUNTIME, denied, docker, look, nodes, opened, run, tried, uuid
from tests.integration.engines import version

ALL = list(range(8))
UNKNOWN = (
    "oci-gpu-hook: unknown device '77': this host has indices 0, 1, 2, 3, 4, 5, 6, 7 "
    "(the container's author must ask for one that exists; 'oci-gpu-hook info' lists them)"
)
UNPRIVILEGED = "--user 1000 --cap-drop ALL"


class Case(NamedTuple):
    """One request.

    gpus: with --gpus; env: the same in the environment; given: the GPUs it gets, by index; compute: whether CUDA's
    nodes come with them; mknod: whether the container may make nodes.
    """

    gpus: str
    env: str
    given: list[int]
    compute: bool = True
    mknod: bool = True


def asks(devices: str, options: str = "") -> str:
    return f"--env NVIDIA_VISIBLE_DEVICES={devices} {options}"


CASES = {
    "all": Case("--gpus all", asks("all"), ALL),
    "count": Case("--gpus 2", asks("0,1"), [0, 1]),
    "indices": Case("""--gpus '"device=1,3"'""", asks("1,3"), [1, 3]),
    "uuid": Case(f"--gpus device={uuid(5)}", asks(uuid(5)), [5]),
    "utility": Case(
        """--gpus '"device=1,3","capabilities=utility"'""",
        asks("1,3", "--env NVIDIA_DRIVER_CAPABILITIES=utility"),
        [1, 3],
        compute=False,
    ),
    "cdi": Case("--gpus device=nvidia.com/gpu=2", asks("nvidia.com/gpu=2"), [2]),
    "user": Case(f"{UNPRIVILEGED} --gpus device=6", asks("6", UNPRIVILEGED), [6], mknod=False),
    "read-only": Case("--read-only --gpus device=4", asks("4", "--read-only"), [4]),
    # dockerd passes no variable on, and the image has none.
    "0": Case("--gpus 0", asks("void"), []),
    "nothing": Case("", "", []),
}
CONF = "/etc/oci-gpu-hook.conf"
# What goes wrong in oci-gpu-runtime, by its script and by its Python: how the container is started, and what is told.
FAULTS = {
    "no such runtime": (
        f"sed -i 's,^runtime.*,runtime = /usr/bin/nothing,' {CONF}",
        asks("1"),
        "the setting 'runtime' names /usr/bin/nothing, which is not a program "
        "(the administrator must name one by its absolute path)",
    ),
    "too long": (
        "echo NVIDIA_VISIBLE_DEVICES=1 >/run/env; "
        "for n in $(seq 100); do echo A$n=$(head -c 60000 /dev/zero | tr '\\0' x); done >>/run/env",
        "--env-file /run/env",
        "is larger than 4 MiB",
    ),
}
HOOKS = f"""
name=$(docker run --detach --network none {RUNTIME} --gpus device=1 image)
cat $(find /run -path "*/moby/$name/config.json")
docker rm --force $name >/dev/null
"""
LOOKED = shlex.quote(f"{LOOK}\necho looked\nexec sleep 100000")


def life(options: str) -> str:
    """The shell lines of one container, looked into by itself and by docker exec."""
    return f"""
name=$(docker run --detach --network none {options} image /bin/sh -c {LOOKED})
wait_for "docker logs $name | grep -x looked"
docker logs $name
{look("$name")}
docker rm --force $name >/dev/null
"""


@pytest.fixture(scope="module")
def seen(patterns: dict[str, Path]) -> dict[str, list[str]]:
    scripts = {f"gpus {name}": life(case.gpus) for name, case in CASES.items()}
    scripts["gpus unknown"] = run("--gpus device=77")
    scripts["gpus too many"] = run("--gpus 9")
    scripts |= {f"runtime {name}": life(f"{RUNTIME} {case.env}") for name, case in CASES.items()}
    scripts["runtime unknown"] = run(f"{RUNTIME} {asks('77')}")
    for name, (plant, options, _) in FAULTS.items():
        told = run(f"{RUNTIME} {options}")
        scripts[name] = f"cp -p {CONF} /run/\n{plant}\n{told}\ncp -p /run/oci-gpu-hook.conf {CONF}"
    scripts["both"] = HOOKS
    scripts["left"] = "docker ps --all --quiet; find /run -path '*/moby/*' -name config.json"
    return docker(patterns["debian"], scripts, {"default-runtime": "simulated-runc"})


def has_what_it_asked_for(case: Case, lines: list[str]) -> None:
    given = nodes(case.given, compute=case.compute) if case.given else set()
    assert opened(lines) == given | (tried(case.given) if case.mknod else set()), lines
    assert denied(lines) == (tried(ALL) - tried(case.given) if case.mknod else set()), lines
    if case.given and case.compute:
        assert lines[-1] == f"cuInit 0, {len(case.given)} devices"


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("way", ["gpus", "runtime"])
def test_from_run_to_exec(seen: dict[str, list[str]], way: str, name: str) -> None:
    lines = seen[f"{way} {name}"]
    end = lines.index("looked")
    for by in (lines[:end], lines[end + 1 :]):
        has_what_it_asked_for(CASES[name], by)


def test_more_gpus_than_there_are_is_told_by_their_number(seen: dict[str, list[str]]) -> None:
    said = seen["gpus too many"][0]
    assert "oci-gpu-hook: 9 GPUs are asked for (0 to 8), and this host has 8 (" in said, said


@pytest.mark.parametrize("way", ["gpus", "runtime"])
def test_an_unknown_gpu_is_told_by_docker(seen: dict[str, list[str]], way: str) -> None:
    said, *_, last = seen[f"{way} unknown"]
    assert said.startswith("docker: Error response from daemon: ")
    assert f"exit status 5, stdout: , stderr: {UNKNOWN}" in said
    assert last == "failed"


@pytest.mark.parametrize("name", FAULTS)
def test_what_goes_wrong_is_told_by_docker(seen: dict[str, list[str]], name: str) -> None:
    *lines, last = seen[name]
    (said,) = [line for line in lines if line.startswith("docker: Error response from daemon: ")]
    assert ": oci-gpu-runtime: " in said and FAULTS[name][2] in said
    assert (last, seen["left"]) == ("failed", [])


def test_a_hook_by_gpus_gets_no_second_one(seen: dict[str, list[str]]) -> None:
    hooks = json.loads("".join(seen["both"]))["hooks"]
    paths = [hook["path"] for listed in hooks.values() for hook in listed]
    # One of the others is Docker's network's.
    ours = [path for path in paths if "oci-gpu-hook" in path or "nvidia" in path]
    assert ours == ["/usr/bin/nvidia-container-runtime-hook"], hooks


CONFIGURATION = {"default-runtime": "simulated-runc", "features": {"cdi": True}}
SPEC = "oci-gpu-hook cdi generate --capabilities compute,utility --output /etc/cdi/nvidia.yaml\n"


@pytest.mark.skipif((version(f"{FOLDER}/dockerd") or version("dockerd")) < (25,), reason="Docker 25 knows CDI first")
def test_a_device_of_our_spec(patterns: dict[str, Path]) -> None:
    scripts = {
        "one": run("--device nvidia.com/gpu=2"),
        "two": run("--device nvidia.com/gpu=1 --device nvidia.com/gpu=5"),
        "all": run("--device nvidia.com/gpu=all --user 1000 --cap-drop ALL"),
        "silent": run(""),
        "unknown": run("--device nvidia.com/gpu=77"),
    }
    seen = docker(patterns["debian"], scripts, CONFIGURATION, before=SPEC)
    for name, given in {"one": [2], "two": [1, 5], "silent": []}.items():
        assert opened(seen[name]) == (nodes(given) | tried(given) if given else set()), seen[name]
        assert denied(seen[name]) == tried(ALL) - tried(given), seen[name]
    assert opened(seen["all"]) == nodes(ALL), seen["all"]
    for name, count in (("one", 1), ("two", 2), ("all", 8)):
        assert seen[name][-1] == f"cuInit 0, {count} devices"
    assert "unresolvable CDI devices nvidia.com/gpu=77" in seen["unknown"][0]
