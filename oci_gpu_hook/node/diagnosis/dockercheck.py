# SPDX-License-Identifier: Apache-2.0
"""Findings about Docker: what serves ``docker run --gpus`` and the runtimes that daemon.json names.

Docker reads no hooks.d: for --gpus it starts our hook by a link of a name that it knows, else our runtime does.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel.descriptors import closing
from oci_gpu_hook.node.diagnosis import Finding, failed, passed, warned
from oci_gpu_hook.node.diagnosis.enginecheck import of_runtimes
from oci_gpu_hook.node.diagnosis.remedy import command, in_words, install, reread, roots_alone, then
from oci_gpu_hook.node.engines import containerdevices, installed
from oci_gpu_hook.node.engines.enginekinds import DOCKER
from oci_gpu_hook.node.engines.installed import PATH, find_program
from oci_gpu_hook.node.machine import processes
from oci_gpu_hook.record import NamedTuple

_CHECK = DOCKER.name
_SNAPS = "/snap/bin/docker"
# dockerd looks for it in its PATH, once, when it starts.
_LINK = "nvidia-container-runtime-hook"
# The boot and a process's start are told in whole seconds each.
_SECONDS_UNKNOWN = 2
_RESTART = reread(DOCKER)
# NVIDIA's: with the first comes a program of the link's name, and by the second Docker 29.2 and later see that they can
# serve --gpus by CDI.  The package of the second takes that of the first with it.
_RIVALS, _THEIR_PACKAGE = ("nvidia-container-toolkit", "nvidia-cdi-hook"), "nvidia-container-toolkit-base"


class Docker(NamedTuple):
    """folders: its PATH; file: of its settings; program: what it finds first of the link's name, "" for nothing;
    leads_to: that without links; pid, began: of the dockerd that runs, in seconds since 1970; 0 for none; settings:
    of its file, None for the fault in it.
    """

    folders: tuple[str, ...]
    file: str
    program: str
    leads_to: str
    pid: int = 0
    began: float = 0.0
    settings: dict[str, Any] | None = None
    fault: str = ""


def find_docker(host: HostRoot) -> Docker | None:
    """Docker on this host, by the first dockerd that root runs on the host itself, else by its program; else None."""
    dockerds = (pid for pid in processes.numbers(host) if processes.program(host, pid) == "dockerd")
    pid, began = next(((pid, began) for pid in dockerds if (began := processes.started(host, pid)) is not None), (0, 0))
    if not pid and not find_program(host, "dockerd", PATH):
        return Docker(PATH, _SNAPS, "", "") if host.stat(_SNAPS) is not None else None
    folders, file = PATH, DOCKER.ours
    if pid:
        variables = dict([item.partition("=")[::2] for item in processes.environment(host, pid)])
        folders = tuple([it for it in variables.get("PATH", ":".join(PATH)).split(":") if it[:1] == "/"])
        words = processes.command_line(host, pid)
        for word, after in zip(words, [*words[1:], ""]):
            option, equals, value = word.partition("=")
            file = (value if equals else after) if option == "--config-file" else file
    found = find_program(host, _LINK, folders)
    docker = Docker(folders, file, found, host.real(found) if found else "", pid, containerdevices.since(host, began))
    try:
        return docker._replace(settings=installed.docker_settings(host, file))
    except ValueError as err:
        return docker._replace(fault=str(err))


def docker(host: HostRoot, found: Docker, entry: str, tool: str) -> list[Finding]:
    """What Docker is served by on this host; entry: the entry script, links resolved."""
    if found.file == _SNAPS:
        seen = "Docker is a snap: it sees no program of this host's, and its containers get no GPU by the hook"
        return [warned(_CHECK, seen, in_words("use another package of Docker, such as docker.io"))]
    rivals = [path for name in _RIVALS if (path := find_program(host, name, found.folders))]
    findings = [_ours(host, found) if found.leads_to == entry else _not_ours(host, found, bool(rivals), tool)]
    if found.leads_to == entry and rivals:
        seen = f"{rivals[0]} is NVIDIA's, which may serve --gpus in the place of our hook"
        findings.append(warned(_CHECK, seen, tool, "remove", _THEIR_PACKAGE))
    if found.settings is None:
        findings.append(warned(_CHECK, f"{found.file}: {found.fault}", "vi", found.file))
    # Who else than root could decide what dockerd reads could be root.
    elif fault := host.openness(found.file):
        # What others may have written must not become root's.
        away = command("rm", found.file, note="a link: write a file in its place")
        remedy = roots_alone(found.file.rpartition("/")[0], found.file) if host.link(found.file) is None else away
        findings.append(warned(_CHECK, f"{found.file}: {fault}, and who writes it is root", remedy))
    runtimes = installed.of_docker(host, found.settings or {}, found.file, found.folders)
    return findings + of_runtimes(_CHECK, [item for item in runtimes if item.program], "containers", tool)


def _ours(host: HostRoot, found: Docker) -> Finding:
    placed = 0.0
    with suppress(OSError), closing(host.open(found.program, os.O_PATH | os.O_NOFOLLOW)) as fd:
        # A link's own time, which no package sets.
        placed = os.fstat(fd).st_ctime
    if found.pid and placed > found.began + _SECONDS_UNKNOWN:
        seen = f"dockerd (process {found.pid}) is older than {found.program}: it knows --gpus only if"
        return warned(_CHECK, f"{seen} there was one when it started", _RESTART)
    return passed(_CHECK, f"{found.program} leads to our hook, for 'docker run --gpus'")


def _not_ours(host: HostRoot, found: Docker, has_rivals: bool, tool: str) -> Finding:
    then_restart = then(install(tool, "oci-gpu-hook-docker"), _RESTART)
    if found.program:
        seen = f"'docker run --gpus' starts {found.leads_to}, which is another's"
        away = (tool, "remove", _THEIR_PACKAGE) if has_rivals else ("mv", found.program, f"{found.program}.other")
        return warned(_CHECK, seen, then(command(*away), then_restart))
    for path in [f"{folder}/{_LINK}" for folder in found.folders]:
        if host.link(path) is not None and host.stat(path) is None:
            seen = f"{path} leads nowhere: 'docker run --gpus' starts no container"
            return failed(_CHECK, seen, then(command("rm", path), then_restart))
    seen = f"there is no {_LINK} in dockerd's PATH: 'docker run --gpus' is not served; Docker 29 names AMD's CDI"
    return warned(_CHECK, seen, then_restart)
