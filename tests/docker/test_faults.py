# SPDX-License-Identifier: Apache-2.0
"""What goes wrong around oci-gpu-runtime: one sentence in Docker's own message, no container, and nothing left.

Each fault is a runtime of its own in daemon.json: a script that plants it, and becomes oci-gpu-runtime.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.docker.dockerd import LINK, RUNTIME, RUNTIMES, SETTINGS, docker, nodes, opened, run, tried
from tests.integration.engines import Installed

ASKS = "--env NVIDIA_VISIBLE_DEVICES=1"
# The bundle is the working folder.
PLANTED = {
    "torn": """printf '{"process":{"env":["NVIDIA_VISIBLE_DEVICES=1' >config.json""",
    "link": "mv config.json other && ln -s other config.json",
}
SCRIPT = """
cat >/usr/bin/{name} <<'END'
#!/bin/sh
case " $* " in *" create "*)
exec 2>/dev/null
{planted}
;; esac
exec oci-gpu-runtime "$@"
END
chmod 755 /usr/bin/{name}
"""
BUNDLES = "/run/docker/containerd/daemon/io.containerd.runtime.v2.task/moby"
HOOKS = f"""
name=$(docker run --detach --network none {{options}} image)
cat {BUNDLES}/$name/config.json
docker rm --force $name >/dev/null
"""


@pytest.fixture(scope="module")
def seen(installed: Installed, patterns: dict[str, Path]) -> dict[str, list[str]]:
    """What Docker says to each fault."""
    runtimes = {**RUNTIMES, **{name: {"path": f"/usr/bin/{name}"} for name in PLANTED}}
    before = "".join([SCRIPT.format(name=name, planted=text) for name, text in PLANTED.items()])
    settings = "echo 'runtime = {}' >/etc/oci-gpu-hook.conf\n"
    scripts = {name: run(f"--runtime {name} {ASKS}") for name in PLANTED}
    scripts["no such runtime"] = settings.format("/usr/bin/nothing") + run(f"{RUNTIME} {ASKS}")
    scripts["itself"] = settings.format("/usr/bin/oci-gpu-runtime") + run(f"{RUNTIME} {ASKS}")
    scripts["fixed"] = f"printf '{SETTINGS}' >/etc/oci-gpu-hook.conf\n" + run(f"{RUNTIME} {ASKS}")
    scripts["both"] = HOOKS.format(options=f"{RUNTIME} --gpus device=1")
    scripts["left"] = f"docker ps --all --quiet; ls {BUNDLES}"
    return docker(
        installed,
        patterns["debian"],
        scripts,
        {"runtimes": runtimes, "default-runtime": "simulated-runc"},
        before=LINK + before,
    )


SAYS = {
    "torn": "oci-gpu-runtime: FILE is not JSON: Unterminated string starting at: line 1 column 20 (char 19) "
    "(the container engine or runtime must fix it)",
    "link": "oci-gpu-runtime: cannot open FILE: Too many levels of symbolic links "
    "(the container engine or runtime must fix it)",
    "no such runtime": "oci-gpu-runtime: the setting 'runtime' names /usr/bin/nothing, which is not a program "
    "(the administrator must name one by its absolute path)",
    "itself": "oci-gpu-runtime: the setting 'runtime' names this very script, /usr/bin/oci-gpu-runtime "
    "(the administrator must name the runtime behind it)",
}


@pytest.mark.parametrize("name", SAYS)
def test_docker_tells_its_user(seen: dict[str, list[str]], name: str) -> None:
    said, *_, last = seen[name]
    said = re.sub(r"/\S*/config\.json(\.oci-gpu-runtime-\d+)?", "FILE", said)
    assert said.startswith("docker: Error response from daemon: ")
    # Docker before 28 adds a word.
    assert re.fullmatch(f".*: {re.escape(SAYS[name])}(: unknown\\.)?", said), said
    assert last == "failed"


def test_it_serves_again_when_that_is_mended(seen: dict[str, list[str]]) -> None:
    assert opened(seen["fixed"]) == nodes([1]) | tried([1]), seen["fixed"]


def test_nothing_is_left(seen: dict[str, list[str]]) -> None:
    assert seen["left"] == []


def test_a_hook_by_gpus_gets_no_second_one(seen: dict[str, list[str]]) -> None:
    hooks = json.loads("".join(seen["both"]))["hooks"]
    paths = [hook["path"] for listed in hooks.values() for hook in listed]
    # One of the others is Docker's network's.
    ours = [path for path in paths if "oci-gpu-hook" in path or "nvidia" in path]
    assert ours == ["/usr/bin/nvidia-container-runtime-hook"], hooks
