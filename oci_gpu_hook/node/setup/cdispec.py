# SPDX-License-Identifier: Apache-2.0
"""A CDI spec of this host, for GPUs or another vendor's devices: what an engine alone can do.  Pure.

The engine makes the device nodes, opens the device cgroup for them, and starts the hook.  All else that a container
gets the hook gives it, from what the host has at that start: a spec of GPUs or of a vendor has no version, file or
number, which could be another's later, and says whose each node is.  What is beside GPUs (`of_nodes`) needs no hook:
that spec has its files.  Container Device Interface, SPEC.md, 0.5.0 (device names that begin with a digit), 0.6.0 (a
dot in a kind's class), 0.7.0 (additionalGids).
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from oci_gpu_hook.driver.inventory import DriverInventory
from oci_gpu_hook.driver.nodes import DeviceNode
from oci_gpu_hook.node.engines.cdispecs import GPU, MARK, PROGRAM
from oci_gpu_hook.operations import Mount
from oci_gpu_hook.request.words import ALL, NONE, VISIBLE_DEVICES, VOID
from oci_gpu_hook.vendors.vendorhost import VendorState

Nodes = tuple[DeviceNode, ...]
Named = tuple[tuple[str, Nodes], ...]
Edits = dict[str, list[Any]]

VERSION, VERSION_WITH_DOTS = "0.5.0", "0.6.0"
# With additionalGids, which podman before 5 does not know.
VERSION_WITH_GROUPS = "0.7.0"
STAGE = "createRuntime"

# A device's name (SPEC.md, "CDI JSON Specification").
_NAME = re.compile("[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
# An empty one would be the container's for the hook (CVE-2025-23266).  Without SHELL bash looks for its user's.
_HOOK_ENVIRONMENT = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"]


class Hook(NamedTuple):
    """How the spec starts the hook.  path: of the program; config: the administrator's file, "" for the default;
    vendor: its flag, "" for NVIDIA; groups: whether the process gets the groups of nodes that not everybody may open;
    means: see `planning.meanings`.
    """

    path: str
    capabilities: tuple[str, ...]
    config: str = ""
    vendor: str = ""
    groups: bool = True
    means: tuple[tuple[str, str], ...] = ()


def names(inventory: DriverInventory) -> tuple[str, ...]:
    """Each device's name in the spec, by which it is asked for: index, UUID, MIG device; ``all``, and ``none``."""
    found = [name for gpu in inventory.gpus for name in (str(gpu.nvml_index), gpu.uuid)]
    for device in inventory.mig_devices:
        found += ["" if device.number is None else f"{device.gpu}:{device.number}", device.uuid]
    return (*filter(None, found), ALL, NONE)


def nameless(inventory: DriverInventory) -> str:
    """A sentence on the MIG devices that have no name of their own in a spec; "" if all have one."""
    count = len([item for item in inventory.mig_devices if item.number is None and not item.uuid])
    sentence = f"MIG devices that the CDI spec names by 'all' only: {count}; run 'oci-gpu-hook inventory refresh' first"
    return sentence if count else ""


def text(document: dict[str, Any]) -> str:
    """JSON, which is YAML too.  Printable text is not escaped: YAML does not know JSON's pairs of surrogates."""
    written = json.dumps(document, indent=2, ensure_ascii=False)
    return "".join([it if it.isprintable() or it == "\n" else json.dumps(it)[1:-1] for it in written]) + "\n"


def document(
    common: Nodes, devices: Named, hook: Hook, kind: str = GPU, environment: tuple[tuple[str, str], ...] = ()
) -> dict[str, Any]:
    """common: the nodes that every container gets; environment: what else the containers' processes find in theirs."""
    # With this value the hook that is registered for every container does nothing.
    variables = [f"{hook.vendor or VISIBLE_DEVICES}={VOID}"]
    variables += [f"{name}={value}" for name, value in environment]
    shared = _edits(common, groups=hook.groups)
    beside = [(name, tuple([node for node in nodes if node not in common])) for name, nodes in devices]
    own = [(name, _edits(nodes, groups=hook.groups)) for name, nodes in beside]
    has_groups = any(["additionalGids" in edits for edits in (shared, *[edits for _, edits in own])])
    # Engines refuse a device without edits: a vendor may have nothing but files.
    listed = [{"name": name, "containerEdits": edits or {"env": variables}} for name, edits in own]
    least = VERSION_WITH_DOTS if "." in kind.partition("/")[2] else VERSION
    return {
        "cdiVersion": VERSION_WITH_GROUPS if has_groups else least,
        "kind": kind,
        "devices": listed,
        "containerEdits": {"env": variables, **shared, "hooks": [_started(hook)]},
    }


def _started(hook: Hook) -> dict[str, object]:
    arguments = ["--cdi-vendor", hook.vendor] if hook.vendor else ["--cdi", ",".join(hook.capabilities)]
    if hook.means:
        named = [f"{path.removeprefix('/dev/')}={meaning}" for path, meaning in hook.means]
        arguments += ["--cdi-means", ",".join(named)]
    if hook.config:
        arguments += ["--config", hook.config]
    return {
        "hookName": STAGE,
        "path": hook.path,
        "args": [PROGRAM, STAGE, *arguments],
        # No timeout: crun loses the end of a hook that has one, if another ended just before (seen in 1.8 to 1.27).
        "env": _HOOK_ENVIRONMENT,
    }


def of_nodes(kind: str, devices: Named, mounts: tuple[Mount, ...], *, groups: bool) -> dict[str, Any]:
    """A spec of devices that need no hook; mounts: of each."""
    spec = document((), devices, Hook("", (), groups=groups), kind)
    for device in spec["devices"] if mounts else ():
        device["containerEdits"]["mounts"] = [
            {"hostPath": it.source, "containerPath": it.target, "options": [*it.options, "rbind", "rprivate"]}
            for it in mounts
        ]
    # Whose file it is: no other program's is ever replaced.
    return {**spec, "containerEdits": {"env": [f"{MARK}={kind}"]}}


def _edits(nodes: Nodes, *, groups: bool) -> Edits:
    """The nodes by their paths: the engine looks up their numbers when it makes them.  One that not every user may open
    has the host's mode and group, or the runtime's would hold, which is 0666.
    """
    made, gids = [], set()
    for node in nodes:
        item: dict[str, object] = {"path": node.path, "permissions": "rw"}
        if node.mode & 0o6 != 0o6:
            item.update({"fileMode": node.mode, "uid": node.uid, "gid": node.gid})
            gids |= {node.gid} if groups and node.gid else set()
        made.append(item)
    edits: Edits = {"deviceNodes": made, "additionalGids": sorted(gids)}
    return {key: items for key, items in edits.items() if items}


def vendors_names(found: VendorState) -> tuple[str, ...]:
    """The names of a spec's devices: all by which one can be asked for and that CDI's grammar has; and ``all``."""
    called = [name for device in found.devices for name in device.names]
    named = [name for name in called if _NAME.fullmatch(name) and name.lower() not in (ALL, NONE, VOID)]
    # Of a name that two have, the first is meant, as everywhere.
    return (*dict.fromkeys(named), ALL)
