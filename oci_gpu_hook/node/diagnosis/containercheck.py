# SPDX-License-Identifier: Apache-2.0
"""Findings about one running container: what it has, compared with the hook's plan for it.  Pure.

So whatever the hook learns to give is checked here too, without a list of its own.
"""

from __future__ import annotations

import errno as codes
import os
from typing import TYPE_CHECKING

from oci_gpu_hook.formats import contexts
from oci_gpu_hook.node.diagnosis import FAIL, PASS, WARN, Finding, advice
from oci_gpu_hook.node.diagnosis.remedy import DOCTOR, KERNELS_LOG, NOTHING, Remedy, command, is_name, then
from oci_gpu_hook.operations import Device, LdCache, Mount
from oci_gpu_hook.record import NamedTuple

if TYPE_CHECKING:
    from oci_gpu_hook.node.diagnosis.advice import ContainerRef
    from oci_gpu_hook.operations import Operation

_SHOWN = 3

SELINUX_STATUS = command("oci-gpu-hook", "selinux", "status")

# Why no open was tried.
NO_CGROUP, PAUSED, NO_ROOT, NO_ENTRY = "no cgroup", "paused", "no root", "no entry"
NO_ANSWER, KILLED = "no answer", "killed"

# The kernel's own node for small drivers, misc, says by ENODEV what others say by ENXIO: no driver has this number.
_MISC = 10

_UNOPENED = {
    NO_CGROUP: ("its device cgroup is not known", command("findmnt", "--types", "cgroup,cgroup2")),
    PAUSED: ("it is paused", NOTHING),
    NO_ROOT: ("only root can enter its device cgroup", command("sudo", "oci-gpu-hook", "doctor", "--container", "...")),
    NO_ENTRY: ("its device cgroup cannot be entered", NOTHING),
    NO_ANSWER: ("a GPU does not answer", KERNELS_LOG),
    # It counts as the container's, in its cgroup and as its user.
    KILLED: ("the process that tried was killed, as by the container's limit of memory", DOCTOR),
}


class Seen(NamedTuple):
    """What a container has.

    nodes: device numbers by path, None if there is no device; opened: errno by path, 0 if the open worked, nothing for
    another device than the plan's; None if no open was tried, and unopened says why; names: by folder, the names of the
    files in it that are not empty; cached: the names in its ld.so.cache, None if it has none.
    """

    nodes: dict[str, tuple[int, int] | None]
    opened: dict[str, int] | None
    names: dict[str, frozenset[str]]
    cached: frozenset[str] | None
    process_label: str
    shm_label: str
    unopened: str = NO_ENTRY


def judge(operations: tuple[Operation, ...], seen: Seen, who: ContainerRef) -> list[Finding]:
    """The findings in order of cause: nodes, whether they open, libraries, cache, labels."""
    restart = advice.restart(who)
    devices = [item for item in operations if isinstance(item, Device)]
    present = [item for item in devices if seen.nodes.get(item.path) is not None]
    if devices and not present:
        text = f"none of its {len(devices)} nodes is there: the hook did not run when it started"
        return [Finding("nodes", FAIL, text, then(DOCTOR, restart))]
    libraries = [
        item
        for item in operations
        if isinstance(item, Mount) and (".so." in _name(item.target) or item.target.endswith(".so")) and not item.folder
    ]
    return [
        *_nodes(devices, seen, restart),
        *_opened([item.path for item in present], seen, who),
        *_libraries(libraries, seen, restart),
        *_cache([item for item in operations if isinstance(item, LdCache)], seen, restart),
        *_labels(seen, restart),
    ]


def counted_none() -> Finding:
    """Why one that Docker was asked for GPUs for has none."""
    seen = "it was asked for with 0 GPUs (--gpus 0): docker-compose before 2 says so if a service has no 'count'"
    remedy = command("vi", "docker-compose.yml", note="count: all, below its devices")
    return Finding("request", WARN, seen, remedy)


def judge_without_request(seen: Seen, who: ContainerRef) -> list[Finding]:
    """The findings about a container that asks for nothing: a CDI spec, for example, can have given it nodes."""
    paths = [path for path, numbers in seen.nodes.items() if numbers is not None]
    if not paths:
        return [Finding("nodes", PASS, "none, as it asks for none")]
    found = Finding(
        "nodes",
        WARN,
        f"{len(paths)} are there all the same: {_listed(paths)}",
        command("ls", "/etc/cdi", "/var/run/cdi"),
    )
    return [found, *_opened(paths, seen, who)]


