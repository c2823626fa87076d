# SPDX-License-Identifier: Apache-2.0
"""A CDI spec of this host, for GPUs or another vendor's devices: the hook's own plans, as far as a spec can say.  Pure.

The engine makes the device nodes and mounts that the spec lists, and starts the hook, which does the rest of the plan.
`carriedout` says which of the two carries an operation out.
Container Device Interface, SPEC.md, 0.5.0 (device names that begin with a digit), 0.7.0 (additionalGids).
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from oci_gpu_hook.container.layout import GLIBC, Layout, library_folder_32
from oci_gpu_hook.driver.inventory import DriverInventory
from oci_gpu_hook.driver.nodes import DeviceNode
from oci_gpu_hook.node.engines.cdispecs import GPU, MARK, PROGRAM
from oci_gpu_hook.operations import Device, Mount
from oci_gpu_hook.planning import provision, vendorshare
from oci_gpu_hook.planning.carriedout import edits_of
from oci_gpu_hook.planning.plan import Provision
from oci_gpu_hook.request.vendorrequest import VendorRequest
from oci_gpu_hook.request.words import ALL, NONE, VISIBLE_DEVICES, VOID
from oci_gpu_hook.vendors.vendorhost import VendorState

if TYPE_CHECKING:
    from oci_gpu_hook.operations import Operation

Edits = dict[str, list[Any]]


VERSION = "0.5.0"
# With additionalGids, which podman before 5 does not know.
VERSION_WITH_GROUPS = "0.7.0"
STAGE = "createRuntime"

# A device's name (SPEC.md, "CDI JSON Specification").
_NAME = re.compile("[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
# With this value the hook that is registered for every container does nothing.
_NOTHING_MORE = f"={VOID}"
# With an empty one the hook would get the container's (CVE-2025-23266).  Without SHELL, bash looks in the user
# database.
_HOOK_ENVIRONMENT = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "SHELL=/bin/bash"]


class Hook(NamedTuple):
    """How the spec starts the hook.

    path: of the program; capabilities: those that the spec is for; config: the administrator's file, "" for the
    default; vendor: the flag of the vendor whose devices it is for, "" for NVIDIA's; groups: whether the container's
    process gets the groups of nodes that not everybody may open.
    """

    path: str
    capabilities: tuple[str, ...]
    config: str = ""
    vendor: str = ""
    groups: bool = True


def names(inventory: DriverInventory) -> tuple[str, ...]:
    """Each device's name in the spec, by which it is asked for: index, UUID, MIG device; ``all``, and ``none``."""
    gpus = [name for gpu in inventory.gpus for name in (str(gpu.nvml_index), gpu.uuid) if name]
    mig = [
        name
        for device in inventory.mig_devices
        for name in ("" if device.number is None else f"{device.gpu}:{device.number}", device.uuid)
        if name
    ]
    return (*gpus, *mig, ALL, NONE)


def nameless(inventory: DriverInventory) -> str:
    """A sentence on the MIG devices that have no name of their own in a spec; "" if all have one."""
    found = [item for item in inventory.mig_devices if item.number is None and not item.uuid]
    if not found:
        return ""
    devices = f"{len(found)} MIG device{'' if len(found) == 1 else 's'}"
    return f"the CDI spec names {devices} by 'all' only: run 'oci-gpu-hook inventory refresh' first"


def text(document: dict[str, Any]) -> str:
    """A spec as text: JSON, for files of either name, as JSON is YAML too.

    Printable text is not escaped: YAML does not know JSON's pairs of surrogates.
    """
    written = json.dumps(document, indent=2, ensure_ascii=False)
    return "".join([it if it.isprintable() or it == "\n" else json.dumps(it)[1:-1] for it in written]) + "\n"


