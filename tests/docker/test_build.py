# SPDX-License-Identifier: Apache-2.0
"""``docker build``: a step that asks for GPUs has them, and no file by a name of the driver stays in the image.

The classic builder goes by the daemon's default-runtime.  BuildKit does not: it starts the program that dockerd's
environment names as DOCKER_BUILDKIT_RUNC_COMMAND, by ``run``, where dockerd is new enough to ask for that.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docker.dockerd import LINK, LOOK, docker, nodes, opened, tried

VARIABLE = "DOCKER_BUILDKIT_RUNC_COMMAND"
# What RUN printed is a file of the image, as builders show it differently; then what is left of the driver in it.
BUILD = """
mkdir /run/context
cat >/run/context/look <<'END'
{look}
END
cat >/run/context/Dockerfile <<'END'
FROM image
COPY look /look
ENV NVIDIA_VISIBLE_DEVICES=2
RUN /bin/sh /look >/seen
END
docker build --network none --tag built /run/context >/run/build.log 2>&1 || cat /run/build.log
docker run --rm --network none --env NVIDIA_VISIBLE_DEVICES=void built cat /seen
echo left
docker run --rm --network none --env NVIDIA_VISIBLE_DEVICES=void built find / -xdev -type f -name '*nvidia*'
rm -r /run/context
""".replace("{look}", LOOK)


@pytest.fixture(scope="module")
def seen(patterns: dict[str, Path]) -> dict[str, list[str]]:
    scripts = {
        "knows": f"grep -c {VARIABLE} $(command -v dockerd) || :",
        "classic": BUILD,
        "buildkit": "export DOCKER_BUILDKIT=1\n" + BUILD,
    }
    before = f"{LINK}export {VARIABLE}=/usr/bin/oci-gpu-runtime\n"
    return docker(patterns["debian"], scripts, {"default-runtime": "oci-gpu-runtime"}, before=before)


def has_its_gpu(lines: list[str]) -> None:
    assert opened(lines) == {*nodes([2]), *tried([2])}, lines
    assert lines[-2:] == ["cuInit 0, 1 devices", "left"]


def test_the_classic_builder_goes_by_default_runtime(seen: dict[str, list[str]]) -> None:
    has_its_gpu(seen["classic"])


def test_buildkit_goes_by_its_own_variable(seen: dict[str, list[str]]) -> None:
    if seen["knows"] == ["0"]:
        assert opened(seen["buildkit"]) == set(), seen["buildkit"]
        pytest.skip(f"this dockerd does not know {VARIABLE}: its BuildKit starts runc alone")
    has_its_gpu(seen["buildkit"])
