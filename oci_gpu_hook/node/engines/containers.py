# SPDX-License-Identifier: Apache-2.0
"""Running containers, found by id, name, pod or process, with the bundle that they were started from.

Sources: runtimes' states, engines' lists of names, the names of cgroups, and for a container without a state the
command line of conmon or containerd's shim.  Names come from containers/storage for podman and CRI-O, from
config.v2.json for Docker, and for containerd, which keeps its names in a database, from the annotations of config.json,
where CRI-O and nerdctl have theirs as well.

Another user can write anything into files of that user's: so root does not read them, that user's container has an id
by its cgroup alone, and of root's only what root alone could have written counts.  Reads only, and starts no engine.
"""

from __future__ import annotations

import posix
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from oci_gpu_hook.container.devicecgroup import is_named_after
from oci_gpu_hook.errors import BundleError, UsageError, quoted
from oci_gpu_hook.formats.decimal import decimal
from oci_gpu_hook.host.podman import RECORDS
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.engines.enginekinds import BY_NAME, CONTAINERD, CRIO, DOCKER, ENGINES, LXC, LXC_WAYS, PODMAN
from oci_gpu_hook.node.machine import foreignfile, kernelconfig, processes
from oci_gpu_hook.node.machine.foreignfile import ROOT, Files
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.request.annotations import CONTAINERDS_NAMES
from oci_gpu_hook.request.state import object_of

_USERS = "/run/user"
# The file of each runtime's, and the keys of a container's first process and of its start.
_KEPT = (
    ("runc", "state.json", "init_process_pid", "init_process_start"),
    ("crun", "status", "pid", "process-start-time"),
)
_STORAGE = ("/var/lib/containers/storage", "/run/containers/storage")
# Kubernetes' names have 253 letters at most, of which CRI-O joins four.
_LONGEST_NAME = 1100
# Engines show ids shortened to so many letters, of sixty-four, and take them so.
SHORT_ID = 12
_MAX_NAMED = 4


class ContainerNames(NamedTuple):
    """engine: "" if only a runtime knows the container; full: the engine's own name where that is a longer one; pod,
    namespace: Kubernetes'; is_sandbox: whether it holds a pod's namespaces, and runs nothing of the pod's author.
    """

    engine: str = ""
    name: str = ""
    full: str = ""
    pod: str = ""
    namespace: str = ""
    is_sandbox: bool = False

    @property
    def shown(self) -> str:
        return f"{self.namespace}/{self.pod}/{self.name}" if self.pod else self.name

    @property
    def words(self) -> tuple[str, ...]:
        return self.name, self.full, self.shown, f"{self.pod}/{self.name}" if self.pod else self.shown

    @property
    def words_of_pod(self) -> tuple[str, ...]:
        """The names of its pod; none of a sandbox."""
        return (self.pod, f"{self.namespace}/{self.pod}") if self.pod and not self.is_sandbox else ()


UNNAMED = ContainerNames()


class Running(NamedTuple):
    """id: "" if it is not known; pid: 0 if it has stopped; bundle and runtime: "" if no state has them, of LXC's the
    program that has started it; owner: the user whose engine runs it, 0 for root's.
    """

    id: str
    pid: int
    bundle: str
    runtime: str
    called: ContainerNames = UNNAMED
    owner: int = ROOT

    @property
    def shown(self) -> str:
        return self.called.shown or self.id

    @property
    def of_user(self) -> str:
        """Whose it is, for people, as a user can give a container any id; "" for root's."""
        return f"user {self.owner}'s" if self.owner != ROOT else ""


