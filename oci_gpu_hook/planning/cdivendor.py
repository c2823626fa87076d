# SPDX-License-Identifier: Apache-2.0
"""A CDI spec of another vendor's devices, and whether the host still has what it says.  Pure.

`cdi` makes the document.  The hook that it starts decides the same plan again (`vendors`), and does what the engine
could not.
"""

from __future__ import annotations

from oci_gpu_hook.planning import cdi, provision, vendorshare
from oci_gpu_hook.request.vendorrequest import VendorRequest
from oci_gpu_hook.request.words import ALL, NONE, VOID

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from oci_gpu_hook.container.layout import Layout
    from oci_gpu_hook.operations.operation import Operation
    from oci_gpu_hook.planning.plan import Provision
    from oci_gpu_hook.vendors.vendorhost import VendorState

# Of a device's name (SPEC.md, "CDI JSON Specification"): it begins and ends with a letter or digit, and may have these
# between.
_BETWEEN = frozenset("_-.:")


def names(found: VendorState) -> tuple[str, ...]:
    """The names of a spec's devices: all by which one can be asked for and that CDI's grammar has; and ``all``."""
    called = [name for device in found.devices.devices for name in device.names]
    # Of a name that two have, the first is meant, as everywhere.
    return (*dict.fromkeys([name for name in called if _is_name(name)]), ALL)


def document(found: VendorState, layout: Layout, hook: cdi.Hook) -> dict[str, object]:
    """The spec of a vendor's devices; layout: of a container that is like the host.

    DriverError if the host lacks what the vendor's file requires.
    """
    devices = tuple([(name, _provision(found, layout, name)) for name in names(found)])
    common = _provision(found, layout, NONE)
    return cdi.document(common, devices, hook, found.inventory.kind, found.inventory.environment)


def asked(nodes: tuple[str, ...], found: VendorState) -> tuple[str, ...]:
    """The indices of the devices whose nodes the engine has made, which does not say by which names it was asked."""
    return tuple([device.names[0] for device, _ in vendorshare.of_nodes(nodes, found)]) or (ALL,)


def misfit(version: str, found: VendorState, operations: Iterable[Operation], targets: Iterable[str]) -> str:
    """Why a spec that an engine has carried out does not fit the host, in a sentence; "" if it does.

    version: of the driver that it was made for; targets: of the mounts that the engine has made.  Not every vendor says
    its driver's version, so each mount that the spec should have said is looked for.
    """
    different = cdi.misfit(version, found.inventory.version)
    if different:
        return different
    there = frozenset(targets)
    edits = [edit for operation in operations for key, edit in operation.cdi_edits() or () if key == "mounts"]
    missing = [edit["hostPath"] for edit in edits if edit["containerPath"] not in there]
    return f"the CDI spec does not have {missing[0]}, which the host has" if missing else ""


def _is_name(text: str) -> bool:
    inner = "".join([letter for letter in text if letter not in _BETWEEN])
    ends = f"{text[:1]}{text[-1:]}"
    return text.isascii() and inner.isalnum() and ends.isalnum() and text.lower() not in (ALL, NONE, VOID)


def _provision(found: VendorState, layout: Layout, name: str) -> Provision:
    """What a container gets for one device."""
    inventory = found.inventory
    request = VendorRequest(inventory.flag, inventory.file, "cdi-spec", (name,))
    return provision.join(layout, inventory.version, (vendorshare.share(layout, request, found),))
