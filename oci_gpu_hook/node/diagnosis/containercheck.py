# SPDX-License-Identifier: Apache-2.0
"""Findings about one running container: what it has, compared with the hook's plan for it.  Pure."""

from __future__ import annotations

import errno as codes
import os
from posixpath import basename

from oci_gpu_hook.container.memoryregion import NO_LIMIT
from oci_gpu_hook.driver.nodes import MODESET
from oci_gpu_hook.formats import contexts
from oci_gpu_hook.node.diagnosis import Finding, failed, passed, remedy, warned
from oci_gpu_hook.node.diagnosis.remedy import DOCTOR, KERNELS_LOG, Remedy, as_root, command, is_name, then
from oci_gpu_hook.node.engines.containers import Running
from oci_gpu_hook.operations import Device, LdCache, LimitMemory, Mount, Symlink
from oci_gpu_hook.planning.plan import Plan, some
from oci_gpu_hook.record import NamedTuple

# Why no open was tried, and what fixes that if it is not to start the container again.
NO_CGROUP, NO_ENTRY = "its device cgroup is not known", "its device cgroup cannot be entered"
NO_ROOT, PAUSED = "only root can enter its device cgroup", "it is paused"
NO_ANSWER = "a GPU does not answer"
# It counts as the container's, in its cgroup and as its user.
KILLED = "the process that tried was killed, as by the container's limit of memory"
_FIXES = {
    NO_CGROUP: command("findmnt", "--types", "cgroup,cgroup2"),
    NO_ROOT: as_root(command("oci-gpu-hook", "doctor", "--container", "...")),
    NO_ANSWER: KERNELS_LOG,
    KILLED: DOCTOR,
}
# The kernel's own node for small drivers, misc, says by ENODEV what others say by ENXIO: no driver has this number.
_MISC = 10


class Seen(NamedTuple):
    """nodes: device numbers by path, None if there is no device; opened: errno by path, 0 if the open worked, nothing
    for another device than the plan's; or why no open was tried; files: the planned paths, and those of other versions
    beside them, at which there are files that are not empty; cached: the names in its ld.so.cache, None if it has none;
    memory: its cgroup's limits of devices' memory, by region.
    """

    nodes: dict[str, tuple[int, int] | None]
    opened: dict[str, int] | str
    files: frozenset[str]
    cached: frozenset[str] | None
    process_label: str
    shm_label: str
    memory: dict[str, int] = {}  # noqa: RUF012  read only


def judge(plan: Plan | None, seen: Seen, who: Running) -> list[Finding]:
    """In order of cause; plan: None if it has none."""
    there = [path for path, numbers in seen.nodes.items() if numbers is not None]
    if plan is None and not there:
        return [passed("nodes", "none, as it asks for none")]
    if plan is None:
        text = f"{len(there)} are there all the same: {some(there)}"
        if not isinstance(seen.opened, str) and {*seen.opened.values()} == {codes.EPERM}:
            # A volume that is the host's /dev, or the host's root.
            return [passed("nodes", f"{text}, and its device cgroup denies them")]
        text += " (it is privileged, or a CDI spec has given them)"
        return [warned("nodes", text, "ls", "/etc/cdi", "/var/run/cdi"), *_opened(there, seen, who)]
    restart = remedy.restart(who)
    devices = [item for item in plan.operations if isinstance(item, Device)]
    present = [item.path for item in devices if item.path in there]
    if devices and not present:
        text = f"none of its {len(devices)} nodes is there: the hook did not run when it started"
        return [failed("nodes", text, then(DOCTOR, restart))]
    files = [(it, item.required) for item in plan.operations if isinstance(item, Mount) for it in item.paths()]
    files += [(item.path, item.required) for item in plan.operations if isinstance(item, Symlink)]
    libraries = {path: required for path, required in files if ".so." in basename(path) or path.endswith(".so")}
    return [
        *_nodes(devices, seen, restart),
        *_opened(present, seen, who),
        *_memory([item for item in plan.operations if isinstance(item, LimitMemory)], seen, restart),
        _libraries(libraries, seen, restart),
        _cache([item for item in plan.operations if isinstance(item, LdCache)], seen, restart),
        _labels(seen, restart),
    ]


def _nodes(devices: list[Device], seen: Seen, restart: Remedy) -> list[Finding]:
    missing = [item.path for item in devices if seen.nodes.get(item.path) is None]
    findings = [failed("nodes", f"{some(missing)} missing", restart)] if missing else []
    for item in devices:
        numbers = seen.nodes.get(item.path)
        if numbers is not None and numbers != (item.major, item.minor):
            text = f"{item.path} is device {numbers[0]}:{numbers[1]}, the driver's is {item.major}:{item.minor}"
            findings.append(failed("nodes", text, restart))
    return findings or [passed("nodes", f"{len(devices)}, with the driver's numbers")]


