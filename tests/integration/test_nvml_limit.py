# SPDX-License-Identifier: Apache-2.0
"""NVIDIA_GPU_MEMORY_LIMIT where the kernel counts no memory and the administrator lets NVIDIA's driver hold it.

The simulated node's NVML notes what it is told, and holds nothing.
"""

from __future__ import annotations

import pytest

from tests.gpunode import description
from tests.integration.conftest import Maker
from tests.integration.engines import Installed, on_node, run, start

BY_NVML = "gpu-memory-by = nvml\n"
LIMIT = {"NVIDIA_GPU_MEMORY_LIMIT": "4096"}


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_the_driver_is_told_of_the_containers_own_cgroup(installed: Installed, bundle: Maker, runtime: str) -> None:
    made = bundle("debian").asks("1,5", **LIMIT).runs("/app/cuda")
    script = f": >/run/gpunode-limits\n{start(runtime, made)}\ncat /run/gpunode-limits"
    done = on_node(installed, script, settings=BY_NVML)
    assert done.code == 0, done.err
    cuda, *told = done.out.splitlines()
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
        ((), f"{BY_NVML}gpu-memory = share\ngpu-holders = 2\n", "only the kernel's dmem controller tells its size"),
        (("nvml-errors",), BY_NVML, "cannot limit the memory of the devices (NVML): nvmlInit_v2 gives 999"),
        (("no-nvml",), BY_NVML, "libnvidia-ml is missing"),
    ],
)
def test_without_the_driver_the_container_does_not_start(
    installed: Installed, bundle: Maker, faults: tuple[str, ...], settings: str, why: str
) -> None:
    made = bundle("debian").asks("1", **LIMIT).runs("/bin/echo", "started")
    done = run(installed, "runc", "v2", made, settings=settings, faults=faults)
    assert done.code != 0 and "started" not in done.out
    assert why in done.err


def test_cgroup_v1_is_refused(installed: Installed, bundle: Maker) -> None:
    done = run(installed, "runc", "v1", bundle("debian").asks("1", **LIMIT).runs("/bin/true"), settings=BY_NVML)
    assert done.code != 0 and "this host has cgroup v1" in done.err
