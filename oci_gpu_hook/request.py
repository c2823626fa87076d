# SPDX-License-Identifier: Apache-2.0
"""What the container asks for, from its environment: pure.

The grammar is that of NVIDIA's container stack, so that no image and no pod has to change.  A name that this version
does not serve is refused with a sentence, never ignored.  Must not know what the host has: which GPU a selector means
is `plan`'s business.
"""

from __future__ import annotations

from oci_gpu_hook.errors import RequestError, quoted
from oci_gpu_hook.record import NamedTuple

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
DRIVER_CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"

ALL = "all"
NONE = "none"
VOID = "void"

DEFAULT_CAPABILITIES = ("utility", "compute")
SERVED_CAPABILITIES = ("utility", "compute")
KNOWN_CAPABILITIES = ("utility", "compute", "video", "graphics", "display", "ngx", "compat32")

_HEX = frozenset("0123456789abcdef")
_DECIMAL = frozenset("0123456789")


class Request(NamedTuple):
    """One container's request.

    devices: selectors in canonical form, in the order given: ``all`` alone; ``none`` alone (driver files, no GPU);
    a decimal index; ``GPU-<uuid>`` in lower case after the dash; ``00000000:07:00.0``.
    """

    source: str
    devices: tuple[str, ...]
    capabilities: tuple[str, ...]
    requirements: tuple[str, ...] = ()


def parse(environment: dict[str, str]) -> Request | None:
    """The request in a container's environment; None where it asks for no GPU support at all."""
    devices = _devices(environment.get(VISIBLE_DEVICES, ""))
    if not devices:
        return None
    return Request("env", devices, _capabilities(environment.get(DRIVER_CAPABILITIES, "")))


def _items(value: str) -> list[str]:
    """A comma list: entries trimmed, empty ones dropped."""
    return [item for item in [part.strip() for part in value.split(",")] if item]


def _devices(value: str) -> tuple[str, ...]:
    """Selectors; empty where nothing is asked for.

    ``void`` anywhere turns everything off; else the first of ``all`` and ``none`` stands for the whole list.
    """
    items = _items(value)
    words = [item.lower() for item in items]
    if VOID in words:
        return ()
    for word in words:
        if word in (ALL, NONE):
            return (word,)
    return tuple(dict.fromkeys([_selector(item) for item in items]))


def _selector(item: str) -> str:
    """One device in canonical form."""
    if not _DECIMAL.issuperset(item):
        return _uuid(item) or _bus_id(item) or _refused(item)
    # More digits than any index has: refused here, because Python's own limit on digits would be a traceback.
    return str(int(item)) if len(item) <= 9 else _refused(item)


def _refused(item: str) -> str:
    raise RequestError(
        f"unknown device {quoted(item)} in {VISIBLE_DEVICES}",
        "the container's author must ask for 'all', 'none', an index, a GPU-<uuid> or a PCI bus id",
    )


def _uuid(item: str) -> str | None:
    """``GPU-`` and 8-4-4-4-12 hexadecimal digits, in any case."""
    word = item.lower()
    groups = word[4:].split("-")
    if not word.startswith("gpu-") or [len(group) for group in groups] != [8, 4, 4, 4, 12]:
        return None
    return f"GPU-{word[4:]}" if all([_HEX.issuperset(group) for group in groups]) else None


def _bus_id(item: str) -> str | None:
    """``domain:bus:device.0`` in hexadecimal, leading zeros optional; the form NVML prints it in."""
    domain, _, rest = item.lower().partition(":")
    bus, _, rest = rest.partition(":")
    device, _, function = rest.partition(".")
    parts = ((domain, 8), (bus, 2), (device, 2), (function, 1))
    if not all([part and len(part) <= size and _HEX.issuperset(part) for part, size in parts]):
        return None
    return f"{domain.zfill(8)}:{bus.zfill(2)}:{device.zfill(2)}.{function}"


def _capabilities(value: str) -> tuple[str, ...]:
    """Capabilities in `KNOWN_CAPABILITIES`' order; unset and empty mean utility and compute."""
    items = _items(value)
    for item in items:
        if item not in KNOWN_CAPABILITIES and item != ALL:
            raise RequestError(
                f"unknown capability {quoted(item)} in {DRIVER_CAPABILITIES}",
                f"the container's author must choose from {', '.join(KNOWN_CAPABILITIES)} or all",
            )
        if item not in SERVED_CAPABILITIES and item != ALL:
            raise RequestError(
                f"capability '{item}' in {DRIVER_CAPABILITIES} is not served by this version",
                f"the container's author must choose from {', '.join(SERVED_CAPABILITIES)}",
            )
    if not items:
        return DEFAULT_CAPABILITIES
    return tuple([name for name in SERVED_CAPABILITIES if name in items or ALL in items])
