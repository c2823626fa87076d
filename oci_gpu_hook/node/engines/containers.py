# SPDX-License-Identifier: Apache-2.0
"""Running containers, found by id, name, pod or process, with the bundle that they were started from.

Sources: runtimes' states, engines' lists of names, the names of cgroups, and for a container without a state the
command line of conmon or containerd's shim.  Another user's container has an id, by its cgroup alone.  Reads only.
"""

from __future__ import annotations

import posix
import re
from collections.abc import Callable

from oci_gpu_hook.container.devicecgroup import is_named_after
from oci_gpu_hook.errors import UsageError, quoted
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.engines import containerrecords as records
from oci_gpu_hook.node.engines.containerrecords import SHORT_ID, UNNAMED, ContainerNames, Running
from oci_gpu_hook.node.engines.enginekinds import BY_NAME
from oci_gpu_hook.node.machine import foreignfile, kernelconfig, processes
from oci_gpu_hook.node.machine.foreignfile import ROOT, Files

_MAX_NAMED = 4


class KnownContainers:
    """All containers that a runtime has a state of, or an engine a name: root's first.  version: of cgroups, or ""."""

    def __init__(self, host: HostRoot) -> None:
        self._host = host
        self.version = kernelconfig.cgroup_version(host)
        self.mounts = foreignfile.our_mounts()
        self._files = Files(host, self.mounts)
        found = records.states(self._host, self._files)
        self._names = records.names(self._files, [item.bundle for item in found])
        # Of two with one id the first counts: that is root's, if one of them is.
        firsts = {item.id: item for item in reversed(found)}
        running = [item._replace(called=self._called(item)) for item in found if item is firsts[item.id]]
        stopped = [id for id in self._names if id not in firsts]
        self.containers = [*running, *[Running(id, 0, "", "", self._names[id], posix.geteuid()) for id in stopped]]

    def of_process(self, pid: int) -> Running:
        """The container that a process is in: whose first process it is, or whose id is in its cgroup's name."""
        owner = processes.maker(self._host, pid) or ROOT
        cgroup = processes.trusted_cgroup(self._host, pid, self.version, owner)
        unknown = Running(processes.id_in(cgroup[-1]) if cgroup else "", pid, "", "", owner=owner)
        if owner not in (ROOT, posix.geteuid()):
            # That user can give it the id of any container.
            return unknown._replace(called=self._by_place(unknown))
        of_owner = [item for item in self.containers if item.owner == owner]
        found = [item for item in of_owner if item.pid == pid] or [
            it for name in cgroup for it in of_owner if len(it.id) >= SHORT_ID and is_named_after(name, it.id)
        ]
        first = found[0]._replace(pid=pid) if found else unknown
        return first if first.bundle else self._with_monitor(first)

    def first_in_cgroup(self, id: str, owner: int | None) -> int | None:
        """The lowest pid in a container of `owner` whose cgroup's name has this id; of None root's go before users'."""
        if len(id) < SHORT_ID:
            return None
        of_users = None
        for pid in processes.numbers(self._host):
            if id not in processes.device_cgroup(self._host, pid, self.version):
                continue  # as most processes: to ask further costs more
            maker = processes.maker(self._host, pid) or ROOT
            names = processes.trusted_cgroup(self._host, pid, self.version, maker)
            # conmon, a container's monitor, has the id in its cgroup's name too, but is in the host's mount namespace.
            begin = [name for name in names if re.search(rf"(^|[-:]){re.escape(id)}", name)]
            if owner in (None, maker) and begin and _runs_contained(self._host, pid):
                if maker in (ROOT, owner):
                    return pid
                of_users = of_users or pid
        return of_users

    def _called(self, item: Running) -> ContainerNames:
        """What engines call a container: by their lists, else by its annotations, else only whose it is."""
        found = self._names.get(item.id, UNNAMED)
        if not found.engine and item.bundle:
            found = records.by_config(self._files, item.bundle)
        return found if found.engine else self._by_place(item)

    def _by_place(self, item: Running) -> ContainerNames:
        """Whose a container is, by where its bundle and its cgroup are."""
        cgroup = processes.trusted_cgroup(self._host, item.pid, self.version, item.owner)
        engine = item.called.engine or records.engine_of(f"{item.bundle}/", f"/{'/'.join(cgroup)}")
        return ContainerNames(engine, item.id if BY_NAME[engine].by_id else "")

    def _with_monitor(self, item: Running) -> Running:
        """A container without a state, with what the process above its first one tells of it."""
        found = _monitored(self._host, item)
        if found.bundle:
            self._names.update(records.names(self._files, [found.bundle]))
        return found if found.called.name else found._replace(called=self._called(found))


