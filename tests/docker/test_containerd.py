# SPDX-License-Identifier: Apache-2.0
"""containerd without Docker: by ``ctr run --runc-binary``, by the CRI plugin's BinaryName, and by its CDI.

The CRI plugin's settings are the manual's own.  On cgroup v1: crun and the CRI plugin want controllers that v2 may not
have here.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.docker.dockerd import LOOK, denied, docker, nodes, opened, tried
from tests.docker.test_options import ALL, UNKNOWN
from tests.integration.engines import REPOSITORY, Installed

SOCKET = "/run/containerd/containerd.sock"
IMAGE = "docker.io/library/image:latest"
MANUAL = REPOSITORY / "packaging/man/oci-gpu-hook.8.rst"
# What a machine without a registry and without CAP_SYS_RESOURCE needs besides.
OURS = f"""
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{IMAGE}"
  restrict_oom_score_adj = true
"""
START = """
mkdir -p /etc/containerd
cat >/etc/containerd/config.toml <<'END'
{configuration}
END
containerd >/run/containerd.log 2>&1 &
wait_for "ctr plugins ls | grep 'cri .*ok'"
docker save image >/run/image
for namespace in default k8s.io; do ctr --namespace $namespace images import /run/image >/dev/null; done
"""
SPEC = "oci-gpu-hook cdi generate --capabilities compute,utility --output /etc/cdi/nvidia.yaml"
CLIENT = f"python3 {REPOSITORY}/tests/docker/cri.py {SOCKET} {IMAGE}"
ASKS = {
    "env": "NVIDIA_VISIBLE_DEVICES=1,5",
    "silent": "OTHER=1",
    "unknown": "NVIDIA_VISIBLE_DEVICES=77",
}


def configuration() -> str:
    """The CRI plugin's, from the manual's own lines."""
    lines = MANUAL.read_text().splitlines()
    first = next(n for n, line in enumerate(lines) if line.strip().startswith("[plugins."))
    last = next(n for n, line in enumerate(lines) if "BinaryName" in line and n > first)
    cdi = [line for line in lines if line.strip().startswith(("enable_cdi", "cdi_spec_dirs"))]
    return "\n".join(["version = 2", *lines[first : last + 1], OURS, *cdi])


def ctr(runtime: str, name: str) -> str:
    """The shell lines of a container by ctr, whose runtime stands in front of this one."""
    options = f"--rm --runc-binary /usr/bin/oci-gpu-runtime --env {ASKS[name]}"
    return f"""
echo 'runtime = /usr/bin/simulated-{runtime}' >/etc/oci-gpu-hook.conf
ctr run {options} {IMAGE} {runtime}-{name} /bin/sh -c {shlex.quote(LOOK)} 2>&1 || echo failed
"""


def pod(asks: str) -> str:
    """The shell line of a pod with one container."""
    return f"{CLIENT} {asks} -- {shlex.quote(LOOK)} 2>&1 || echo failed"


@pytest.fixture(scope="module")
def seen(installed: Installed, patterns: dict[str, Path]) -> dict[str, list[str]]:
    """What a container sees, by each way in and each request."""
    scripts = {"start": START.format(configuration=configuration())}
    scripts |= {f"cri {name}": pod(asks) for name, asks in ASKS.items()}
    scripts["cdi"] = f"{SPEC}\n{pod('nvidia.com/gpu=1 nvidia.com/gpu=5')}"
    scripts |= {f"{kind} {name}": ctr(kind, name) for kind in ("runc", "crun") for name in ASKS}
    scripts["version"] = "containerd --version"
    return docker(installed, patterns["debian"], scripts, cgroup="v1")


@pytest.mark.parametrize("way", ["runc", "crun", "cri"])
def test_a_container_has_what_it_asked_for(seen: dict[str, list[str]], way: str) -> None:
    lines = seen[f"{way} env"]
    if "unknown version specified" in lines[0]:
        pytest.skip("this crun is older than the containerd that DOCKER_FROM names can use")
    assert opened(lines) == nodes([1, 5]) | tried([1, 5]), lines
    assert denied(lines) == tried(ALL) - tried([1, 5])
    assert lines[-1] == "cuInit 0, 2 devices"
    silent = seen[f"{way} silent"]
    assert denied(silent) == tried(ALL) and opened(silent) == set(), silent


@pytest.mark.parametrize("way", ["runc", "crun", "cri"])
def test_an_unknown_gpu_is_told(seen: dict[str, list[str]], way: str) -> None:
    said, *_, last = seen[f"{way} unknown"]
    assert last == "failed"
    # containerd shows the last line of a runtime's log, and crun's own comes after ours.
    assert way == "crun" or UNKNOWN in said, said


def test_a_pod_has_its_cdi_devices(seen: dict[str, list[str]]) -> None:
    """The spec starts the hook, and oci-gpu-runtime adds no second one."""
    major, minor = map(int, re.findall(r" v?(\d+)\.(\d+)\.", seen["version"][0])[0])
    if (major, minor) < (1, 7):
        pytest.skip(f"containerd {major}.{minor} knows no CDI devices of pods: 1.7 does")
    assert opened(seen["cdi"]) == nodes([1, 5]) | tried([1, 5]), seen["cdi"]
    assert denied(seen["cdi"]) == tried(ALL) - tried([1, 5])
