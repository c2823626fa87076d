# SPDX-License-Identifier: Apache-2.0
"""The simulated GPU node itself: it leaves nothing on the machine.

Each device, file and fault that it simulates has a test of the hook that fails without it.  Must not use the hook; a
fault of the hook and one of its test material must look different.
"""

from __future__ import annotations

import glob
from pathlib import Path
from typing import Any

import pytest

from tests.gpunode.vendors import VENDORS
from tests.integration.engines import on_node

ROOT = "/run/nvidia/driver"

# Where only this node could write, and where everybody does.
QUIET = (
    *("/dev", "/etc", "/usr/bin", "/usr/libexec", "/lib/firmware", "/proc/driver"),
    *("/sys/bus/pci/devices", "/run/nvidia", "/opt", "/sys/module", "/sys/dev/char", "/sys/devices"),
)
BUSY = ("/run", "/tmp", "/var/cache/ldconfig", "/sys/fs/cgroup")


def outside() -> dict[str, Any]:
    """What a node might leave on the machine, as far as anyone could see it."""
    seen: dict[str, Any] = {folder: {*glob.glob(f"{folder}/*")} for folder in QUIET}
    seen |= {folder: {*glob.glob(f"{folder}/nvidia*")} for folder in BUSY}
    cache = Path("/etc/ld.so.cache").stat()
    seen["ld.so.cache"] = (cache.st_ino, cache.st_mtime_ns, cache.st_size)
    seen["libraries"] = {str(path) for path in Path("/usr/lib").glob("**/*nvidia*")}
    seen["libraries"] |= {str(path) for path in Path("/usr/lib").glob("*/libcuda*")}
    seen["devices"] = Path("/proc/devices").read_text()
    lines = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    covered = ("/usr", "/etc", "/dev", "/proc", "/sys", "/run/nv", "/tmp/nv")
    seen["mounts"] = [(line[0], line[4]) for line in lines if line[4].startswith(covered)]
    seen["root mounts"] = [line for line in lines if line[4] in ("/", "/run", "/tmp")]
    return seen


NODES: dict[str, dict[str, Any]] = {
    "host": {"cgroup": "v1"},
    "driver root": {"driver_root": ROOT, "layout": "current", "description": "h100mig"},
    "vendors": {"vendors": tuple(VENDORS)},
}


@pytest.mark.parametrize("how", NODES.values(), ids=NODES)
def test_nothing_shows_outside(how: dict[str, Any]) -> None:
    before = outside()
    left = ("/run/nvidia-left", "/tmp/nvidia-left", "/usr/bin/nvidia-left", "/etc/nvidia-left")
    script = f"touch {' '.join(left)}; ls /run /tmp; grep -q nvidia-uvm /proc/devices"
    assert {"nvidia-left", "nvidia-mps"} <= set(on_node(script, hook=False, **how).printed().split())
    assert outside() == before
