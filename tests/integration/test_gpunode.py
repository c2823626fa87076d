# SPDX-License-Identifier: Apache-2.0
"""The simulated GPU node itself: it hides nothing of the machine, and leaves nothing on it.

Each device, file and fault that it simulates has a test of the hook that fails without it.  Must not use the hook; a
fault of the hook and one of its test material must look different.
"""

from __future__ import annotations

import os
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
    seen: dict[str, Any] = {folder: names(folder) for folder in QUIET}
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


def names(folder: str) -> set[str]:
    return set(os.listdir(folder)) if os.path.isdir(folder) else set()


@pytest.mark.parametrize(
    "how",
    [
        {"cgroup": "v1"},
        {"driver_root": ROOT, "layout": "current", "description": "h100mig"},
        {"vendors": tuple(VENDORS)},
    ],
    ids=["host", "driver root", "vendors"],
)
def test_nothing_is_hidden_and_nothing_shows_outside(how: dict[str, Any], tmp_path: Path) -> None:
    before, busy = outside(), {folder: names(folder) for folder in BUSY}
    script = f"""
        touch /run/nvidia-left /tmp/nvidia-left /usr/bin/nvidia-left /etc/nvidia-left
        for folder in /usr/bin /usr/lib /etc; do ls -A $folder >{tmp_path}/$(basename $folder); done
        for folder in {" ".join(BUSY)}; do ls -A $folder; done
        test -S {how.get("driver_root", "")}/run/nvidia-persistenced/socket
        grep -q nvidia-uvm /proc/devices
    """
    out = on_node(None, script, **how).printed()
    assert outside() == before
    assert {"nvidia-left", "nvidia-mps"} <= set(out.split())
    for folder in ("/usr/bin", "/usr/lib", "/etc"):
        inside = (tmp_path / Path(folder).name).read_text().split("\n")
        assert set(os.listdir(folder)) - set(inside) == set(), folder
    for folder in BUSY:  # others may have come and gone there; ours must not have
        assert not [name for name in names(folder) - busy[folder] if name.startswith("nvidia")]


def test_a_node_with_its_own_network_leaves_the_machines_alone() -> None:
    forwards = Path("/proc/sys/net/ipv4/ip_forward")
    before = forwards.read_text(), sorted(os.listdir("/sys/class/net"))
    script = f"ip link add made type bridge; echo 2 >{forwards}; cat {forwards}; ip -oneline link"
    value, *links = on_node(None, script, booted=True, own_network=True).printed().splitlines()
    assert value == "2"
    assert [line.split()[1] for line in links] == ["lo:", "made:"]
    assert (forwards.read_text(), sorted(os.listdir("/sys/class/net"))) == before
