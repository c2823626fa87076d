# SPDX-License-Identifier: Apache-2.0
"""What a container asks of other vendors than NVIDIA: ``OCI_AMD=0`` and its like become `VendorRequest`s.  Pure.

A vendor's file says which variable and which kind of CDI devices ask for its hardware.  What the administrator allows
holds for them as for NVIDIA's.  Must not know what the host has: `planning.vendorshare` finds what a name means.
"""

from __future__ import annotations

from oci_gpu_hook.errors import ConfigError, RequestError, quoted
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.request import sources
from oci_gpu_hook.request.words import ALL, NONE, VENDOR_PREFIX, VOID, listed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.request.settings import Settings
    from oci_gpu_hook.request.sources import Inputs

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
    and `devices` are paths of nodes.  devices: ``all`` alone; ``none`` alone; else names as they were given.
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
    for vendor in sorted(known, key=lambda vendor: vendor.flag):
        flag = vendor.flag
        source, where, words = _named(inputs, settings, vendor)
        lowered = [word.lower() for word in words]
        if not words or VOID in lowered:
            continue
        why = sources.refusal(inputs, settings, where, flag)
        if why:
            sources.leave_out(f"the request in {where} {why}", settings, notes)
            continue
        for name in sources.swarm_variables(settings, flag) if source == "swarm" else ():
            sources.refuse_count(name, listed(inputs.environment, name))
        if ALL not in settings.allowed_vendors and flag not in settings.allowed_vendors:
            sources.leave_out(f"{flag} is not allowed", settings, notes)
            continue
        if vendor.fault:
            raise ConfigError(vendor.fault, f"{flag} cannot be served until it is fixed")
        for word in words:
            if len(word) > _LONGEST_NAME or not _LETTERS.issuperset(word):
                raise RequestError(f"unknown device {quoted(word)} in {where}", _HINT)
        alone = [word for word in (ALL, NONE) if word in lowered][:1]
        found.append(VendorRequest(flag, vendor.file, source, tuple(alone or dict.fromkeys(words))))
    return tuple(found)


def asks(inputs: Inputs, known: tuple[Known, ...]) -> bool:
    """Whether anything asks for one of these vendors, whatever the administrator accepts; swarm resources apart."""
    named = [
        (vendor.flag and listed(inputs.environment, vendor.flag)) or _in_annotations(inputs, vendor) for vendor in known
    ]
    return any([words and VOID not in [word.lower() for word in words] for words in named])


def _named(inputs: Inputs, settings: Settings, vendor: Known) -> tuple[str, str, list[str]]:
    """Where a container asks for a vendor's devices: the source, the place for people, and the names there."""
    environment = inputs.environment
    if not vendor.flag:
        return "", "", []
    swarm = [name for name in sources.swarm_variables(settings, vendor.flag) if name in environment]
    if swarm:
        named = [word for name in swarm for word in listed(environment, name)]
        return "swarm", ",".join(swarm), named
    words = listed(environment, vendor.flag)
    annotated = _in_annotations(inputs, vendor)
    # A CDI spec of ours sets the flag to void: then the engine has served the annotations.
    if annotated and VOID not in [word.lower() for word in words]:
        return "annotations", f"the annotations {sources.CDI_ANNOTATIONS}*", annotated
    return "env", vendor.flag, words


def _in_annotations(inputs: Inputs, vendor: Known) -> list[str]:
    """The names of a vendor's devices in CDI annotations."""
    pairs = [item.partition("=") for item in sources.cdi_names(inputs)]
    return [name for kind, _, name in pairs if kind and kind == vendor.kind and name]


def unknown(inputs: Inputs, known: tuple[Known, ...]) -> list[str]:
    """A sentence if a variable may be that of a file that cannot be understood; it may be another program's too."""
    broken = [vendor.fault for vendor in known if not vendor.flag]
    flags = {vendor.flag for vendor in known}
    asked = [name for name in inputs.environment if name.startswith(VENDOR_PREFIX) and name not in flags]
    if not broken or not asked:
        return []
    return [f"{quoted(asked[0])} brings nothing: {broken[0]}"]
