# SPDX-License-Identifier: Apache-2.0
"""What a container asks of other vendors than NVIDIA: ``OCI_AMD=0`` and its like become `VendorRequest`s.  Pure.

A vendor's file says which variable and which kind of CDI devices ask for its hardware.  What the administrator allows
holds for them as for NVIDIA's.  Must not know what the host has: `planning.vendorshare` finds what a name means.
"""

from __future__ import annotations

from oci_gpu_hook.errors import ConfigError, RequestError, quoted
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.request import selectors, sources
from oci_gpu_hook.request.words import ALL, ANY, NONE, VENDOR_PREFIX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.request.settings import Settings
    from oci_gpu_hook.request.sources import Inputs, Names

_LONGEST_NAME = 100
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:-")
_HINT = "the container's author must ask for 'all', 'none', an index, a PCI address or a device's name"


class Known(NamedTuple):
    """One vendor's file, as far as a request needs it.

    flag, kind: see `vendorinventory.Vendor`, "" if the file cannot be understood; fault: why it cannot be served.
    """

    flag: str
    kind: str
    file: str
    fault: str = ""


class VendorRequest(NamedTuple):
    """What is asked of one vendor.

    source: ``env``, ``swarm``, ``annotations``, or ``cdi``: the engine has injected the devices by a CDI spec of ours,
    and `devices` are paths of nodes.  devices: ``all`` alone; ``none`` alone; ``any:2`` alone; else names as
    they were given.
    """

    flag: str
    file: str
    source: str
    devices: tuple[str, ...]


def parse(inputs: Inputs, settings: Settings, known: tuple[Known, ...], notes: list[str]) -> tuple[VendorRequest, ...]:
    """The requests in the order of their flags.

    RequestError or ConfigError for what can be neither served nor left out.
    """
    found = []
    for vendor in sorted([vendor for vendor in known if vendor.flag], key=lambda vendor: vendor.flag):
        flag = vendor.flag
        names = sources.in_swarm(inputs.environment, settings, flag) or _named(inputs, vendor)
        if not names.devices or sources.is_void(names.devices):
            continue
        why = sources.refusal(inputs, settings, names.where, flag)
        if why:
            sources.leave_out(f"the request in {names.where} {why}", settings, notes)
            continue
        sources.refuse_counts(names.where, inputs.environment)
        if ALL not in settings.allowed_vendors and flag not in settings.allowed_vendors:
            sources.leave_out(f"{flag} is not allowed", settings, notes)
            continue
        if vendor.fault:
            raise ConfigError(vendor.fault, f"{flag} cannot be served until it is fixed")
        for word in names.devices:
            if len(word) > _LONGEST_NAME or not _LETTERS.issuperset(word):
                raise RequestError(f"unknown device {quoted(word)} in {names.where}", _HINT)
        lowered = [word.lower() for word in names.devices]
        alone = [word for word in (ALL, NONE) if word in lowered][:1]
        if not alone and any([word.startswith(ANY) for word in lowered]):
            alone = [word for word in [selectors.canonical_any(lowered, names.where, settings)] if word]
        devices = tuple(alone or dict.fromkeys(names.devices))
        found.append(VendorRequest(flag, vendor.file, names.source, devices))
    return tuple(found)


def asks(inputs: Inputs, known: tuple[Known, ...]) -> bool:
    """Whether anything asks for one of these vendors, whatever the administrator accepts; swarm resources apart."""
    named = [_named(inputs, vendor).devices for vendor in known if vendor.flag]
    return any([names and not sources.is_void(names) for names in named])


def _named(inputs: Inputs, vendor: Known) -> Names:
    """Where a container asks for a vendor's devices, swarm resources apart."""
    pairs = [item.partition("=") for item in sources.cdi_names(inputs)]
    annotated = [name for kind, _, name in pairs if kind and kind == vendor.kind and name]
    return sources.in_annotations(inputs, vendor.flag, annotated) or sources.in_variable(inputs, vendor.flag)


def unknown(inputs: Inputs, known: tuple[Known, ...]) -> list[str]:
    """A sentence if a variable may be that of a file that cannot be understood; it may be another program's too."""
    broken = [vendor.fault for vendor in known if not vendor.flag]
    flags = {vendor.flag for vendor in known}
    asked = [name for name in inputs.environment if name.startswith(VENDOR_PREFIX) and name not in flags]
    if not broken or not asked:
        return []
    return [f"{quoted(asked[0])} brings nothing: {broken[0]}"]