class KnownContainers:
    """All containers that a runtime has a state of, or an engine a name: root's first.  version: of cgroups, or ""."""

    def __init__(self, host: HostRoot) -> None:
        self._host = host
        self.version = kernelconfig.cgroup_version(host)
        self.mounts = foreignfile.our_mounts()
        self._files = Files(host, self.mounts)
        own = posix.geteuid()
        found = [*_states("/run", self._files, ROOT), *_states(f"{_USERS}/{own}", self._files, own)]
        self._names = names(self._files, [item.bundle for item in found])
        # Of two with one id that of a user does not count, if one is root's, and of one owner's both if they run.
        firsts = {item.id: item for item in reversed(found)}
        more = [it for it in found if it.pid not in (0, firsts[it.id].pid) and it.owner == firsts[it.id].owner]
        running = [it._replace(called=self._called(it)) for it in found if it is firsts[it.id] or it in more]
        stopped = [id for id in self._names if id not in firsts]
        self.containers = [*running, *[Running(id, 0, "", "", self._names[id], own) for id in stopped]]

    def of_process(self, pid: int) -> Running:
        """The container that a process is in: whose first process it is, or whose id is in its cgroup's name."""
        # containerd 2 makes a pod's user namespace as the user to whom its root is mapped.
        is_roots = any([(item.pid, item.owner) == (pid, ROOT) for item in self.containers])
        owner = ROOT if is_roots else processes.maker(self._host, pid) or ROOT
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
            found = by_config(self._files, item.bundle)
        return found if found.engine else self._by_place(item)

    def _by_place(self, item: Running) -> ContainerNames:
        cgroup = processes.trusted_cgroup(self._host, item.pid, self.version, item.owner)
        engine = item.called.engine or engine_of(f"{item.bundle}/", f"/{'/'.join(cgroup)}")
        return ContainerNames(engine, item.id if BY_NAME[engine].by_id else "")

    def _with_monitor(self, item: Running) -> Running:
        """A container without a state, with what the program above it tells: conmon, containerd's shim or LXC's."""
        parent, found = processes.parent(self._host, item.pid), item
        program = processes.program(self._host, parent)
        if program == "conmon":
            words = processes.command_line(self._host, parent)
            said = dict(zip(words, words[1:]))
            runtime = said.get("-r", "").rpartition("/")[2]
            found = item._replace(id=said.get("-c", item.id), bundle=said.get("-b", ""), runtime=runtime)
        elif program.startswith("containerd-shim") and item.id:
            # It works in a bundle's folder; one shim can have all containers of a pod.
            folder = (self._host.link(f"/proc/{parent}/cwd") or "").rpartition("/")[0]
            found = item._replace(bundle=f"{folder}/{item.id}", runtime="runc")
        elif program in LXC_WAYS and self._by_place(item).engine == LXC.name:
            found = item._replace(runtime=program)
        if found.bundle:
            self._names.update(names(self._files, [found.bundle]))
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
    if (pid := decimal(word)) and processes.started(host, pid) is not None:
        return known.of_process(pid)
    named = _matching(known.containers, word)
    if len(named) > 1:
        shown = named[:_MAX_NAMED]
        listed = ", ".join([f"{quoted(item.shown)[1:-1]} {quoted(item.id[:SHORT_ID])[1:-1]}" for item in shown])
        why = f"several containers have an id that begins with {quoted(word)}, or that name: {listed}"
        raise UsageError(why, "give more of the id, or NAMESPACE/POD/NAME")
    if named and named[0].pid:
        return named[0] if named[0].bundle else known.of_process(named[0].pid)
    id, owner = (named[0].id, named[0].owner) if named else (word, None)
    pid = known.first_in_cgroup(id, owner) or known.first_in_cgroup(f"{processes.LXC}{id}", owner)
    if pid is not None:
        return known.of_process(pid)
    if named:
        return named[0]
    hint = "podman ps, crictl ps, docker ps and runc list show those that run, 'oci-gpu-hook log' those that failed"
    hint += "" if posix.geteuid() == 0 else "; only root sees other users' containers"
    raise UsageError(f"no running container has the id, name or process {quoted(word)}", hint)


def _matching(known: list[Running], word: str) -> list[Running]:
    found = (
        [item for item in known if item.id == word]
        or [item for item in known if word in item.called.words]
        or [item for item in known if word in item.called.words_of_pod]
        or [item for item in known if word and item.id.startswith(word)]
    )
    return [item for item in found if item.pid] or found


def _runs_contained(host: HostRoot, pid: int) -> bool:
    """`is_contained` of a process that may have ended: what waits for its parent has no namespaces any more."""
    try:
        return processes.is_contained(pid)
    except UsageError:
        if processes.started(host, pid) is None:
            return False
        raise


# What runtimes and engines keep: states and names.


def _states(base: str, files: Files, owner: int) -> Iterator[Running]:
    """Containers with a state; of their names only the engine is known, if the state's place tells."""
    for folder in _folders(base, files):
        for id in files.host.names(folder):
            for runtime, file, first, start in _KEPT:
                document = files.object(f"{folder}/{id}/{file}")
                pid = document.get(first)
                if isinstance(pid, int):
                    began = processes.started(files.host, pid)
                    # Else that process is gone, or is another one by now.
                    alive = pid if began is not None and document.get(start) in (began, None, 0) else 0
                    bundle = _runcs_bundle(document) if runtime == "runc" else document.get("bundle")
                    called = ContainerNames(engine_of(f"{folder}/"))
                    yield Running(id, alive, _path(bundle), runtime, called, owner)