def users_have_some(host: HostRoot) -> bool:
    """Whether a container of a user's runs, by the id in its cgroup's name."""
    version = kernelconfig.cgroup_version(host)
    makers = [(pid, maker) for pid in processes.numbers(host) if (maker := processes.maker(host, pid))]
    cgroups = [processes.trusted_cgroup(host, pid, version, maker) for pid, maker in makers]
    return any([processes.id_in(name) for names in cgroups for name in names])


def find(host: HostRoot, word: str) -> Running:
    """The container with this id, beginning of an id, name, pod or process; UsageError if none or several have it."""
    known = KnownContainers(host)
    if word.isdecimal() and int(word) > 0 and processes.started(host, int(word)) is not None:
        return known.of_process(int(word))
    named = _matching(known.containers, word)
    if len(named) > 1:
        shown = named[:_MAX_NAMED]
        listed = ", ".join([f"{quoted(item.shown)[1:-1]} {quoted(item.id[:SHORT_ID])[1:-1]}" for item in shown])
        why = f"several containers have an id that begins with {quoted(word)}, or that name: {listed}"
        raise UsageError(why, "give more of the id, or NAMESPACE/POD/NAME")
    if named and named[0].pid:
        return named[0]
    id, owner = (named[0].id, named[0].owner) if named else (word, None)
    pid = known.first_in_cgroup(id, owner) or known.first_in_cgroup(f"{processes.LXC}{id}", owner)
    if pid is not None:
        return known.of_process(pid)
    if named:
        return named[0]
    raise UsageError(
        f"no running container has the id, name or process {quoted(word)}",
        "podman ps, crictl ps, docker ps and runc list show those that run, 'oci-gpu-hook log' those that failed"
        + ("" if posix.geteuid() == 0 else "; only root sees other users' containers"),
    )


def config(host: HostRoot, item: Running) -> bytes | None:
    """The config.json of a container's bundle, which others may have filled; None if there is none."""
    return foreignfile.read_file(host, f"{item.bundle}/config.json")


def _matching(known: list[Running], word: str) -> list[Running]:
    """Those that `word` means: running ones go before others."""
    fits: tuple[Callable[[Running], bool], ...] = (
        lambda item: item.id == word,
        lambda item: word in item.called.words,
        lambda item: word in item.called.words_of_pod,
        lambda item: bool(word) and item.id.startswith(word),
    )
    for fit in fits:
        found = [item for item in known if fit(item)]
        if found:
            return [item for item in found if item.pid] or found
    return []


def _monitored(host: HostRoot, item: Running) -> Running:
    """A container with what conmon or containerd's shim has on its command line."""
    parent = processes.parent(host, item.pid)
    program = processes.program(host, parent)
    if program == "conmon":
        words = processes.command_line(host, parent)
        said = dict(zip(words, words[1:]))
        runtime = said.get("-r", "").rpartition("/")[2]
        return item._replace(id=said.get("-c", item.id), bundle=said.get("-b", ""), runtime=runtime)
    if program.startswith("containerd-shim") and item.id:
        # It works in a bundle's folder; one shim can have all containers of a pod.
        folder = (host.link(f"/proc/{parent}/cwd") or "").rpartition("/")[0]
        return item._replace(bundle=f"{folder}/{item.id}", runtime="runc")
    return item


def _runs_contained(host: HostRoot, pid: int) -> bool:
    """`is_contained` of a process that may have ended: what waits for its parent has no namespaces any more."""
    try:
        return processes.is_contained(pid)
    except UsageError:
        if processes.started(host, pid) is None:
            return False
        raise
