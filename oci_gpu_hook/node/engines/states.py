# SPDX-License-Identifier: Apache-2.0
"""The states that runc (``state.json``) and crun (``status``) keep of containers, root's and users'.

They lie in the runtimes' own folders, and in those that Docker and containerd name.  A user writes what he likes into
his own: so a user's state counts only for a process in a user namespace that he made, and of root's containers only
what root alone could have written counts.  Reads only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oci_gpu_hook.formats import jsontext
from oci_gpu_hook.node.machine import processes, text, untrusted
from oci_gpu_hook.record import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from oci_gpu_hook.host.root import HostRoot
    from oci_gpu_hook.node.machine.mounts import Mounts
    from oci_gpu_hook.node.machine.untrusted import Budget

ROOT = 0
_USERS = "/run/user"
_MOST_OF_USER = 256
# The file of each runtime's, and the keys of a container's first process and of its start.
_KEPT = (
    ("runc", "state.json", "init_process_pid", "init_process_start"),
    ("crun", "status", "pid", "process-start-time"),
)
# A value takes a hundred bytes of memory.
_MOST_VALUES = 50_000
_LONGEST_PATH = 4095
# What rootless engines leave behind: of a session, below /run/user/UID; of a user, below his home.
_SESSIONS = ("libpod", "containers", "crun", "runc", "docker", "docker.sock", "containerd-rootless")
_HOMES = (".local/share/containers/storage", ".local/share/docker", ".local/share/nerdctl")
_FIRST_USER = 1000
_HOME, _FIELDS = 5, 7


class State(NamedTuple):
    """What a runtime keeps of one container.

    owner: the user whose runtime it is; folder: where its state lies; pid: 0 if it has stopped; bundle: "" if the state
    has none.
    """

    owner: int
    folder: str
    id: str
    pid: int
    bundle: str
    runtime: str


class Files(NamedTuple):
    """How the files of one owner are read: the names in a folder, and a file's content, None for none."""

    owner: int
    names: Callable[[str], list[str]]
    read: Callable[[str], bytes | None]


def files_of(root: HostRoot, owner: int, mounts: Mounts, budget: Budget) -> Files:
    """How a user's files are read; mounts: ours; budget: of all users, after which they have no more files."""
    if owner == ROOT:
        # Root may have started a container in a folder of a user's, who writes there what he likes.
        return Files(ROOT, root.names, lambda path: untrusted.read_roots(root, path, mounts))

    def names(path: str) -> list[str]:
        return [] if budget.is_spent() else untrusted.users_names(root, path, owner, mounts)

    def read(path: str) -> bytes | None:
        return None if budget.is_spent() else untrusted.read_users(root, path, owner, mounts)

    return Files(owner, names, read)


def parsed(files: Files, path: str) -> object:
    """The JSON value in a file; None if there is none, or it has too many values."""
    data = files.read(path)
    try:
        if data is None or jsontext.has_more_values(data, _MOST_VALUES):
            return None
        return jsontext.loads(data)
    except ValueError:
        return None


def parsed_object(files: Files, path: str) -> dict[str, Any]:
    """The JSON object in a file; an empty one if there is none."""
    document = parsed(files, path)
    return document if isinstance(document, dict) else {}


def everything(root: HostRoot, mounts: Mounts, budget: Budget) -> list[State]:
    """The states of all containers, root's first; mounts: ours; budget: of all users."""
    roots = files_of(root, ROOT, mounts, budget)
    found = [*_below(root, "/run", roots), *_below(root, f"{_USERS}/{ROOT}", roots)]
    for name in root.names(_USERS):
        if name.isdecimal() and int(name) != ROOT:
            users = files_of(root, int(name), mounts, budget)
            for _, state in zip(range(_MOST_OF_USER), _below(root, f"{_USERS}/{name}", users)):
                if not state.pid or processes.maker(root, state.pid) == state.owner:
                    found.append(state)
    return found


def _below(root: HostRoot, base: str, files: Files) -> Iterator[State]:
    """The containers of one owner."""
    for folder in _folders(base, files):
        for id in files.names(folder):
            for runtime, file, first, start in _KEPT:
                document = parsed_object(files, f"{folder}/{id}/{file}")
                pid = document.get(first)
                if isinstance(pid, int):
                    began = processes.started(root, pid)
                    # Else that process is gone, or is another one by now.
                    alive = pid if began is not None and document.get(start) in (began, None, 0) else 0
                    bundle = _runcs_bundle(document) if runtime == "runc" else document.get("bundle")
                    yield State(files.owner, folder, id, alive, _path(bundle), runtime)


def _folders(base: str, files: Files) -> Iterator[str]:
    """Where runtimes keep states: their own folders, and those that Docker and containerd name."""
    yield from (f"{base}/runc", f"{base}/crun")
    runtimes = [name for name in files.names(f"{base}/docker") if name.startswith("runtime-")]
    # Below each there is a folder for each of containerd's namespaces: Docker's is "moby".
    for top in (f"{base}/containerd/runc", *[f"{base}/docker/{name}" for name in runtimes]):
        yield from [f"{top}/{name}" for name in files.names(top)]


def _runcs_bundle(document: dict[str, Any]) -> object:
    config = document.get("config")
    labels = config.get("labels") if isinstance(config, dict) else None
    words = [str(label) for label in (labels if isinstance(labels, list) else ())]
    return next((word[7:] for word in words if word.startswith("bundle=")), "")


def _path(value: object) -> str:
    """An absolute path that the kernel can take; "" for anything else."""
    if not isinstance(value, str) or value[:1] != "/" or len(value) > _LONGEST_PATH:
        return ""
    try:
        return "" if b"\0" in value.encode() else value
    except UnicodeEncodeError:
        # JSON may have a lone surrogate.
        return ""


def is_used(root: HostRoot) -> bool:
    """Whether a user has containers of his own, or has had them, by what rootless engines leave behind.

    Of the homes of /etc/passwd's users only those on filesystems that answer by themselves are looked at: a look at
    others may mount them, or wait for a server.
    """
    mounts = untrusted.our_mounts()
    for name in root.names(_USERS):
        if name.isdecimal() and int(name):
            names = untrusted.users_names(root, f"{_USERS}/{name}", int(name), mounts)
            if not set(_SESSIONS).isdisjoint(names):
                return True
    places = [(f"{home}/{part}", uid) for uid, home in homes(root).items() for part in _HOMES]
    return any([untrusted.is_users(root, path, uid, mounts) for path, uid in places])


def homes(root: HostRoot) -> dict[int, str]:
    """The homes of /etc/passwd's users, by the user's number."""
    rows = [line.split(":") for line in text(root, "/etc/passwd").splitlines()]
    users = [row for row in rows if len(row) == _FIELDS and row[2].isdecimal()]
    return {int(row[2]): row[_HOME] for row in users if int(row[2]) >= _FIRST_USER}
