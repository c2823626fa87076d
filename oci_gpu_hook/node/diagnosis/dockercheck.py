# SPDX-License-Identifier: Apache-2.0
"""Findings about Docker: what serves ``docker run --gpus`` and the runtimes that daemon.json names.  Pure.

Docker reads no hooks.d.  It starts our hook for --gpus by a link of the name that it looks for, and for all other ways
of asking by our runtime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oci_gpu_hook.node.diagnosis import FAIL, PASS, WARN, Finding
from oci_gpu_hook.node.diagnosis.enginecheck import REINSTALL
from oci_gpu_hook.node.diagnosis.remedy import command, then
from oci_gpu_hook.node.diagnosis.systemcheck import roots_alone
from oci_gpu_hook.node.engines.dockerd import CDI_HOOK, LINK, OPEN

if TYPE_CHECKING:
    from oci_gpu_hook.node.engines.dockerd import Docker, Runtime, Settings

_CHECK = "Docker"
# The boot and a process's start are told in whole seconds each.
_SECONDS_UNKNOWN = 2
_RESTART = command("systemctl", "restart", "docker")


def is_ours(found: Docker, entry: str) -> bool:
    """Whether dockerd would start our hook for --gpus; `entry`: the entry script, links resolved."""
    return bool(found.program) and found.leads_to == entry


def docker(found: Docker, entry: str, tool: str) -> list[Finding]:
    """What Docker is served by on this host."""
    served = _ours(found) if is_ours(found, entry) else _not_ours(found, tool)
    return [
        served,
        *[_rival(path, tool) for path in found.rivals if is_ours(found, entry)],
        *_settings(found.settings),
        *_runtimes((*found.settings.runtimes, *found.of_users), tool),
    ]


def _ours(found: Docker) -> Finding:
    daemon = found.daemon
    if daemon is not None and found.placed > daemon.began + _SECONDS_UNKNOWN:
        seen = (
            f"dockerd (process {daemon.pid}) is older than {found.program}: it knows --gpus only if "
            "there was one when it started"
        )
        return Finding(_CHECK, WARN, seen, _RESTART)
    return Finding(_CHECK, PASS, f"{found.program} leads to our hook, for 'docker run --gpus'")


def _not_ours(found: Docker, tool: str) -> Finding:
    install = then(command(tool, "install", "oci-gpu-hook-docker"), _RESTART)
    if found.program:
        seen = f"'docker run --gpus' starts {found.program}, which is another's"
        if found.leads_to != found.program:
            seen += f": it leads to {found.leads_to}"
        away = command("mv", found.program, f"{found.program}.other")
        if found.rivals:
            away = command(tool, "remove", "nvidia-container-toolkit")
        return Finding(_CHECK, WARN, seen, then(away, install))
    if found.lost:
        seen = f"{found.lost} leads nowhere: 'docker run --gpus' starts no container"
        return Finding(_CHECK, FAIL, seen, then(command("rm", found.lost), install))
    seen = f"there is no {LINK} in dockerd's PATH: 'docker run --gpus' is not served"
    return Finding(_CHECK, WARN, seen, install)


def _rival(path: str, tool: str) -> Finding:
    if path.endswith(f"/{CDI_HOOK}"):
        seen = f"{path} is there: Docker 29.2 and later then try CDI for --gpus before our hook"
        return Finding(_CHECK, WARN, seen, command(tool, "remove", "nvidia-container-toolkit-base"))
    seen = f"{path} is NVIDIA's: its package has a program in the place of our link"
    return Finding(_CHECK, WARN, seen, command(tool, "remove", "nvidia-container-toolkit"))


def _settings(found: Settings) -> list[Finding]:
    path = found.path
    if not found.fault:
        return []
    if not found.danger:
        return [Finding(_CHECK, WARN, f"{path}: {found.fault}", command("vi", path))]
    seen = f"{path}: {found.fault}, and who writes it is root"
    # What others may have written must not become root's.
    remedy = command("rm", path, note="a link: write a file in its place")
    if found.danger == OPEN:
        remedy = roots_alone(path.rpartition("/")[0], path)
    return [Finding(_CHECK, WARN, seen, remedy)]


def _runtimes(runtimes: tuple[Runtime, ...], tool: str) -> list[Finding]:
    findings = []
    for runtime in [runtime for runtime in runtimes if runtime.is_ours]:
        named = f"{runtime.file} has {runtime.program} as the runtime {runtime.name}"
        named += ", the default" if runtime.is_default else ""
        if runtime.is_there:
            findings.append(Finding(_CHECK, PASS, named))
        else:
            seen = f"{named}, and it is not there: containers with it do not start"
            findings.append(Finding(_CHECK, FAIL, seen, REINSTALL[tool]))
    return findings
