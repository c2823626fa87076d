# SPDX-License-Identifier: Apache-2.0
"""``docker run --device nvidia.com/gpu=2``: Docker's own CDI with a spec of ours, and neither runtime nor link.

Docker knows it since 25.  An older one says that the device is no path, and there the test says so.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.docker.dockerd import FOLDER, denied, docker, nodes, opened, run, tried
from tests.docker.test_options import ALL
from tests.integration.engines import Installed
from tests.integration.test_cdi import BESIDE, FIND, MINORS, more

SINCE = 25
CONFIGURATION = {"default-runtime": "simulated-runc", "features": {"cdi": True}}
SPEC = "oci-gpu-hook cdi generate --capabilities compute,utility --output /etc/cdi/nvidia.yaml\n"


def version() -> int:
    """The first number of dockerd's version."""
    path = f"{FOLDER}:/usr/sbin:{os.environ['PATH']}"
    line = ["env", f"PATH={path}", "dockerd", "--version"]
    said = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    return int(re.findall(r"version (\d+)", said)[0])


def test_a_device_of_our_spec(installed: Installed, patterns: dict[str, Path]) -> None:
    if version() < SINCE:
        pytest.skip(f"Docker {version()} knows no CDI: it came with {SINCE}")
    scripts = {
        "one": run("--device nvidia.com/gpu=2"),
        "two": run("--device nvidia.com/gpu=1 --device nvidia.com/gpu=5"),
        "all": run("--device nvidia.com/gpu=all --user 1000 --cap-drop ALL"),
        "silent": run(""),
        "unknown": run("--device nvidia.com/gpu=77"),
    }
    seen = docker(installed, patterns["debian"], scripts, CONFIGURATION, before=SPEC)
    for name, given in {"one": [2], "two": [1, 5], "silent": []}.items():
        assert opened(seen[name]) == (nodes(given) | tried(given) if given else set()), seen[name]
        assert denied(seen[name]) == tried(ALL) - tried(given), seen[name]
    assert opened(seen["all"]) == nodes(ALL), seen["all"]
    for name, count in (("one", 1), ("two", 2), ("all", 8)):
        assert seen[name][-1] == f"cuInit 0, {count} devices"
    assert "unresolvable CDI devices nvidia.com/gpu=77" in seen["unknown"][0]


def test_a_device_that_is_another_now_is_refused(installed: Installed, patterns: dict[str, Path]) -> None:
    """After GPU 0 and 1 have changed their places: a request for GPU 2 is served all the same."""
    if version() < SINCE:
        pytest.skip(f"Docker {version()} knows no CDI: it came with {SINCE}")
    scripts = {
        "before": run("--device nvidia.com/gpu=0"),
        "after": f"{MINORS}{run('--device nvidia.com/gpu=0')}",
        "another": run("--device nvidia.com/gpu=2"),
    }
    seen = docker(installed, patterns["debian"], scripts, CONFIGURATION, before=SPEC)
    assert [seen[name][-1] for name in ("before", "another")] == ["cuInit 0, 1 devices"] * 2, seen
    assert any("when the CDI spec was written" in line for line in seen["after"]), seen
    assert seen["after"][-1] == "failed", seen


def test_devices_of_other_kinds(installed: Installed, patterns: dict[str, Path], tmp_path: Path) -> None:
    if version() < SINCE:
        pytest.skip(f"Docker {version()} knows no CDI: it came with {SINCE}")
    generate = "".join(
        [f"oci-gpu-hook cdi generate --kind {kind} --output /etc/cdi/{kind}.yaml\n" for kind in (*BESIDE, "management")]
    )
    scripts = {kind: run(f"--device {device}", FIND) for kind, (device, _) in BESIDE.items()}
    scripts["management"] = run("--device management.nvidia.com/gpu=all")
    scripts["none"] = run("--device nvidia.com/gpu=none")
    before, described = SPEC + generate, more(tmp_path)
    seen = docker(installed, patterns["debian"], scripts, CONFIGURATION, before=before, description=described)
    for kind, (_, paths) in BESIDE.items():
        assert seen[kind] == sorted(paths), seen[kind]
    assert opened(seen["management"]) >= nodes(ALL), seen["management"]
    assert not opened(seen["none"]) & {*nodes(ALL, compute=False), *tried(ALL)} - {"/dev/nvidiactl"}, seen["none"]