def _folders(base: str, files: Files) -> Iterator[str]:
    """Where runc and crun keep states: in their own folders, and in those that Docker and containerd name."""
    yield from (f"{base}/runc", f"{base}/crun")
    runtimes = [name for name in files.host.names(f"{base}/docker") if name.startswith("runtime-")]
    # Below each there is a folder for each of containerd's namespaces: Docker's is "moby".
    for top in (f"{base}/containerd/runc", *[f"{base}/docker/{name}" for name in runtimes]):
        yield from [f"{top}/{name}" for name in files.host.names(top)]


def _runcs_bundle(document: dict[str, Any]) -> object:
    config = document.get("config")
    labels = config.get("labels") if isinstance(config, dict) else None
    words = [str(label) for label in (labels if isinstance(labels, list) else ())]
    return next((word[7:] for word in words if word.startswith("bundle=")), "")


def _path(value: object) -> str:
    """An absolute path on the host; "" for anything else, and for "/", which crun says where it does not tell."""
    if not isinstance(value, str) or value[:1] != "/" or value == "/":
        return ""
    # rootlesskit copies /run up, and has the host's own at /run/.roNUMBER.
    top, _, below = value.partition("/run/.ro")
    return f"/run/{below.partition('/')[2]}" if not top else value


def names(files: Files, bundles: Iterable[str]) -> dict[str, ContainerNames]:
    """Names by id, of all containers that engines keep lists of; bundles: of those that run."""
    # A bundle of podman's or CRI-O's is STORAGE/KIND-containers/ID/userdata, wherever its storage is.
    folders = {bundle.rsplit("/", 2)[0] for bundle in bundles if bundle.endswith("/userdata")}
    folders |= {f"{at}/{name}" for at in _STORAGE for name in files.host.names(at) if name.endswith("-containers")}
    return {**dict(_of_storage(files, folders)), **dict(_of_docker(files))}


def by_config(files: Files, bundle: str) -> ContainerNames:
    found = files.object(f"{bundle}/config.json").get("annotations")
    said = {key: str(value)[:_LONGEST_NAME] for key, value in (found if isinstance(found, dict) else {}).items()}
    if said.get("io.container.manager") == "libpod":
        return ContainerNames(PODMAN.name)
    if full := said.get("io.kubernetes.cri-o.Name", ""):
        return _kubelets(CRIO.name, full)
    kind = said.get("io.kubernetes.cri.container-type")
    if kind is not None:
        namespace, pod, name = [said.get(key, "") for key in CONTAINERDS_NAMES]
        return ContainerNames(CONTAINERD.name, name, "", pod, namespace, kind == "sandbox")
    return ContainerNames(CONTAINERD.name, said["nerdctl/name"]) if "nerdctl/name" in said else UNNAMED


def engine_of(*places: str) -> str:
    """The engine that has made a state's folder, a bundle or a cgroup; "" if none of them tells."""
    every = [(place, kind) for place in places for kind in ENGINES]
    return next((kind.name for place, kind in every if any([part in place for part in kind.places])), "")


def _of_storage(files: Files, folders: Iterable[str]) -> Iterator[tuple[str, ContainerNames]]:
    for path in [f"{folder}/{name}" for folder in sorted(folders) for name in RECORDS]:
        listed = files.parsed(path)
        for item in listed if isinstance(listed, list) else ():
            if isinstance(item, dict) and isinstance(item.get("names"), list):
                called = _stored(item)
                if called.full:
                    yield str(item.get("id", ""))[:_LONGEST_NAME], called


def _stored(item: dict[str, Any]) -> ContainerNames:
    """One container of containers/storage; of the two engines only CRI-O says a pod's id."""
    full = str(next(iter(item["names"]), ""))[:_LONGEST_NAME]
    with suppress(BundleError, UnicodeEncodeError):
        if "pod-id" in object_of(str(item.get("metadata")).encode(), "its metadata"):
            return _kubelets(CRIO.name, full)
    return ContainerNames(PODMAN.name, full, full)


def _of_docker(files: Files) -> Iterator[tuple[str, ContainerNames]]:
    folder = files.object(DOCKER.ours).get("data-root")
    containers = f"{folder if isinstance(folder, str) else '/var/lib/docker'}/containers"
    for id in files.host.names(containers):
        name = files.object(f"{containers}/{id}/config.v2.json").get("Name")
        if isinstance(name, str):
            yield id, _kubelets(DOCKER.name, name.lstrip("/")[:_LONGEST_NAME])


def _kubelets(engine: str, full: str) -> ContainerNames:
    """The parts of a name that the kubelet has given to a container of CRI-O or Docker; any other name is one part."""
    # No part has a "_".
    parts = full.split("_")
    if parts[0] != "k8s" or len(parts) != 6:
        return ContainerNames(engine, full, full)
    _, name, pod, namespace, _uid, _attempt = parts
    return ContainerNames(engine, name, full, pod, namespace, name == "POD")
