# SPDX-License-Identifier: Apache-2.0
"""Findings about Docker: what serves ``docker run --gpus`` and the runtimes that daemon.json names.

Docker reads no hooks.d.  It starts our hook for --gpus by a link of the name that it looks for, and for all other ways
of asking by our runtime.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from oci_gpu_hook.node.diagnosis import Finding, failed, passed, warned
from oci_gpu_hook.node.diagnosis.remedy import command, reinstall, roots_alone, then
from oci_gpu_hook.node.engines import dockerd
from oci_gpu_hook.node.engines.dockerd import LINK, program
from oci_gpu_hook.node.machine import closing
from oci_gpu_hook.vendors import folders

if TYPE_CHECKING:
    from oci_gpu_hook.host.root import HostRoot
    from oci_gpu_hook.node.engines.dockerd import Docker, Runtime

_CHECK = "Docker"
# The boot and a process's start are told in whole seconds each.
_SECONDS_UNKNOWN = 2
_RESTART = command("systemctl", "restart", "docker")
# NVIDIA's packages bring them: with the first comes the program of the link's name, and by the second Docker 29.2 and
# later see that they can serve --gpus by CDI.
_RIVALS = {
    "nvidia-container-toolkit": (
        "nvidia-container-toolkit",
        "is NVIDIA's: its package has a program in the place of our link",
    ),
    "nvidia-cdi-hook": (
        "nvidia-container-toolkit-base",
        "is there: Docker 29.2 and later then try CDI for --gpus before our hook",
    ),
}


def docker(root: HostRoot, found: Docker, entry: str, tool: str) -> list[Finding]:
    """What Docker is served by on this host; entry: the entry script, links resolved."""
    rivals = {name: path for name in _RIVALS if (path := program(root, name, found.folders))}
    findings = []
    if found.leads_to == entry:
        findings.append(_ours(root, found))
        for name, path in rivals.items():
            package, seen = _RIVALS[name]
            findings.append(warned(_CHECK, f"{path} {seen}", tool, "remove", package))
    else:
        findings.append(_not_ours(root, found, bool(rivals), tool))
    runtimes: list[Runtime] = []
    try:
        runtimes = dockerd.runtimes(root, found.file, found.folders)
        findings += _opened_to_others(root, found.file)
    except ValueError as err:
        findings.append(warned(_CHECK, f"{found.file}: {err}", "vi", found.file))
    for runtime in [it for it in (*runtimes, *dockerd.of_users(root)) if it.is_ours]:
        seen = f"{runtime.file} has {runtime.program} as the runtime {runtime.name}"
        seen += ", the default" if runtime.is_default else ""
        if runtime.is_there:
            findings.append(passed(_CHECK, seen))
        else:
            seen += ", and it is not there: containers with it do not start"
            findings.append(failed(_CHECK, seen, reinstall(tool)))
    return findings


def _ours(root: HostRoot, found: Docker) -> Finding:
    placed = 0.0
    with suppress(OSError), closing(root.open(found.program, os.O_PATH | os.O_NOFOLLOW)) as fd:
        # A link's own time, which no package sets.
        placed = os.fstat(fd).st_ctime
    if found.pid and placed > found.began + _SECONDS_UNKNOWN:
        seen = (
            f"dockerd (process {found.pid}) is older than {found.program}: it knows --gpus only if "
            "there was one when it started"
        )
        return warned(_CHECK, seen, _RESTART)
    return passed(_CHECK, f"{found.program} leads to our hook, for 'docker run --gpus'")


def _not_ours(root: HostRoot, found: Docker, has_rivals: bool, tool: str) -> Finding:
    install = then(command(tool, "install", "oci-gpu-hook-docker"), _RESTART)
    if found.program:
        seen = f"'docker run --gpus' starts {found.program}, which is another's"
        if found.leads_to != found.program:
            seen += f": it leads to {found.leads_to}"
        away = ("mv", found.program, f"{found.program}.other")
        if has_rivals:
            away = (tool, "remove", "nvidia-container-toolkit")
        return warned(_CHECK, seen, then(command(*away), install))
    for path in [f"{folder}/{LINK}" for folder in found.folders]:
        if root.link(path) is not None and root.stat(path) is None:
            seen = f"{path} leads nowhere: 'docker run --gpus' starts no container"
            return failed(_CHECK, seen, then(command("rm", path), install))
    return warned(_CHECK, f"there is no {LINK} in dockerd's PATH: 'docker run --gpus' is not served", install)


def _opened_to_others(root: HostRoot, path: str) -> list[Finding]:
    """Whether others than root could decide what dockerd reads, and so could be root."""
    fault = folders.openness(root, path)
    # What others may have written must not become root's.
    remedy = command("rm", path, note="a link: write a file in its place")
    if root.link(path) is None:
        remedy = roots_alone(path.rpartition("/")[0], path)
    return [warned(_CHECK, f"{path}: {fault}, and who writes it is root", remedy)] if fault else []
