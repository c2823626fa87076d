# SPDX-License-Identifier: Apache-2.0
"""Findings about names and numbers of devices in others' files: Swarm's resources and LXC's configurations.

`swarm resources` and `flags lxc` print what was true then, and nothing writes it again.
"""

from __future__ import annotations

import re
from typing import Any

from oci_gpu_hook.driver.inventory import DriverInventory, with_nodes
from oci_gpu_hook.errors import HookError, plain
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.diagnosis import Finding, failed, listed, passed
from oci_gpu_hook.node.diagnosis.remedy import REFRESH, command, is_name, then
from oci_gpu_hook.node.machine import untrusted
from oci_gpu_hook.planning import selection
from oci_gpu_hook.request.parse import Request
from oci_gpu_hook.request.words import CAPABILITIES, items
from oci_gpu_hook.vendors.folders import openness

_RESOURCES = "node-generic-resources"
# A device, and the number of its share.
_RESOURCE = re.compile(r"([^=]+)=((GPU|MIG)-[0-9a-f-]{36})(?:-([0-9]{1,3}))?", re.IGNORECASE)
_LXC = "/var/lib/lxc"
_HOOK = re.compile(r"^lxc\.hook\.mount\s*=.*\bnvidia-container-cli (.*--device=([^\s'\"]+).*)$", re.MULTILINE)
_RULE = re.compile(r"^lxc\.cgroup2?\.devices\.allow\s*=\s*c (\d+):(\d+|\*) rw", re.MULTILINE)


def resources(file: str, values: dict[str, Any], found: DriverInventory) -> list[Finding]:
    """Swarm's resources in dockerd's settings, of which each must name a GPU or a MIG device of this host."""
    named = values.get(_RESOURCES)
    matches = [_RESOURCE.fullmatch(it) for it in named if isinstance(it, str)] if isinstance(named, list) else []
    rows = [match.groups() for match in matches if match]
    uuids = {"GPU": [gpu.uuid for gpu in found.gpus], "MIG": [it.uuid for it in found.mig_devices]}
    # One that has no UUID yet may be any.
    gone = [(kind, uuid) for kind, uuid, what, _ in rows if uuid not in uuids[what] and None not in uuids[what]]
    if not rows:
        return []
    if not gone:
        return [passed("Docker", f"{file} gives Swarm's tasks what this host has: {listed([it[1] for it in rows], 1)}")]
    kind = gone[0][0]
    shares = [int(share) + 1 for name, _, _, share in rows if name == kind and share]
    words = ["swarm", "resources", *(["--name", kind] if is_name(kind) and kind != "GPU" else [])]
    words += [f"--shares={max(shares)}"] if shares else []
    seen = f"{file} gives {gone[0][1]} to Swarm's tasks, which this host does not have"
    again = command("oci-gpu-hook", *words, "--write", file)
    return [failed("Docker", seen, then(REFRESH, again, command("systemctl", "restart", "docker")))]


def configurations(root: HostRoot, found: DriverInventory) -> list[Finding]:
    """LXC's configurations with lines of `flags lxc`: their rules must be for the numbers that the nodes have now."""
    findings = []
    paths = [f"{_LXC}/{name}/config" for name in root.names(_LXC)]
    for path in [path for path in paths if not openness(root, path)]:
        text = (untrusted.read_file(root, path) or b"").decode("utf-8", "replace")
        if match := _HOOK.search(text):
            findings.append(_configuration(root, path, text, match, found))
    return findings


def _configuration(root: HostRoot, path: str, text: str, hook: re.Match[str], found: DriverInventory) -> Finding:
    words, names = re.findall(r"--(\w+)", hook[1]), tuple(items(hook[2]))
    request = Request("cli", names, tuple([name for name in CAPABILITIES if name in words]))
    allowed = {(int(major), minor) for major, minor in _RULE.findall(text)}
    again = command("oci-gpu-hook", "flags", "lxc", *names, note=f"put these lines into {path}")
    try:
        selected = selection.select(request, found)
        wanted = selection.nodes(request, selected, with_nodes(root, found, selection.families(request)))
    except HookError as err:
        return failed("LXC", f"{path}: {plain(err.message)}", again)
    closed = [node for node, _ in wanted if not {(node.major, str(node.minor)), (node.major, "*")} & allowed]
    if closed and allowed:
        node = closed[0]
        seen = f"{path} has no rule for {listed([it.path for it in closed], 1)}, now device {node.major}:{node.minor}"
        return failed("LXC", seen, again)
    return passed("LXC", f"{path} has rules for the nodes of {','.join(names)}")
