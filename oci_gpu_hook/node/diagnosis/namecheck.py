# SPDX-License-Identifier: Apache-2.0
"""Findings about names and numbers of devices in others' files: Swarm's resources and LXC's configurations.

`configure --swarm` and `flags lxc` write what was true then, and nothing writes it again.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

from oci_gpu_hook.driver.inventory import DriverInventory, with_nodes
from oci_gpu_hook.errors import HookError, RequestError, quoted
from oci_gpu_hook.formats.glob import matches
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.diagnosis import Finding, failed
from oci_gpu_hook.node.diagnosis.remedy import REFRESH, command, in_words, is_name, reread, then
from oci_gpu_hook.node.engines.enginekinds import DOCKER
from oci_gpu_hook.node.engines.installed import MAX_SHARES, RESOURCES
from oci_gpu_hook.node.machine import foreignfile, kernelconfig
from oci_gpu_hook.planning import selection
from oci_gpu_hook.planning.plan import some
from oci_gpu_hook.request.selectors import Request, canonical
from oci_gpu_hook.request.words import ALL, CAPABILITIES, CONTAINER_CLI, DEFAULT_CAPABILITIES, NONE, items

_LXC = "/var/lib/lxc"
_RULE = re.compile(r"lxc\.(cgroup2?)\.devices\.allow\s*=\s*(?:a|c ((?:\d+|\*):(?:\d+|\*)) \w+)\s*")


def resources(file: str, values: dict[str, Any], found: DriverInventory) -> list[Finding]:
    """Swarm's resources in dockerd's settings, of which each must name a GPU or a MIG device of this host."""
    named = values.get(RESOURCES)
    rows = [it.partition("=") for it in named if isinstance(it, str)] if isinstance(named, list) else []
    devices = [(kind, name, uuid) for kind, _, name in rows if (uuid := _uuid(name))]
    divided = {it.gpu for it in found.mig_devices}
    # As `configure --swarm` names them.  One that has no UUID yet may be any.
    here = [gpu.uuid for gpu in found.gpus if gpu.nvml_index not in divided]
    here += [it.uuid for it in found.mig_devices]
    gone = [] if None in here else [(kind, uuid) for kind, _, uuid in devices if uuid not in here]
    if not gone:
        return []
    kind, uuid = gone[0]
    shares = [int(share) + 1 for other, name, uuid in devices if other == kind and (share := name[len(uuid) + 1 :])]
    words = ["--swarm", kind, *([f"--shares={max(shares)}"] if shares else [])]
    again = command("oci-gpu-hook", "configure", "docker", *words)
    if not is_name(kind) or max(shares, default=0) > MAX_SHARES or file != DOCKER.ours:
        again = command("vi", file)
    seen = f"{file} gives {uuid} to Swarm's tasks, and they cannot have it here"
    return [failed("Docker", seen, then(REFRESH, again, reread(DOCKER)))]


def _uuid(name: str) -> str:
    """The UUID in a resource's name, of a share too; "" for any other resource."""
    with suppress(RequestError):
        found = canonical(name, "")
        return found if found.startswith(("GPU-", "MIG-")) and "/" not in found else ""
    return ""


def configurations(host: HostRoot, found: DriverInventory) -> list[Finding]:
    """LXC's configurations with lines of `flags lxc`: their rules must be for the numbers that the nodes have now."""
    findings: list[Finding] = []
    version = "cgroup2" if kernelconfig.cgroup_version(host) == "v2" else "cgroup"
    paths = [f"{_LXC}/{name}/config" for name in host.names(_LXC)]
    for path in [path for path in paths if not host.openness(path)]:
        lines = (foreignfile.read_file(host, path) or b"").decode("utf-8", "replace").splitlines()
        words = [line.split() for line in lines if line.startswith("lxc.hook.mount") and CONTAINER_CLI in line]
        hooks = [dict([word.strip("'\"").partition("=")[::2] for word in hook if "--" in word]) for hook in words]
        hooks = [options for options in hooks if options.get("--device")]
        if hooks:
            rules = [match.groups() for line in lines if (match := _RULE.fullmatch(line))]
            allowed = [numbers or "*" for group, numbers in rules if group == version]
            findings += _configuration(host, path, hooks[-1], allowed, found)
    return findings


def _configuration(
    host: HostRoot, path: str, options: dict[str, str], allowed: list[str], found: DriverInventory
) -> list[Finding]:
    """options: of its hook, each with its value; allowed: patterns of ``MAJOR:MINOR``."""
    capabilities = tuple([name for name in CAPABILITIES if f"--{name}" in options])
    try:
        names = tuple([it if it in (ALL, NONE) else canonical(it, path) for it in items(options["--device"])])
        request = Request("cli", names or (NONE,), capabilities)
        selected = selection.select(request, found)
        wanted = selection.nodes(request, selected, with_nodes(host, found, selection.families(request)))
    except HookError as err:
        return [failed("LXC", f"{path}: {err.message}", in_words(err.hint))]
    closed = [it for it, _ in wanted if not any([matches(rule, f"{it.major}:{it.minor}") for rule in allowed])]
    if not allowed or not closed:
        return []
    node = closed[0]
    seen = f"{path} has no rule for {some([it.path for it in closed], most=1)}, now device {node.major}:{node.minor}"
    if set(capabilities) == set(DEFAULT_CAPABILITIES):
        return [failed("LXC", seen, command("oci-gpu-hook", "flags", "lxc", "--write", path, *names))]
    # Those that it has were changed by hand since.
    again = command("oci-gpu-hook", "flags", "lxc", *names, note=f"replace the rules in {quoted(path)} by these")
    return [failed("LXC", seen, again)]
