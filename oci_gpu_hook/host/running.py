# SPDX-License-Identifier: Apache-2.0
"""Running containers: found by id, name or process, with the bundle that they were started from.

The states of runc (``state.json``) and crun (``status``), podman's and CRI-O's names of them (containers/storage), and
where no state tells, the names of cgroups.  Reads only.  Never on the hook's path.
"""

from __future__ import annotations

import posix

from oci_gpu_hook import jsontext
from oci_gpu_hook.errors import UsageError, quoted
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_STORAGE = ("/var/lib/containers/storage", "/run/containers/storage")
# Engines show ids shortened to twelve letters.
_SHORTEST_ID = 12


class Running(NamedTuple):
    """One container.  id, bundle and runtime are "" where no runtime's state tells of its process."""

    id: str
    pid: int
    bundle: str
    runtime: str


def find(root: HostRoot, word: str) -> Running:
    """The container of this id, beginning of an id, name, or process; UsageError where there is none, or not one."""
    if word.isdecimal() and int(word) > 0 and root.stat(f"/proc/{word}/cgroup") is not None:
        return of_process(root, int(word))
    known = list(_states(root))
    wanted = _ids_of_name(root, word) or [word]
    found = [item for item in known if item.id in wanted]
    found = found or [item for item in known if item.id.startswith(word)]
    if len({item.id for item in found}) > 1:
        raise UsageError(
            f"several containers have an id that begins with {quoted(word)}", "say more of it"
        )
    if found:
        return found[0]
    pid = _first_in_cgroup(root, wanted[0])
    if pid is None:
        raise UsageError(
            f"no running container has the id, name or process {quoted(word)}",
            "podman ps, crictl ps and runc list tell what runs; other users' are for root to see",
        )
    return Running(wanted[0], pid, "", "")


def of_process(root: HostRoot, pid: int) -> Running:
    """The container that a process is in: its first process's state, or the one whose id its cgroup bears."""
    cgroup = _cgroup(root, pid)
    known = list(_states(root))
    named = [item for item in known if item.pid == pid] or [
        item for item in known if len(item.id) >= _SHORTEST_ID and item.id in cgroup
    ]
    return named[0]._replace(pid=pid) if named else Running("", pid, "", "")


def device_cgroup(root: HostRoot, pid: int, version: str) -> str:
    """The folder of the process's device cgroup; "" where it cannot be told."""
    for line in _cgroup(root, pid).splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if version == "v2" and number == "0":
            return f"/sys/fs/cgroup{path}"
        if version == "v1" and "devices" in controllers.split(","):
            return f"/sys/fs/cgroup/devices{path}"
    return ""


def credentials(root: HostRoot, pid: int) -> tuple[int, int, list[int]]:
    """Effective user, group and further groups of a process, as this user namespace has them (proc_pid_status(5))."""
    text = (root.read(f"/proc/{pid}/status") or b"").decode("ascii", "replace")
    fields = dict([line.partition(":\t")[::2] for line in text.splitlines()])
    groups = [int(word) for word in fields.get("Groups", "").split()]
    user, group = [int(fields.get(name, "0\t0").split()[1]) for name in ("Uid", "Gid")]
    return user, group, groups


def environment(root: HostRoot, pid: int) -> list[str]:
    """The variables that a process was started with; what is no UTF-8 cannot ask for anything."""
    data = root.read(f"/proc/{pid}/environ") or b""
    return [item.decode("utf-8", "replace") for item in data.split(b"\0") if item]


def is_contained(pid: int) -> bool:
    """Whether a process has a mount namespace other than ours; UsageError where it may not be looked at."""
    try:
        theirs = posix.stat(f"/proc/{pid}/ns/mnt")
    except OSError as err:
        raise UsageError(
            f"the process {pid} cannot be looked into: {err.strerror}", "run it as root"
        ) from err
    return theirs.st_ino != posix.stat("/proc/self/ns/mnt").st_ino


def _states(root: HostRoot) -> Iterator[Running]:
    users = [f"/run/user/{name}" for name in root.names("/run/user")]
    for base in ("/run", *users):
        for id in root.names(f"{base}/runc"):
            document = _document(root, f"{base}/runc/{id}/state.json")
            if isinstance(document.get("init_process_pid"), int):
                config = document.get("config")
                labels = config.get("labels") if isinstance(config, dict) else None
                found = [
                    str(label)[7:]
                    for label in (labels if isinstance(labels, list) else ())
                    if str(label).startswith("bundle=")
                ]
                bundle = found[0] if found else ""
                yield Running(id, document["init_process_pid"], bundle, "runc")
        for id in root.names(f"{base}/crun"):
            document = _document(root, f"{base}/crun/{id}/status")
            if isinstance(document.get("pid"), int):
                yield Running(id, document["pid"], str(document.get("bundle", "")), "crun")


def _ids_of_name(root: HostRoot, word: str) -> list[str]:
    """The ids that containers/storage gives a name to: podman's names, and CRI-O's long ones."""
    found = []
    for folder in _STORAGE:
        for kind in root.names(folder):
            listed = (
                _parsed(root, f"{folder}/{kind}/containers.json") if "-containers" in kind else None
            )
            for item in listed if isinstance(listed, list) else ():
                names = item.get("names") if isinstance(item, dict) else None
                if isinstance(names, list) and word in names:
                    found.append(str(item.get("id", "")))
    return found


def _first_in_cgroup(root: HostRoot, word: str) -> int | None:
    if len(word) < _SHORTEST_ID:
        return None
    pids = sorted([int(name) for name in root.names("/proc") if name.isdecimal()])
    # conmon, a container's monitor, has the id in its cgroup's name too, but a mount namespace of the host's.
    ours = [pid for pid in pids if word in _cgroup(root, pid)]
    return next((pid for pid in ours if is_contained(pid)), None)


def _cgroup(root: HostRoot, pid: int) -> str:
    return (root.read(f"/proc/{pid}/cgroup") or b"").decode("utf-8", "replace")


def _document(root: HostRoot, path: str) -> dict[str, Any]:
    document = _parsed(root, path)
    return document if isinstance(document, dict) else {}


def _parsed(root: HostRoot, path: str) -> object:
    try:
        return jsontext.loads(root.read(path) or b"null")
    except ValueError:
        return None
