# SPDX-License-Identifier: Apache-2.0
"""NVIDIA_GPU_MEMORY_LIMIT on a kernel without the dmem controller: refused, or held by NVIDIA's driver if it may be.

The simulated node's NVML notes what it is told, and holds nothing.  `make test-memory` has a kernel that does.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpunode import description
from tests.integration.conftest import Maker
from tests.integration.engines import on_node, run, start
from tests.integration.test_rootless import ENGINES, USER, run_rootless

BY_NVML = "gpu-memory-by = nvml\n"
LIMIT = {"NVIDIA_GPU_MEMORY_LIMIT": "4096"}


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_the_driver_is_told_of_the_containers_own_cgroup(bundle: Maker, runtime: str) -> None:
    made = bundle("debian").asks("1,5", **LIMIT).runs("/app/cuda")
    script = f": >/run/gpunode-limits\n{start(runtime, made)}\ncat /run/gpunode-limits"
    cuda, *told = on_node(script, settings=BY_NVML).printed().splitlines()
    assert cuda == "cuInit 0, 2 devices"
    gpus = description.load("h100x8").gpus
    assert [line.split()[0] for line in told] == [gpus[index].bus_id for index in (1, 5)]
    for line in told:
        _, given, soft, hard = line.split()
        assert given.startswith("/sys/fs/cgroup/") and given.endswith(f"/{made.id}")
        assert (soft, hard) == ("0", str(4 << 30))


@pytest.mark.parametrize(
    ("faults", "settings", "why"),
    [
        ((), "", "this kernel has no dmem controller"),
        ((), f"{BY_NVML}gpu-memory = share\ngpu-holders = 2\n", "need the kernel's dmem controller"),
        (("nvml-errors",), BY_NVML, "cannot limit the memory of the devices (NVML): nvmlInit_v2 gives 999"),
        (("no-nvml",), BY_NVML, "libnvidia-ml is missing"),
    ],
)
def test_without_the_driver_the_container_does_not_start(
    bundle: Maker, faults: tuple[str, ...], settings: str, why: str
) -> None:
    made = bundle("debian").asks("1", **LIMIT).runs("/bin/echo", "started")
    done = run("runc", "v2", made, settings=settings, faults=faults)
    assert done.code != 0 and "started" not in done.out
    assert why in done.err


@pytest.mark.parametrize("runtime", ENGINES)
def test_a_rootless_container_is_refused(patterns: dict[str, Path], runtime: str) -> None:
    """crun has no cgroup there, runc one of the user's, which the user could change."""
    asks = "--env NVIDIA_VISIBLE_DEVICES=1 --env NVIDIA_GPU_MEMORY_LIMIT=4096"
    where = (f"folder {USER} 0755 /run/user-home/own", "/run/user-home/own/root")
    done = run_rootless(patterns["debian"], runtime, asks, "echo started", *where, settings=BY_NVML)
    assert done.code != 0 and "started" not in done.out
    assert "cannot be limited: " in done.out
