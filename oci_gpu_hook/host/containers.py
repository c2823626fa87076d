# SPDX-License-Identifier: Apache-2.0
"""Running containers, found by id, name, pod or process, with the bundle that they were started from.

Sources: the states of runc (``state.json``) and crun (``status``), in the folders of their own, of Docker and of
containerd; what engines call them (`called`); the names of cgroups, and the command lines of conmon and containerd's
shim, for a container without a state.  Reads only.  Never on the hook's path.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.errors import UsageError, quoted
from oci_gpu_hook.host import called
from oci_gpu_hook.host.called import NOBODYS, Called
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

# Engines show ids shortened to twelve letters, of sixty-four.
_SHORTEST_ID = 12
_WHOLE_ID = 64
_HEXADECIMAL = frozenset("0123456789abcdef")
_MOST_NAMED = 4
# proc_pid_stat(5), counted from the state, which follows the command in parentheses.
_PARENT, _START = 1, 19


class Running(NamedTuple):
    """One container.

    id: "" where it is not known; pid: 0 where it has stopped; bundle and runtime: "" where no state has them.
    """

    id: str
    pid: int
    bundle: str
    runtime: str
    called: Called = NOBODYS

    @property
    def shown(self) -> str:
        """What people call it: its name, else its id."""
        return self.called.shown or self.id


def find(root: HostRoot, word: str) -> Running:
    """The container with this id, beginning of an id, name, pod or process; UsageError where none or several have it.

    A container has the pid 0 if it is known and does not run.
    """
    if word.isdecimal() and int(word) > 0 and root.stat(f"/proc/{word}/cgroup") is not None:
        return of_process(root, int(word))
    known = everything(root)
    named = _matching(known, word)
    if len(named) > 1:
        listed = ", ".join(
            [f"{quoted(item.shown)[1:-1]} {item.id[:12]}" for item in named[:_MOST_NAMED]]
        )
        raise UsageError(
            f"several containers have an id that begins with {quoted(word)}, or that name: {listed}",
            "give more of the id, or POD/NAME",
        )
    id = named[0].id if named else word
    if named and named[0].pid:
        return named[0]
    pid = _first_in_cgroup(root, id)
    if pid is not None:
        return of_process(root, pid)
    if named:
        return named[0]
    raise UsageError(
        f"no running container has the id, name or process {quoted(word)}",
        "podman ps, crictl ps, docker ps and runc list show those that run"
        + ("" if posix.geteuid() == 0 else "; only root sees other users' containers"),
    )


def everything(root: HostRoot) -> list[Running]:
    """Each container that a runtime has a state of, or an engine a name."""
    states = list(_states(root))
    names = called.names(root, [item.bundle for item in states])
    ids = {item.id for item in states}
    found = [item._replace(called=_called(root, item, names)) for item in states]
    return [*found, *[Running(id, 0, "", "", names[id]) for id in names if id not in ids]]


def of_process(root: HostRoot, pid: int, known: Iterable[Running] | None = None) -> Running:
    """The container that a process is in: the one whose first process it is, or whose id is in its cgroup's name.

    known: what `everything` gives, for who asks of many processes.
    """
    cgroup = cgroup_of(root, pid)
    containers = everything(root) if known is None else list(known)
    found = [item for item in containers if item.pid == pid] or [
        item for item in containers if len(item.id) >= _SHORTEST_ID and item.id in cgroup
    ]
    first = found[0]._replace(pid=pid) if found else Running(_id_in(cgroup), pid, "", "")
    return first if first.bundle else _with_monitor(root, first, cgroup)


def device_cgroup(root: HostRoot, pid: int, version: str) -> str:
    """The folder of the process's device cgroup; "" where it is not known."""
    for line in cgroup_of(root, pid).splitlines():
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
    """The variables that a process was started with.  Bytes that are no UTF-8 are replaced: no request has any."""
    data = root.read(f"/proc/{pid}/environ") or b""
    return [item.decode("utf-8", "replace") for item in data.split(b"\0") if item]


def is_contained(pid: int) -> bool:
    """Whether a process has another mount namespace than ours; UsageError where we may not see it."""
    try:
        theirs = posix.stat(f"/proc/{pid}/ns/mnt")
    except OSError as err:
        may_see = posix.geteuid() == 0
        raise UsageError(
            f"the process {pid} cannot be looked into: {err.strerror}",
            "it has ended" if may_see else "run it as root",
        ) from err
    return theirs.st_ino != posix.stat("/proc/self/ns/mnt").st_ino


def started(root: HostRoot, pid: int) -> int | None:
    """When a process began, in clock ticks since the boot; None where there is none that runs."""
    fields = _stat(root, pid)
    return int(fields[_START]) if fields and fields[0] not in "ZX" else None


def cgroup_of(root: HostRoot, pid: int) -> str:
    """/proc/PID/cgroup as text."""
    return (root.read(f"/proc/{pid}/cgroup") or b"").decode("utf-8", "replace")


def _matching(known: list[Running], word: str) -> list[Running]:
    """Those that are meant: by id, else by name, else by pod, else by the beginning of an id; running ones first."""
    for fits in (_has_id, _has_name, _has_pod, _begins):
        found = {item.id: item for item in known if fits(item, word)}
        if found:
            return [item for item in found.values() if item.pid] or list(found.values())
    return []


def _has_id(item: Running, word: str) -> bool:
    return item.id == word


def _has_name(item: Running, word: str) -> bool:
    return word in (item.called.name, item.called.full, item.called.shown)


def _has_pod(item: Running, word: str) -> bool:
    pod = item.called.pod
    return (
        bool(pod) and not item.called.is_sandbox and word in (pod, f"{item.called.namespace}/{pod}")
    )