def document(
    common: Provision,
    devices: tuple[tuple[str, Provision], ...],
    hook: Hook,
    kind: str = GPU,
    environment: tuple[tuple[str, str], ...] = (),
) -> dict[str, object]:
    """The spec; common: what every container gets; devices: names, and what a container gets for each.

    environment: what else the containers' processes find in theirs.
    """
    shared = _edits(common, hook)
    variables = [f"{hook.vendor or VISIBLE_DEVICES}{_NOTHING_MORE}"]
    variables += [f"{name}={value}" for name, value in environment]
    has_groups = "additionalGids" in shared
    listed = []
    for name, given in devices:
        edits = _edits(given, hook)
        has_groups |= "additionalGids" in edits
        own = {key: [item for item in items if item not in shared.get(key, ())] for key, items in edits.items()}
        # Engines refuse a device without edits: a vendor may have nothing but files.
        listed.append({"name": name, "containerEdits": _filled(own) or {"env": variables}})
    return {
        "cdiVersion": VERSION_WITH_GROUPS if has_groups else VERSION,
        "kind": kind,
        "devices": listed,
        "containerEdits": {"env": variables, **shared, "hooks": [_started(hook, common.driver_version)]},
    }


def _started(hook: Hook, version: str) -> dict[str, object]:
    """The spec's hook; version: of the driver that the spec is made for, "" if it has none."""
    arguments = ["--cdi-vendor", hook.vendor] if hook.vendor else ["--cdi", ",".join(hook.capabilities)]
    if hook.config:
        arguments += ["--config", hook.config]
    if version:
        arguments += ["--cdi-driver", version]
    return {
        "hookName": STAGE,
        "path": hook.path,
        "args": [PROGRAM, STAGE, *arguments],
        # No timeout: crun loses the end of a hook that has one, if another ended just before (seen in 1.8 to 1.27).
        "env": _HOOK_ENVIRONMENT,
    }


def of_nodes(
    kind: str, nodes: tuple[tuple[str, DeviceNode], ...], mounts: tuple[Mount, ...], *, groups: bool
) -> dict[str, object]:
    """A spec of devices that need no hook; nodes: each with the name of its device, of which one may have several.

    mounts: what each of them needs.
    """
    named: dict[str, list[Operation]] = {}
    for name, node in nodes:
        number = (node.major, node.minor)
        made = Device(node.path, "c", *number, "rw", node.mode, node.uid, node.gid, "", True, kind)
        named.setdefault(name, []).append(made)
    devices = tuple([(name, Provision("", (), (*made, *mounts), ())) for name, made in named.items()])
    spec = document(Provision("", (), (), ()), devices, Hook("", (), groups=groups), kind)
    # Whose file it is: no other program's is ever replaced.
    return {**spec, "containerEdits": {"env": [f"{MARK}={kind}"]}}


def _edits(provision: Provision, hook: Hook) -> Edits:
    """The part of a provision that a spec can express."""
    edits: Edits = {"deviceNodes": [], "mounts": []}
    for operation in provision.operations:
        for key, edit in edits_of(operation) or ():
            edits[key].append(edit)
    closed = [it for it in provision.operations if isinstance(it, Device) and it.is_closed() and it.gid]
    return _filled({**edits, "additionalGids": sorted({node.gid for node in closed if hook.groups})})


def _filled(edits: Edits) -> Edits:
    return {key: items for key, items in edits.items() if items}


def like_host(folder: str) -> Layout:
    """The layout of a container whose libraries lie where the host has them, in `folder`."""
    return Layout(folder, library_folder_32(folder, GLIBC), None, GLIBC, False, False)


def vendors_names(found: VendorState) -> tuple[str, ...]:
    """The names of a spec's devices: all by which one can be asked for and that CDI's grammar has; and ``all``."""
    called = [name for device in found.devices for name in device.names]
    # Of a name that two have, the first is meant, as everywhere.
    return (
        *dict.fromkeys([name for name in called if _NAME.fullmatch(name) and name.lower() not in (ALL, NONE, VOID)]),
        ALL,
    )


def of_vendor(found: VendorState, layout: Layout, hook: Hook) -> dict[str, object]:
    """The spec of a vendor's devices; layout: of a container that is like the host.

    DriverError if the host lacks what the vendor's file requires.
    """
    devices = tuple([(name, _vendors_provision(found, layout, name)) for name in vendors_names(found)])
    common = _vendors_provision(found, layout, NONE)
    inventory = found.inventory
    return document(common, devices, hook, inventory.kind, inventory.environment)


def _vendors_provision(found: VendorState, layout: Layout, name: str) -> Provision:
    """What a container gets for one device."""
    inventory = found.inventory
    request = VendorRequest(inventory.flag, inventory.file, "cdi-spec", (name,))
    return provision.join(layout, inventory.version, (vendorshare.share(layout, request, found),))
