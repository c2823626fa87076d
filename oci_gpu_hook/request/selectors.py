# SPDX-License-Identifier: Apache-2.0
"""The names of devices in a request, each brought into one canonical form or refused.  Pure.

Must not know which devices the host has.
"""

from __future__ import annotations

from oci_gpu_hook.errors import RequestError, quoted
from oci_gpu_hook.formats.decimal import decimal

_HEX = frozenset("0123456789abcdef")
_UUID_GROUPS = [8, 4, 4, 4, 12]
# Of MIG-GPU-<uuid>-<share>/<gpu instance>/<compute instance>, and some more.
_LONGEST = 100

_HINT = (
    "the container's author must ask for 'all', 'none', an index, a GPU-<uuid>, a MIG-<uuid>, a MIG device as GPU:MIG, "
    "or a PCI bus id"
)


def canonical(item: str, where: str) -> str:
    """The device name `item` in canonical form, see `Request.devices`; RequestError names `where` it stood."""
    found = ""
    if len(item) <= _LONGEST:
        found = _index(item) or _gpu(item) or _mig(item) or bus_id(item) or _uuid(item)
    if not found:
        raise RequestError(f"unknown device {quoted(item)} in {where}", _HINT)
    return found


def is_mig(selector: str) -> bool:
    """Whether a canonical name, or the path of a device node, is that of a MIG device."""
    # A PCI bus id has more colons than gpu:mig.
    return selector.startswith(("MIG-", "/dev/nvidia-caps/")) or selector.count(":") == 1


def _index(item: str) -> str:
    """``0``, or ``0:1`` for a MIG device."""
    numbers = [decimal(part) for part in item.split(":", 2)]
    return "" if None in numbers or len(numbers) > 2 else ":".join(map(str, numbers))


def _gpu(item: str) -> str:
    """``GPU-<uuid>``; ``GPU-<uuid>-2``, one of several shares of a GPU, names that GPU."""
    if item[:4].lower() != "gpu-":
        return ""
    groups = item[4:].lower().split("-")
    if len(groups) == 6 and decimal(groups[5]) is not None:
        groups.pop()
    return f"GPU-{'-'.join(groups)}" if _is_uuid(groups) else ""


def _uuid(item: str) -> str:
    """A UUID alone, as a Jetson Orin's is."""
    return item.lower() if _is_uuid(item.lower().split("-")) else ""


def _mig(item: str) -> str:
    """``MIG-<uuid>``; before driver R470, ``MIG-GPU-<uuid>/<gpu instance>/<compute instance>``."""
    if item[:4].lower() != "mig-":
        return ""
    name, *instances = item[4:].split("/")
    if not instances:
        groups = name.lower().split("-")
        return f"MIG-{'-'.join(groups)}" if _is_uuid(groups) else ""
    gpu, numbers = _gpu(name), [decimal(part) for part in instances]
    if not gpu or len(numbers) != 2 or None in numbers:
        return ""
    return f"MIG-{gpu}/{numbers[0]}/{numbers[1]}"


def _is_uuid(groups: list[str]) -> bool:
    return [len(group) for group in groups] == _UUID_GROUPS and all([_HEX.issuperset(group) for group in groups])


def bus_id(item: str) -> str:
    """``domain:bus:device.0`` in hexadecimal, with or without leading zeros; NVML prints them all."""
    domain, _, rest = item.lower().partition(":")
    bus, _, rest = rest.partition(":")
    slot, _, function = rest.partition(".")
    parts = ((domain, 8), (bus, 2), (slot, 2), (function, 1))
    if not all([part and len(part) <= size and _HEX.issuperset(part) for part, size in parts]):
        return ""
    return f"{domain.zfill(8)}:{bus.zfill(2)}:{slot.zfill(2)}.{function}"