def _begins(item: Running, word: str) -> bool:
    return bool(word) and item.id.startswith(word)


def _states(root: HostRoot) -> Iterator[Running]:
    """The containers that runc and crun have a state of, root's and other users'."""
    for folder in _state_folders(root):
        for id in root.names(folder):
            document = _document(root, f"{folder}/{id}/state.json")
            if isinstance(document.get("init_process_pid"), int):
                pid = _alive(root, document["init_process_pid"], document.get("init_process_start"))
                yield Running(id, pid, _runcs_bundle(document), "runc", _placed(folder))
            document = _document(root, f"{folder}/{id}/status")
            if isinstance(document.get("pid"), int):
                pid = _alive(root, document["pid"], document.get("process-start-time"))
                yield Running(id, pid, str(document.get("bundle", "")), "crun", _placed(folder))


def _state_folders(root: HostRoot) -> Iterator[str]:
    """Where runtimes keep states: their own folders, and those that Docker and containerd name."""
    users = [f"/run/user/{name}" for name in root.names("/run/user")]
    for base in ("/run", *users):
        yield from (f"{base}/runc", f"{base}/crun")
        runtimes = [name for name in root.names(f"{base}/docker") if name.startswith("runtime-")]
        # Below each there is a folder for each of containerd's namespaces: Docker's is "moby".
        for top in (f"{base}/containerd/runc", *[f"{base}/docker/{name}" for name in runtimes]):
            yield from [f"{top}/{name}" for name in root.names(top)]


def _placed(folder: str) -> Called:
    return Called(called.engine_of(f"{folder}/"))


def _runcs_bundle(document: dict[str, Any]) -> str:
    config = document.get("config")
    labels = config.get("labels") if isinstance(config, dict) else None
    words = [str(label) for label in (labels if isinstance(labels, list) else ())]
    return next((word[7:] for word in words if word.startswith("bundle=")), "")


def _alive(root: HostRoot, pid: int, start: object) -> int:
    """The pid, or 0 where that process is gone, or is another one by now."""
    began = started(root, pid)
    return pid if began is not None and start in (began, None, 0) else 0


def _called(root: HostRoot, item: Running, names: dict[str, Called]) -> Called:
    """What engines call a container: by their lists, else by its annotations, else only whose it is."""
    found = names.get(item.id) or (called.by_config(root, item.bundle) if item.bundle else NOBODYS)
    if found.engine:
        return found
    engine = item.called.engine or called.engine_of(
        f"{item.bundle}/", cgroup_of(root, item.pid) if item.pid else ""
    )
    # The user of ctr names a container by its id.
    return Called(engine, item.id if engine == called.CONTAINERD else "")


def _with_monitor(root: HostRoot, item: Running, cgroup: str) -> Running:
    """A container without a state, with what the process above its first one tells of it."""
    found, name = _monitored(root, item)
    if found.called.name:
        return found
    engine = found.called.engine or called.engine_of(cgroup)
    names = called.names(root, [found.bundle] if found.bundle else [])
    words = _called(root, found._replace(called=Called(engine)), names)
    return found._replace(called=words if words.name else words._replace(name=name, full=name))


def _monitored(root: HostRoot, item: Running) -> tuple[Running, str]:
    """A container with what conmon or containerd's shim has on its command line, and the name that conmon has there."""
    fields = _stat(root, item.pid)
    parent = fields[_PARENT] if fields else "0"
    words = (root.read(f"/proc/{parent}/cmdline") or b"").decode("utf-8", "replace").split("\0")
    program = words[0].rpartition("/")[2]
    if program == "conmon":
        said = dict(zip(words, words[1:]))
        runtime = said.get("-r", "").rpartition("/")[2]
        id, bundle = said.get("-c", item.id), said.get("-b", "")
        return item._replace(id=id, bundle=bundle, runtime=runtime), said.get("-n", "")
    if program.startswith("containerd-shim") and item.id:
        # It works in a bundle's folder; one shim can have all containers of a pod.
        folder = (root.link(f"/proc/{parent}/cwd") or "").rpartition("/")[0]
        return item._replace(bundle=f"{folder}/{item.id}", runtime="runc"), ""
    return item, ""


def _id_in(cgroup: str) -> str:
    """The container's id in the names of its cgroups; "" where there is none."""
    words = (
        cgroup.replace("-", "/").replace(".", "/").replace("\n", "/").replace(":", "/").split("/")
    )
    ids = [word for word in words if len(word) == _WHOLE_ID and _HEXADECIMAL.issuperset(word)]
    return ids[-1] if ids else ""


def _first_in_cgroup(root: HostRoot, id: str) -> int | None:
    """The lowest pid in a container whose cgroup's name has this id; None where there is none."""
    if len(id) < _SHORTEST_ID:
        return None
    pids = sorted([int(name) for name in root.names("/proc") if name.isdecimal()])
    # conmon, a container's monitor, has the id in its cgroup's name too, but is in the host's mount namespace.
    found = [pid for pid in pids if id in cgroup_of(root, pid)]
    return next((pid for pid in found if _runs_contained(root, pid)), None)


def _runs_contained(root: HostRoot, pid: int) -> bool:
    """`is_contained` of a process that may have ended: what waits for its parent has no namespaces any more."""
    try:
        return is_contained(pid)
    except UsageError:
        if started(root, pid) is None:
            return False
        raise


def _stat(root: HostRoot, pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; none where there is no such process."""
    text = (root.read(f"/proc/{pid}/stat") or b"").decode("utf-8", "replace")
    # The command may hold spaces and parentheses.
    fields = text.rpartition(")")[2].split()
    return fields if len(fields) > _START else []


def _document(root: HostRoot, path: str) -> dict[str, Any]:
    document = called.parsed(root, path)
    return document if isinstance(document, dict) else {}
