# SPDX-License-Identifier: Apache-2.0
"""``docker run --device nvidia.com/gpu=2``: Docker's own CDI with a spec of ours, and neither runtime nor link.

What a spec of ours brings, and when its hook refuses a device, is shown with podman (tests/integration/test_cdi.py).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docker.dockerd import FOLDER, denied, docker, nodes, opened, run, tried
from tests.docker.test_options import ALL
from tests.integration.engines import version

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
