# SPDX-License-Identifier: Apache-2.0
"""The states that runc (``state.json``) and crun (``status``) keep of containers, root's and users'.

They lie in the runtimes' own folders, and in those that Docker and containerd name.  A user writes what he likes into
his own: so a user's state counts only for a process in a user namespace that he made, and of root's containers only
what root alone could have written counts.  Reads only.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from oci_gpu_hook.node.engines.containernames import UNNAMED, ContainerNames, engine_of
from oci_gpu_hook.node.machine import processes, text, untrusted
from oci_gpu_hook.node.machine.untrusted import ROOT, Files
from oci_gpu_hook.record import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from oci_gpu_hook.host.root import HostRoot
    from oci_gpu_hook.node.machine.mounts import Mounts
    from oci_gpu_hook.node.machine.untrusted import Budget

_USERS = "/run/user"
_MOST_OF_USER = 256
# The file of each runtime's, and the keys of a container's first process and of its start.
_KEPT = (
    ("runc", "state.json", "init_process_pid", "init_process_start"),
    ("crun", "status", "pid", "process-start-time"),
)
_LONGEST_PATH = 4095
# What rootless engines leave behind: of a session, below /run/user/UID; of a user, below his home.
_SESSIONS = ("libpod", "containers", "crun", "runc", "docker", "docker.sock", "containerd-rootless")
_HOMES = (".local/share/containers/storage", ".local/share/docker", ".local/share/nerdctl")
_FIRST_USER = 1000
_HOME, _FIELDS = 5, 7


class Running(NamedTuple):
    """One container.

    id: "" if it is not known; pid: 0 if it has stopped; bundle and runtime: "" if no state has them; owner: the user
    whose engine runs it, 0 for root's.
    """

    id: str
    pid: int
    bundle: str
    runtime: str
    called: ContainerNames = UNNAMED
    owner: int = ROOT

    @property
    def shown(self) -> str:
        """What people call it: its name, else its id."""
        return self.called.shown or self.id

    @property
    def of_user(self) -> str:
        """Whose it is, for people; "" for root's.  A user's has whatever id and name he likes."""
        return f"user {self.owner}'s" if self.owner != ROOT else ""


def everything(root: HostRoot, mounts: Mounts, budget: Budget) -> list[Running]:
    """All containers with a state, root's first; of their names only the engine is known, if the state's place tells.

    mounts: ours; budget: of all users.
    """
    roots = Files(root, ROOT, mounts, budget)
    found = [*_below(root, "/run", roots), *_below(root, f"{_USERS}/{ROOT}", roots)]
    for name in root.names(_USERS):
        if name.isdecimal() and int(name) != ROOT:
            users = Files(root, int(name), mounts, budget)
            for item in islice(_below(root, f"{_USERS}/{name}", users), _MOST_OF_USER):
                if not item.pid or processes.maker(root, item.pid) == item.owner:
                    found.append(item)
    return found


def _below(root: HostRoot, base: str, files: Files) -> Iterator[Running]:
    """The containers of one owner."""
    for folder in _folders(base, files):
        for id in files.names(folder):
            for runtime, file, first, start in _KEPT:
                document = files.object(f"{folder}/{id}/{file}")
                pid = document.get(first)
                if isinstance(pid, int):
                    began = processes.started(root, pid)
                    # Else that process is gone, or is another one by now.
                    alive = pid if began is not None and document.get(start) in (began, None, 0) else 0
                    bundle = _runcs_bundle(document) if runtime == "runc" else document.get("bundle")
                    called = ContainerNames(engine_of(f"{folder}/"))
                    yield Running(id, alive, _of_host(_path(bundle)), runtime, called, files.owner)


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


def _of_host(path: str) -> str:
    """The path on the host: rootlesskit copies /run up, and has the host's own at /run/.roNUMBER."""
    top, name, below = path.partition("/run/.ro")
    return f"/run/{below.partition('/')[2]}" if name and not top else path


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
            names = Files(root, int(name), mounts).names(f"{_USERS}/{name}")
            if not set(_SESSIONS).isdisjoint(names):
                return True
    places = [(f"{home}/{part}", uid) for uid, home in homes(root).items() for part in _HOMES]
    return any([Files(root, uid, mounts).has(path) for path, uid in places])


def homes(root: HostRoot) -> dict[int, str]:
    """The homes of /etc/passwd's users, by the user's number."""
    rows = [line.split(":") for line in text(root, "/etc/passwd").splitlines()]
    users = [row for row in rows if len(row) == _FIELDS and row[2].isdecimal()]
    return {int(row[2]): row[_HOME] for row in users if int(row[2]) >= _FIRST_USER}
