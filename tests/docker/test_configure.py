# SPDX-License-Identifier: Apache-2.0
"""`configure` before real daemons: dockerd reads what it has written, and so does containerd."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.docker.dockerd import docker, nodes, opened, run, tried
from tests.docker.test_options import CASES, asks, has_what_it_asked_for
from tests.integration.engines import on_node

DAEMON = "/etc/docker/daemon.json"
NVIDIA = "oci-gpu-hook configure docker --name nvidia"
RESTART = "kill $(cat /run/docker.pid); wait_for '! test -e /run/docker.pid'\nstart_dockerd"
DROP_IN = "/etc/containerd/conf.d/99-oci-gpu-hook.toml"
CONFIGURE = "oci-gpu-hook configure containerd --name nvidia --set-as-default"
MAIN = 'version = 2\nimports = ["/etc/containerd/conf.d/*.toml"]'


@pytest.fixture(scope="module")
def seen(patterns: dict[str, Path]) -> dict[str, list[str]]:
    scripts = {
        "before": f"cp {DAEMON} /run/before",
        "written": f"{NVIDIA} --set-as-default 2>&1; reload_dockerd nvidia; {NVIDIA} --set-as-default",
        "daemon.json": f"cat {DAEMON}",
        "by default": run(asks("1,3")),
        "by name": run(f"--runtime nvidia {asks('1,3')}"),
        "silent": run(""),
        "removed": f"{NVIDIA} --remove 2>&1; cmp {DAEMON} /run/before && echo same\n{RESTART}\n"
        "docker info --format '{{.DefaultRuntime}}'",
        "without": run(f"--runtime nvidia {asks('1,3')}", "true"),
        "drop-in": f"""
mkdir -p /etc/containerd
echo '{MAIN}' >/etc/containerd/config.toml
{CONFIGURE} 2>&1
containerd config dump
{CONFIGURE} --remove
""",
        # What the devcontainers CLI (0.89) asks for "hostRequirements": {"gpu": true}, and what it runs then.
        "devcontainers": f"""
ln -s oci-gpu-runtime /usr/bin/nvidia-container-runtime
{NVIDIA} >/dev/null 2>&1
reload_dockerd runc
docker info -f '{{{{.Runtimes.nvidia}}}}'
{run("--runtime simulated-runc --gpus all")}
""",
    }
    return docker(patterns["debian"], scripts, {"debug": False})


def test_docker_reads_what_was_written(seen: dict[str, list[str]]) -> None:
    told = "so that it holds: systemctl reload docker"
    assert seen["written"] == [f"wrote {DAEMON}", told, f"nothing to do in {DAEMON}"]
    values = json.loads("".join(seen["daemon.json"]))
    assert (values["default-runtime"], values["debug"]) == ("nvidia", False)
    for way in ("by default", "by name"):
        has_what_it_asked_for(CASES["indices"], seen[way])
    has_what_it_asked_for(CASES["nothing"], seen["silent"])


def test_docker_is_as_it_was_afterwards(seen: dict[str, list[str]]) -> None:
    *told, same, default = seen["removed"]
    assert told[0] == f"wrote {DAEMON}" and told[-1] == "so that it holds: systemctl restart docker"
    assert (same, default) == ("same", "runc")
    assert re.search("unknown or invalid runtime name: nvidia|[Uu]nknown runtime", seen["without"][0])


def test_containerd_reads_a_drop_in(seen: dict[str, list[str]]) -> None:
    wrote, told, *dump, removed = seen["drop-in"]
    assert (wrote, removed) == (f"wrote {DROP_IN}", f"removed {DROP_IN}")
    assert told == "so that it holds: systemctl restart containerd"
    text = "\n".join(dump)
    (name,) = re.findall(r"default_runtime_name = ['\"](\w+)['\"]", text)
    runtimes = re.findall(r"containerd\.runtimes\.[\"']?(\w+)[\"']?\]", text)
    assert (name, sorted(runtimes)) == ("nvidia", ["nvidia", "runc"])
    assert re.search(r"BinaryName = ['\"]/usr/bin/oci-gpu-runtime['\"]", text)


def test_devcontainers_finds_nvidias_runtime(seen: dict[str, list[str]]) -> None:
    """By the name of a link to ours, which configure has written as it is there."""
    info, *lines = seen["devcontainers"]
    assert "nvidia-container-runtime" in info
    assert opened(lines) == nodes([*range(8)]) | tried([*range(8)]), lines


# user::rw-, user:1000:r--, group::r--, mask::r--, other::---
ENTRIES = "02000000 01000600ffffffff 02000400e8030000 04000400ffffffff 10000400ffffffff 20000000ffffffff"
ACL = f"bytes.fromhex('{ENTRIES}')"


def test_owner_mode_and_acl_are_the_files_own() -> None:
    look = 'python3 -c \'import os; print(os.getxattr("daemon.json", "system.posix_acl_access").hex())\''
    set_acl = f'import os; os.setxattr("daemon.json", "system.posix_acl_access", {ACL})'
    script = f"""rm -rf /etc/docker && mkdir /etc/docker && cd /etc/docker
echo '{{}}' >daemon.json
chown 24:1000 daemon.json && chmod 640 daemon.json
python3 -c "{set_acl.replace('"', chr(92) + '"')}"
show() {{ stat -c '%u %g %a' daemon.json; {look}; }}
show
stat -c %i daemon.json
oci-gpu-hook configure docker --swarm GPU >/dev/null 2>&1
show
stat -c %i daemon.json
"""
    out = on_node(script).printed()
    *before, inode = out.splitlines()[:3]
    *after, other = out.splitlines()[3:]
    assert before == after and before[0] == "24 1000 640" and inode != other