def _nodes(devices: list[Device], seen: Seen, restart: Remedy) -> list[Finding]:
    missing = [item.path for item in devices if seen.nodes.get(item.path) is None]
    findings = []
    if missing:
        findings.append(Finding("nodes", FAIL, f"{_listed(missing)} missing", restart))
    for item in devices:
        numbers = seen.nodes.get(item.path)
        if numbers is not None and numbers != (item.major, item.minor):
            text = f"{item.path} is device {numbers[0]}:{numbers[1]}, the driver's is {item.major}:{item.minor}"
            findings.append(Finding("nodes", FAIL, text, restart))
    return findings or [Finding("nodes", PASS, f"{len(devices)}, with the driver's numbers")]


def _opened(paths: list[str], seen: Seen, who: ContainerRef) -> list[Finding]:
    check, restart = "open", advice.restart(who)
    if seen.opened is None:
        text, remedy = _UNOPENED[seen.unopened]
        remedy = advice.resume(who) if seen.unopened == PAUSED else remedy or restart
        level = FAIL if seen.unopened == NO_ANSWER else WARN
        return [Finding(check, level, f"nothing was opened: {text}", remedy)]
    by_error: dict[int, list[str]] = {}
    tried = [path for path in paths if path in seen.opened]
    for path in tried:
        error = seen.opened[path]
        major, _ = seen.nodes.get(path) or (0, 0)
        if (error, major) == (codes.ENODEV, _MISC):
            error = codes.ENXIO
        by_error.setdefault(error, []).append(path)
    findings = []
    for error, denied in by_error.items():
        if error:
            findings.append(_unopened(error, denied, restart))
    if not findings and tried:
        return [Finding(check, PASS, f"all {len(tried)} open from its device cgroup")]
    return findings


def _unopened(error: int, paths: list[str], restart: Remedy) -> Finding:
    which = _listed(paths)
    if error == codes.EPERM:
        text = f"its device cgroup denies {which}: the rules were written again after its start"
        return Finding("open", FAIL, f"{text}, as daemon-reload and update do", restart)
    if error == codes.EACCES:
        text = f"its user may not open {which}"
        # Without a plan these are the container's own names.
        are_names = all([is_name(_name(path)) for path in paths])
        chmod = [command("chmod", "0666", *paths)] if are_names else []
        return Finding("open", FAIL, text, then(*chmod, restart))
    if error == codes.ENXIO:
        text = f"its device cgroup allows {which}, and no driver answers there"
        return Finding("open", WARN, text, DOCTOR)
    return Finding("open", FAIL, f"{which}: {os.strerror(error)}", KERNELS_LOG)


def _libraries(mounts: list[Mount], seen: Seen, restart: Remedy) -> list[Finding]:
    check = "libraries"
    wanted = [(path, item.required) for item in mounts for path in item.paths()]
    missing = [path for path, _ in wanted if not _is_there(path, seen)]
    if not missing:
        return [Finding(check, PASS, f"{len(wanted)} names are there")]
    first = missing[0]
    stem = _name(first).partition(".so.")[0] + ".so."
    folder = first.rpartition("/")[0]
    planned = [_name(path) for path, _ in wanted]
    unplanned = [name for name in seen.names.get(folder, ()) if name not in planned]
    others = sorted([name for name in unplanned if name.startswith(stem)], key=len)
    text = f"{_listed(missing)} missing"
    if others:
        text += f", {others[-1]} is there: the driver has changed since its start"
    is_needed = any([required for path, required in wanted if path in missing])
    level = FAIL if others or is_needed else WARN
    return [Finding(check, level, text, restart)]


def _cache(caches: list[LdCache], seen: Seen, restart: Remedy) -> list[Finding]:
    check = "ld.so.cache"
    wanted = [soname for item in caches for soname, _ in item.entries()]
    if not wanted:
        return [Finding(check, PASS, "its loader reads none, or needs none")]
    missing = [name for name in wanted if name not in (seen.cached or ())]
    if missing:
        text = f"does not name {_listed(missing)}"
        return [Finding(check, FAIL, text if seen.cached is not None else "there is none", restart)]
    return [Finding(check, PASS, f"names all {len(set(wanted))} libraries")]


def _labels(seen: Seen, restart: Remedy) -> list[Finding]:
    """Whether the level of the process dominates that of /dev/shm: otherwise semaphores fail."""
    check = "/dev/shm"
    if not seen.process_label or not seen.shm_label:
        return [Finding(check, PASS, "no SELinux label counts here")]
    try:
        process = contexts.parse_context(seen.process_label).clearance
        shm = contexts.parse_context(seen.shm_label).low
    except contexts.MalformedContext as err:
        return [Finding(check, WARN, f"its label cannot be read: {err}", SELINUX_STATUS)]
    if process is not None and shm is not None and not process.dominates(shm):
        text = f"bears {seen.shm_label}, and the process {seen.process_label}: semaphores fail"
        return [Finding(check, FAIL, text, restart)]
    return [Finding(check, PASS, f"bears {seen.shm_label}")]


def _is_there(target: str, seen: Seen) -> bool:
    folder, _, name = target.rpartition("/")
    return name in seen.names.get(folder, ())


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _listed(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
