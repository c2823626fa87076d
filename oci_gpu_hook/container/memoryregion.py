# SPDX-License-Identifier: Apache-2.0
"""The memory of devices that the kernel counts: dmem.capacity (Linux 6.14, Documentation/admin-guide/cgroup-v2.rst)."""

from __future__ import annotations

from oci_gpu_hook.container.devicecgroup import CGROUP_ROOT
from oci_gpu_hook.formats.decimal import decimal
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.request.selectors import bus_id

# The driver's name for it: NVIDIA's, amdgpu's and nouveau's, and xe's, which numbers those of one device.
_KINDS = ("vidmem", "vram")
NO_LIMIT = (1 << 64) - 1


def read_regions(host: HostRoot) -> dict[str, dict[str, int]] | None:
    """The capacities of this host's, as `by_device`; None if its kernel has no dmem controller."""
    data = host.read(f"{CGROUP_ROOT}/dmem.capacity")
    if data is None:
        return None
    # A line that is cut off says less than there is; a region without an end is none of a device.
    text = data.rpartition(b"\n")[0].decode(errors="replace")
    return by_device({name: size for name, size in amounts(text).items() if 0 < size < NO_LIMIT})


def by_device(regions: dict[str, int]) -> dict[str, dict[str, int]]:
    """What `amounts` gives, by the address of the device (as `Gpu.bus_id`); of PCI devices' own memory alone."""
    found: dict[str, dict[str, int]] = {}
    for name, amount in regions.items():
        # ``nvidia/00000000:02:00.0/vidmem``, ``drm/0000:02:00.0/vram1``: DRM writes the domain with four digits.
        place, _, kind = name.partition("/")[2].rpartition("/")
        address = bus_id(place)
        if address and " " not in name and kind.rstrip("0123456789") in _KINDS:
            found.setdefault(address, {})[name] = amount
    return found


def amounts(text: str) -> dict[str, int]:
    """The bytes of each region in a file such as dmem.max, by its name; `NO_LIMIT` for ``max``."""
    found = {}
    for line in text.split("\n"):
        name, _, value = line.rpartition(" ")
        number = NO_LIMIT if value == "max" else decimal(value, NO_LIMIT)
        if name and number is not None:
            found[name] = number
    return found
