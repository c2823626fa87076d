# SPDX-License-Identifier: Apache-2.0
"""What a container asks of other vendors than NVIDIA: ``OCI_AMD=0`` and its like become a `Request` each.  Pure."""

from __future__ import annotations

from oci_gpu_hook.errors import ConfigError, RequestError, quoted
from oci_gpu_hook.request import selectors, sources
from oci_gpu_hook.request.selectors import KnownVendor, Request
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.request.sources import Inputs, Names
from oci_gpu_hook.request.words import ALL, VENDOR_PREFIX

_LONGEST_NAME = 100
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:-")
_HINT = "the container's author must ask for 'all', 'none', an index, a PCI address or a device's name"


def parse_vendors(
    inputs: Inputs, settings: Settings, known: tuple[KnownVendor, ...], notes: list[str]
) -> tuple[Request, ...]:
    """The requests by flag; RequestError or ConfigError for what can be neither served nor left out."""
    found = []
    for vendor in sorted(known):
        flag = vendor.flag
        names = sources.accepted([_named(inputs, vendor, settings)], inputs, settings, notes, flag)
        if not names.devices:
            continue
        if ALL not in settings.allowed_vendors and flag not in settings.allowed_vendors:
            sources.leave_out(f"{flag} is not allowed", settings, notes)
            continue
        if vendor.fault:
            raise ConfigError(vendor.fault, f"{flag} cannot be served until it is fixed")
        for word in names.devices:
            if len(word) > _LONGEST_NAME or not _LETTERS.issuperset(word):
                raise RequestError(f"unknown device {quoted(word)} in {names.where}", _HINT)
        devices, any_of = selectors.parse_devices(names.devices, names.where, settings, flag)
        found.append(Request(names.source, devices, any_of=any_of, flag=flag, file=vendor.file))
    return tuple(found)


def asks(inputs: Inputs, known: tuple[KnownVendor, ...]) -> bool:
    named = [_named(inputs, vendor).devices for vendor in known]
    return any([names and not sources.is_void(names) for names in named])


def _named(inputs: Inputs, vendor: KnownVendor, settings: Settings | None = None) -> Names:
    if not vendor.flag:
        return sources.NOTHING
    pairs = [item.partition("=") for item in inputs.cdi]
    named = [name for kind, _, name in pairs if kind and kind == vendor.kind and name]
    return sources.place(inputs, named, settings, vendor.flag)


def unknown(inputs: Inputs, known: tuple[KnownVendor, ...]) -> list[str]:
    """A sentence if a variable may be that of a file that cannot be understood; it may be another program's too."""
    faults = {vendor.flag: vendor.fault for vendor in reversed(known)}
    asked = [name for name in inputs.environment if name.startswith(VENDOR_PREFIX) and name not in faults]
    return [f"{quoted(asked[0])} brings nothing: {faults['']}"] if asked and "" in faults else []
