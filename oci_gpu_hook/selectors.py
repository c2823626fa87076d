# SPDX-License-Identifier: Apache-2.0
"""The words that name devices in a request: comma lists, and one form for each kind of name.  Pure.

A name is brought into its canonical form or refused with a sentence that quotes it and says where it stood.  Must not
know what the host has.
"""

from __future__ import annotations

from oci_gpu_hook.errors import RequestError, quoted

ALL = "all"
NONE = "none"
VOID = "void"

_HEX = frozenset("0123456789abcdef")
_DECIMAL = frozenset("0123456789")
_UUID_GROUPS = [8, 4, 4, 4, 12]
# More digits than any index has: refused, because Python's own limit on digits would be a traceback.
_MOST_DIGITS = 9

_HINT = (
    "the container's author must ask for 'all', 'none', an index, a GPU-<uuid>, a MIG-<uuid>, a MIG device as GPU:MIG, "
    "or a PCI bus id"
)


def items(value: str) -> list[str]:
    """A comma list: entries trimmed, empty ones dropped."""
    return [item for item in [part.strip() for part in value.split(",")] if item]


def device(item: str, where: str) -> str:
    """One device in canonical form; RequestError naming `where` it was asked for."""
    found = _index(item) or _gpu(item) or _mig(item) or _bus_id(item)
    if not found:
        raise RequestError(f"unknown device {quoted(item)} in {where}", _HINT)
    return found


def number(text: str, most: int) -> str:
    """A decimal number from 0 to `most` without leading zeros; "" for anything else."""
    if not text or len(text) > _MOST_DIGITS or not _DECIMAL.issuperset(text):
        return ""
    return str(int(text)) if int(text) <= most else ""


def _index(item: str) -> str:
    """``0``, or ``0:1`` for a MIG device."""
    gpu, colon, mig = item.partition(":")
    gpu, mig = number(gpu, 10**_MOST_DIGITS), number(mig, 10**_MOST_DIGITS)
    if colon:
        return f"{gpu}:{mig}" if gpu and mig else ""
    return gpu


def _gpu(item: str) -> str:
    """``GPU-<uuid>``; with ``-2`` after it, one of several shares of the same GPU, which is that GPU."""
    if item[:4].lower() != "gpu-":
        return ""
    groups = item[4:].lower().split("-")
    if len(groups) == 6 and number(groups[5], 10**_MOST_DIGITS):
        groups.pop()
    return f"GPU-{'-'.join(groups)}" if _is_uuid(groups) else ""


def _mig(item: str) -> str:
    """``MIG-<uuid>``, or as drivers before R470 named it, ``MIG-GPU-<uuid>/<gpu instance>/<compute instance>``."""
    if item[:4].lower() != "mig-":
        return ""
    name, *instances = item[4:].split("/")
    if not instances:
        groups = name.lower().split("-")
        return f"MIG-{'-'.join(groups)}" if _is_uuid(groups) else ""
    gpu, numbers = _gpu(name), [number(part, 10**_MOST_DIGITS) for part in instances]
    if not gpu or len(numbers) != 2 or not all(numbers):
        return ""
    return f"MIG-{gpu}/{numbers[0]}/{numbers[1]}"


def _is_uuid(groups: list[str]) -> bool:
    return [len(group) for group in groups] == _UUID_GROUPS and all(
        [_HEX.issuperset(group) for group in groups]
    )


def _bus_id(item: str) -> str:
    """``domain:bus:device.0`` in hexadecimal, leading zeros optional; the form NVML prints it in."""
    domain, _, rest = item.lower().partition(":")
    bus, _, rest = rest.partition(":")
    slot, _, function = rest.partition(".")
    parts = ((domain, 8), (bus, 2), (slot, 2), (function, 1))
    if not all([part and len(part) <= size and _HEX.issuperset(part) for part, size in parts]):
        return ""
    return f"{domain.zfill(8)}:{bus.zfill(2)}:{slot.zfill(2)}.{function}"