def _opened(paths: list[str], seen: Seen, who: Running) -> list[Finding]:
    restart = remedy.restart(who)
    if isinstance(seen.opened, str):
        fix = remedy.resume(who) if seen.opened == PAUSED else _FIXES.get(seen.opened, restart)
        found = failed if seen.opened == NO_ANSWER else warned
        return [found("open", f"nothing was opened: {seen.opened}", fix)]
    by_error: dict[int, list[str]] = {}
    tried = [path for path in paths if path in seen.opened]
    for path in tried:
        error = seen.opened[path]
        major, _ = seen.nodes.get(path) or (0, 0)
        if (error, major) == (codes.ENODEV, _MISC):
            error = codes.ENXIO
        by_error.setdefault(error, []).append(path)
    findings = [_unopened(error, denied, restart) for error, denied in by_error.items() if error]
    return findings or ([passed("open", f"all {len(tried)} open from its device cgroup")] if tried else [])


def _unopened(error: int, paths: list[str], restart: Remedy) -> Finding:
    which = some(paths)
    if error == codes.EPERM:
        text = f"its device cgroup denies {which}: its job has no more, or the rules were written again after its start"
        return failed("open", f"{text}, as daemon-reload, update and a restore by crun do", restart)
    if error == codes.EACCES:
        # Without a plan these are the container's own names.
        are_names = all([is_name(basename(path)) for path in paths])
        chmod = [as_root(command("chmod", "0666", *paths))] if are_names else []
        return failed("open", f"its user may not open {which}", then(*chmod, restart))
    if error == codes.ENXIO:
        # Drawing to a display alone needs its module, which no library loads from within a container.
        fix = as_root(command("modprobe", "nvidia-modeset")) if paths == [MODESET] else DOCTOR
        return warned("open", f"its device cgroup allows {which}, and no driver answers there", fix)
    return failed("open", f"{which}: {os.strerror(error)}", KERNELS_LOG)


def _memory(limits: list[LimitMemory], seen: Seen, restart: Remedy) -> list[Finding]:
    wanted = [pair for item in limits if not item.library for pair in item.limits]
    for name, most in wanted:
        limit = seen.memory.get(name, NO_LIMIT)
        if limit > most:
            now = "it has no limit" if limit == NO_LIMIT else f"its limit is {limit >> 20} MiB"
            text = f"{now} of {name}, and is to have {most >> 20} MiB: it was raised, or the driver was loaded again"
            return [failed("memory", text, restart)]
    held = ", ".join([f"{most >> 20} MiB of {name}" for name, most in wanted])
    return [passed("memory", f"at most {held}")] if held else []


def _libraries(wanted: dict[str, bool], seen: Seen, restart: Remedy) -> Finding:
    missing = [path for path in wanted if path not in seen.files]
    if not missing:
        return passed("libraries", f"{len(wanted)} names are there")
    stem = missing[0].partition(".so.")[0] + ".so."
    there = [basename(path) for path in seen.files if path.startswith(stem) and path not in wanted]
    text = f"{some(missing)} missing"
    if there:
        text += f", {max(there, key=len)} is there: the driver has changed since its start"
    found = failed if there or any([wanted[path] for path in missing]) else warned
    return found("libraries", text, restart)


def _cache(caches: list[LdCache], seen: Seen, restart: Remedy) -> Finding:
    wanted = [it.soname.decode() for item in caches for it in item.libraries if not it.spare]
    missing = [name for name in wanted if name not in (seen.cached or ())]
    if not wanted:
        return passed("ld.so.cache", "its loader reads none, or needs none")
    if missing:
        text = "there is none" if seen.cached is None else f"does not name {some(missing)}"
        return failed("ld.so.cache", text, restart)
    return passed("ld.so.cache", f"names all {len(set(wanted))} libraries")


def _labels(seen: Seen, restart: Remedy) -> Finding:
    """Whether the level of the process dominates that of /dev/shm: otherwise semaphores fail."""
    if not seen.process_label or not seen.shm_label:
        return passed("/dev/shm", "no SELinux label counts here")
    try:
        process = contexts.parse_context(seen.process_label).clearance
        shm = contexts.parse_context(seen.shm_label).low
    except ValueError as err:
        return warned("/dev/shm", f"its label cannot be read: {err}", "oci-gpu-hook", "selinux", "status")
    if process is not None and shm is not None and not process.dominates(shm):
        text = f"bears {seen.shm_label}, and the process {seen.process_label}: semaphores fail"
        return failed("/dev/shm", text, restart)
    return passed("/dev/shm", f"bears {seen.shm_label}")
