# SPDX-License-Identifier: Apache-2.0
"""One running container judged: what the hook would give it, held against what it has.  Pure.

What it should have is the hook's own plan for it; so whatever the hook learns to give is looked for here too.
"""

from __future__ import annotations

import errno as codes
import os  # noqa: TID253  for people: never on the hook's path

from oci_gpu_hook import selinux
from oci_gpu_hook.diagnosis import FAIL, PASS, WARN, Finding
from oci_gpu_hook.ldmerge import entries_of
from oci_gpu_hook.operations import Device, LdCache, Mount, mount_paths
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.operations import Operation

_SHOWN = 3


class Seen(NamedTuple):
    """What a container has.

    nodes: numbers by path, None where there is no device; opened: errno by path, 0 where it could be opened, and None
    where nothing was tried; names: those in each folder that libraries belong in, but for empty files; cached: those
    in its ld.so.cache.
    """

    nodes: dict[str, tuple[int, int] | None]
    opened: dict[str, int] | None
    names: dict[str, frozenset[str]]
    cached: frozenset[str] | None
    process_label: str
    shm_label: str


def judge(operations: tuple[Operation, ...], seen: Seen, restart: str) -> list[Finding]:
    """In order of cause: nodes, whether they open, libraries, cache, labels."""
    devices = [item for item in operations if isinstance(item, Device)]
    present = [item for item in devices if seen.nodes.get(item.path) is not None]
    if devices and not present:
        text = f"none of its {len(devices)} nodes is there: the hook did not run when it started"
        return [Finding("nodes", FAIL, text, f"oci-gpu-hook doctor && {restart}")]
    libraries = [
        item for item in operations if isinstance(item, Mount) and ".so." in _name(item.target)
    ]
    return [
        *_nodes(devices, seen, restart),
        *_opened([item.path for item in present], seen, restart),
        *_libraries(libraries, seen, restart),
        *_cache([item for item in operations if isinstance(item, LdCache)], seen, restart),
        *_labels(seen, restart),
    ]


def opened_by_others(seen: Seen, restart: str) -> list[Finding]:
    """A container that asks for nothing: what somebody else, such as a CDI spec, has put there."""
    paths = [path for path, numbers in seen.nodes.items() if numbers is not None]
    if not paths:
        return [Finding("nodes", PASS, "none, as it asks for none")]
    found = Finding(
        "nodes",
        WARN,
        f"{len(paths)} are there all the same: {_listed(paths)}",
        "ls /etc/cdi /var/run/cdi",
    )
    return [found, *_opened(paths, seen, restart)]


def _nodes(devices: list[Device], seen: Seen, restart: str) -> list[Finding]:
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


def _opened(paths: list[str], seen: Seen, restart: str) -> list[Finding]:
    check = "open"
    if seen.opened is None:
        text = "nothing was opened: its device cgroup cannot be entered, or it is paused"
        return [Finding(check, WARN, text, "sudo oci-gpu-hook doctor --container ...")]
    by_error: dict[int, list[str]] = {}
    for path in paths:
        by_error.setdefault(seen.opened.get(path, 0), []).append(path)
    findings = []
    for error, denied in by_error.items():
        if error:
            findings.append(_unopened(error, denied, restart))
    return findings or [Finding(check, PASS, f"all {len(paths)} open from its device cgroup")]


def _unopened(error: int, paths: list[str], restart: str) -> Finding:
    which = _listed(paths)
    if error == codes.EPERM:
        text = f"its device cgroup denies {which}: the rules were written anew after its start"
        return Finding("open", FAIL, f"{text}, as daemon-reload and update do", restart)
    if error == codes.EACCES:
        text = f"its user may not open {which}"
        return Finding("open", FAIL, text, f"chmod 0666 {' '.join(paths)} && {restart}")
    if error == codes.ENXIO:
        text = f"its device cgroup allows {which}, and no driver answers there"
        return Finding("open", WARN, text, "oci-gpu-hook doctor")
    return Finding("open", FAIL, f"{which}: {os.strerror(error)}", "dmesg | grep -e NVRM -e Xid")


def _libraries(mounts: list[Mount], seen: Seen, restart: str) -> list[Finding]:
    check = "libraries"
    wanted = [(path, item.required) for item in mounts for path in mount_paths(item)]
    missing = [path for path, _ in wanted if not _is_there(path, seen)]
    if not missing:
        return [Finding(check, PASS, f"{len(wanted)} names are there")]
    first = missing[0]
    stem = _name(first).partition(".so.")[0] + ".so."
    folder = first.rpartition("/")[0]
    known = [_name(path) for path, _ in wanted]
    there = [name for name in seen.names.get(folder, ()) if name not in known]
    others = sorted([name for name in there if name.startswith(stem)], key=len)
    text = f"{_listed(missing)} missing"
    if others:
        text += f", {others[-1]} is there: the driver has changed since its start"
    is_needed = any([required for path, required in wanted if path in missing])
    level = FAIL if others or is_needed else WARN
    return [Finding(check, level, text, restart)]


def _cache(caches: list[LdCache], seen: Seen, restart: str) -> list[Finding]:
    check = "ld.so.cache"
    wanted = [entry.soname.decode() for item in caches for entry in entries_of(item.additions)]
    if not wanted:
        return [Finding(check, PASS, "its loader reads none, or needs none")]
    missing = [name for name in wanted if name not in (seen.cached or ())]
    if missing:
        text = f"does not name {_listed(missing)}"
        return [Finding(check, FAIL, text if seen.cached is not None else "there is none", restart)]
    return [Finding(check, PASS, f"names all {len(set(wanted))} libraries")]


def _labels(seen: Seen, restart: str) -> list[Finding]:
    """Whether the process may use what lies in /dev/shm, as far as levels go."""
    check = "/dev/shm"
    if not seen.process_label or not seen.shm_label:
        return [Finding(check, PASS, "no SELinux label counts here")]
    try:
        process = selinux.parse_context(seen.process_label).clearance
        shm = selinux.parse_context(seen.shm_label).low
    except selinux.MalformedContext as err:
        return [
            Finding(check, WARN, f"its label cannot be read: {err}", "oci-gpu-hook selinux status")
        ]
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
