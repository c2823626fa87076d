# SPDX-License-Identifier: Apache-2.0
"""The hook by dockerd's entry and by a registration's in one config.json: the job is done once."""

from __future__ import annotations

import pytest

from tests.integration.conftest import Maker
from tests.integration.engines import PROCDRIVER, RUNTIMES, Installed, on_node, start

LINK = "/usr/bin/nvidia-container-runtime-hook"
DOCKERS = {"path": LINK, "args": ["nvidia-container-runtime-hook", "prestart"]}
LOOK = "nvidia-smi -L; /app/cuda; cat /proc/self/mountinfo"


@pytest.mark.parametrize(("runtime", "cgroup"), RUNTIMES)
def test_what_is_done_is_not_done_again(installed: Installed, bundle: Maker, runtime: str, cgroup: str) -> None:
    made = bundle("debian").asks("1,5")
    (_, ours) = installed.hooks()["createRuntime"]
    made.config["hooks"] = {"prestart": [PROCDRIVER, DOCKERS], "createRuntime": [ours]}
    made.runs("/bin/sh", "-c", LOOK)
    link = f"ln -s ../libexec/oci/hooks.d/oci-gpu-hook {LINK}\n"
    out = on_node(link + start(runtime, made), cgroup=cgroup).printed()
    assert out.count("NVIDIA H100") == 2 and "cuInit 0, 2 devices" in out
    for path in ("/etc/ld.so.cache", "/proc/driver/nvidia"):
        assert out.count(f" {path} ") == 1, out
