# SPDX-License-Identifier: Apache-2.0
"""A request, and the names of devices in it, each in canonical form or refused.  Pure: knows no host."""

from __future__ import annotations

from oci_gpu_hook.errors import RequestError, quoted
from oci_gpu_hook.formats.decimal import decimal
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.request.words import ADMINISTRATOR, ALL, ANY, NONE

_HEX = frozenset("0123456789abcdef")
UUID_GROUPS = [8, 4, 4, 4, 12]
_LONGEST = 100  # of MIG-GPU-<uuid>-<share>/<gpu instance>/<compute instance>, and some more
_MARKS = dict.fromkeys(map(ord, ".+-"))  # of a MIG profile, such as 1g.10gb+me
_MAX_OF_ANY = 1024  # a driver knows fewer GPUs and MIG devices
_NAMES = "'all', 'none', an index, a GPU-<uuid>, a MIG-<uuid>, a MIG device as GPU:MIG, or a PCI bus id"


class AnyOf(NamedTuple):
    """``any:2:1g.10gb``: how many devices the node is to choose, and of which MIG profile, "" for whole GPUs."""

    number: int
    profile: str = ""

    def written(self) -> str:
        return f"{ANY}:{self.number}" + (f":{self.profile}" if self.profile else "")


class Request(NamedTuple):
    """One container's request.  source: ``env``, ``swarm``, ``mounts``, ``annotations``, ``cli`` for words of
    nvidia-container-cli; or of `nodes`: ``cdi``, if a CDI spec of ours has brought them, ``devices``, if a user has.

    devices: canonical, in the order given: ``all``, ``none`` (driver files, no GPU), each alone; an index, a
    ``GPU-<uuid>``, ``00000000:07:00.0``; ``0:1``, ``MIG-<uuid>`` and ``MIG-GPU-<uuid>/1/0`` for MIG devices.
    nodes: in their place, the paths of nodes that the engine has made; any_of: in their place, what the node chooses.
    imex_channels: ``all`` alone, or numbers; features: of `FEATURES`; vendors: of others, with flag, file, and names as
    given: if that is all, `devices` and `capabilities` are empty; memory_limit, memory_request: in bytes, see `memory`.
    """

    source: str
    devices: tuple[str, ...]
    capabilities: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    mig_config: bool = False
    mig_monitor: bool = False
    imex_channels: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    jetpack_all: bool = False
    vendors: tuple[Request, ...] = ()
    memory_limit: int = 0
    memory_request: int = 0
    nodes: tuple[str, ...] = ()
    any_of: AnyOf | None = None
    flag: str = ""
    file: str = ""

    def words(self) -> tuple[str, ...]:
        return (self.any_of.written(),) if self.any_of else (*self.devices, *self.nodes)

    def asked(self) -> tuple[str, ...]:
        return (*self.words(), *[f"{item.flag}={name}" for item in self.vendors for name in item.words()])


class KnownVendor(NamedTuple):
    """One vendor's file; flag, kind: "" if it cannot be understood; fault: why it cannot be served."""

    flag: str
    kind: str
    file: str
    fault: str = ""


def parse_devices(
    items: tuple[str, ...], where: str, settings: Settings, flag: str = ""
) -> tuple[tuple[str, ...], AnyOf | None]:
    """`Request.devices` and `Request.any_of`; flag: of another vendor, whose devices' names stay as they are."""
    if alone := [word for item in items if (word := item.lower()) in (ALL, NONE)]:
        return (alone[0],), None
    if choice := any_of(items, where, settings):
        return (), choice
    return tuple(dict.fromkeys(items if flag else [canonical(item, where) for item in items])), None


def any_of(items: tuple[str, ...], where: str, settings: Settings) -> AnyOf | None:
    """What these leave to the node; None if devices are named.  RequestError if it is wrong, or none counts holders."""
    asked = [word.split(":") for item in items if (word := item.lower()).partition(":")[0] == ANY]
    if not asked:
        return None
    _, *rest = asked[0]
    # ``any:1g.10gb`` is one of that profile.
    if not rest or not rest[0].lstrip("-").isdecimal():
        rest = ["1", *rest]
    count, profile = decimal(rest[0], _MAX_OF_ANY), rest[1:]
    if len(items) > 1 or not count or len(profile) > 1 or not all(map(_is_profile, profile)):
        hint = "the container's author must ask for any, any:COUNT, any:PROFILE or any:COUNT:PROFILE alone"
        raise RequestError(f"{quoted(','.join(items).lower())} in {where} is not a number of devices to choose", hint)
    if not settings.gpu_holders:
        raise RequestError(f"{where} asks for 'any', and no holders are counted: gpu-holders is not set", ADMINISTRATOR)
    return AnyOf(count, "".join(profile))


def _is_profile(word: str) -> bool:
    return len(word) <= _LONGEST and word.isascii() and word.translate(_MARKS).isalnum()


def canonical(item: str, where: str) -> str:
    """The device name `item` in canonical form, see `Request.devices`; RequestError names `where` it stood."""
    found = len(item) <= _LONGEST and (_index(item) or _uuid(item) or _instance(item) or bus_id(item))
    if not found:
        raise RequestError(f"unknown device {quoted(item)} in {where}", f"the container's author must ask for {_NAMES}")
    return found


def is_mig(selector: str) -> bool:
    """Whether a canonical name, or the path of a device node, is that of a MIG device."""
    # A PCI bus id has more colons than gpu:mig.
    return selector.startswith(("MIG-", "/dev/nvidia-caps/")) or selector.count(":") == 1


def _index(item: str) -> str:
    """``0``, or ``0:1`` for a MIG device."""
    numbers = [decimal(part) for part in item.split(":", 2)]
    return "" if None in numbers or len(numbers) > 2 else ":".join(map(str, numbers))


def _uuid(item: str) -> str:
    """``GPU-<uuid>``, which ``GPU-<uuid>-2``, a share of it, names too; ``MIG-<uuid>``; or a UUID alone, as Orin's."""
    kind = item[:4].upper() if item[:4].lower() in ("gpu-", "mig-") else ""
    groups = item[len(kind) :].lower().split("-")
    if kind == "GPU-" and len(groups) == 6 and decimal(groups[5]) is not None:
        groups.pop()
    is_uuid = [len(group) for group in groups] == UUID_GROUPS and all([_HEX.issuperset(group) for group in groups])
    return f"{kind}{'-'.join(groups)}" if is_uuid else ""


def _instance(item: str) -> str:
    """``MIG-GPU-<uuid>/<gpu instance>/<compute instance>``, as before driver R470."""
    name, *instances = item.split("/")
    gpu, numbers = _uuid(name[4:]), [decimal(part) for part in instances]
    is_one = name[:4].lower() == "mig-" and gpu.startswith("GPU-") and len(numbers) == 2 and None not in numbers
    return f"MIG-{gpu}/{numbers[0]}/{numbers[1]}" if is_one else ""


def bus_id(item: str) -> str:
    """``domain:bus:device.0`` in hexadecimal, with or without leading zeros; NVML prints them all."""
    domain, _, rest = item.lower().partition(":")
    bus, _, rest = rest.partition(":")
    slot, _, function = rest.partition(".")
    parts = ((domain, 8), (bus, 2), (slot, 2), (function, 1))
    if not all([part and len(part) <= size and _HEX.issuperset(part) for part, size in parts]):
        return ""
    return f"{domain.zfill(8)}:{bus.zfill(2)}:{slot.zfill(2)}.{function}"
