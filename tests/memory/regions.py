# SPDX-License-Identifier: Apache-2.0
"""The machine's regions of GPU memory, by the names that drivers register, and the module that has them.

Must not be used outside the virtual machine: it loads a kernel module.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.guest.places import MODULE
from tests.integration.inside import gpus

CGROUPS = Path("/sys/fs/cgroup")
MIB = 1 << 20
# NVIDIA's is eight digits, DRM's four.
AMDGPU, XE = "drm/0000:23:00.0/vram", "drm/0000:04:00.0/vram0"
OTHERS = {AMDGPU: 65_520 * MIB, XE: 24_480 * MIB}
# The last GPU has no region: a driver need not register what it does not manage.
WITH_REGION = range(7)
WITHOUT_REGION = 7


def name(index: int) -> str:
    """The region of an NVIDIA GPU by NVML's index."""
    return f"nvidia/0000{gpus()[index]['bus_id']}/vidmem"


def capacity(index: int) -> int:
    """Its bytes."""
    return int(gpus()[index]["memory_mib"]) * MIB


def all_of_them() -> dict[str, int]:
    return {**{name(index): capacity(index) for index in WITH_REGION}, **OTHERS}


def load() -> None:
    """As drivers are loaded at boot."""
    words = [f"{name(index)}@{capacity(index)}@{gpus()[index]['minor']}" for index in WITH_REGION]
    words += [f"{region}@{size}" for region, size in OTHERS.items()]
    subprocess.run(["insmod", f"/{MODULE}", f"regions={','.join(words)}"], check=True)


def end_containers() -> None:
    """What a test that failed has left would hold a GPU."""
    for folder in CGROUPS.glob("lane*"):
        (folder / "cgroup.kill").write_text("1")


def unload() -> None:
    """Which the kernel refuses while a GPU is open."""
    subprocess.run(["rmmod", "regions"], check=True)
