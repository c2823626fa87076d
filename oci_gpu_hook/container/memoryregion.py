# SPDX-License-Identifier: Apache-2.0
"""The memory of devices that the kernel counts: dmem.capacity (Linux 6.14, Documentation/admin-guide/cgroup-v2.rst)."""

from __future__ import annotations

from oci_gpu_hook.container.devicecgroup import CGROUP_ROOT, lines
from oci_gpu_hook.formats.decimal import decimal
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.request.selectors import bus_id

_CAPACITY = "dmem.capacity"
# The driver's name for it: NVIDIA's, amdgpu's and nouveau's, and xe's, which numbers those of one device.
_KINDS = ("vidmem", "vram")
NO_LIMIT = (1 << 64) - 1


class Region(NamedTuple):
    """One region; name: as the kernel compares it, letter for letter; address: as `Gpu.bus_id`; capacity: in bytes."""

    name: str
    address: str
    capacity: int


def read_regions(host: HostRoot) -> tuple[Region, ...] | None:
    """The regions of this host's devices; None if its kernel has no dmem controller."""
    data = host.read(f"{CGROUP_ROOT}/{_CAPACITY}")
    return None if data is None else tuple([it for line in lines(data) if (it := parse_region(line)) is not None])


def parse_region(line: str) -> Region | None:
    """``nvidia/00000000:02:00.0/vidmem 12884901888``; None for what is not a PCI device's own memory."""
    name, _, size = line.rpartition(" ")
    # NVIDIA's driver writes the domain with eight digits, DRM's with four.
    _, _, place = name.partition("/")
    place, _, kind = place.rpartition("/")
    address, capacity = bus_id(place), decimal(size, NO_LIMIT)
    if not address or not capacity or " " in name or kind.rstrip("0123456789") not in _KINDS:
        return None
    return Region(name, address, capacity)


def amounts(text: str) -> dict[str, int]:
    """The bytes of each region in a file such as dmem.max, by its name; `NO_LIMIT` for ``max``."""
    found = {}
    for line in text.split("\n"):
        name, blank, value = line.rpartition(" ")
        number = NO_LIMIT if value == "max" else decimal(value, NO_LIMIT)
        if blank and number is not None:
            found[name] = number
    return found
