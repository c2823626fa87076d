# SPDX-License-Identifier: Apache-2.0
"""What runtimes and engines keep of containers, root's or the caller's own: their states and their names.

Names come from containers/storage for podman and CRI-O, from config.v2.json for Docker, and for containerd, which keeps
its names in a database, from the annotations of config.json, where CRI-O and nerdctl have theirs as well.

Another user can write anything into files of that user's: so root does not read them, and of root's containers only
what root alone could have written counts.  Reads only, and starts no engine.
"""

from __future__ import annotations

import posix
from collections.abc import Iterable, Iterator
from typing import Any

from oci_gpu_hook.formats import jsontext
from oci_gpu_hook.host.podman import RECORDS
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.engines.enginekinds import CONTAINERD, CRIO, DOCKER, ENGINES, PODMAN
from oci_gpu_hook.node.machine import processes
from oci_gpu_hook.node.machine.foreignfile import ROOT, Files
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.request.annotations import CONTAINERDS_NAMES

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
        """All names of the container's own."""
        return self.name, self.full, self.shown, f"{self.pod}/{self.name}" if self.pod else self.shown

    @property
    def words_of_pod(self) -> tuple[str, ...]:
        """The names of its pod; none of a sandbox."""
        return (self.pod, f"{self.namespace}/{self.pod}") if self.pod and not self.is_sandbox else ()


UNNAMED = ContainerNames()


class Running(NamedTuple):
    """id: "" if it is not known; pid: 0 if it has stopped; bundle and runtime: "" if no state has them; owner: the user
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
        return self.called.shown or self.id

    @property
    def of_user(self) -> str:
        """Whose it is, for people, as a user can give a container any id; "" for root's."""
        return f"user {self.owner}'s" if self.owner != ROOT else ""


def states(host: HostRoot, files: Files) -> list[Running]:
    """Containers with a state, root's first; of their names only the engine is known, if the state's place tells."""
    own = posix.geteuid()
    return [*_below(host, "/run", files, ROOT), *_below(host, f"{_USERS}/{own}", files, own)]


def _below(host: HostRoot, base: str, files: Files, owner: int) -> Iterator[Running]:
    for folder in _folders(base, files):
        for id in files.names(folder):
            for runtime, file, first, start in _KEPT:
                document = files.object(f"{folder}/{id}/{file}")
                pid = document.get(first)
                if isinstance(pid, int):
                    began = processes.started(host, pid)
                    # Else that process is gone, or is another one by now.
                    alive = pid if began is not None and document.get(start) in (began, None, 0) else 0
                    bundle = _runcs_bundle(document) if runtime == "runc" else document.get("bundle")
                    called = ContainerNames(engine_of(f"{folder}/"))
                    yield Running(id, alive, _path(bundle), runtime, called, owner)


def _folders(base: str, files: Files) -> Iterator[str]:
    """Where runc and crun keep states: in their own folders, and in those that Docker and containerd name."""
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
    """An absolute path on the host; "" for anything else."""
    if not isinstance(value, str) or value[:1] != "/":
        return ""
    # rootlesskit copies /run up, and has the host's own at /run/.roNUMBER.
    top, name, below = value.partition("/run/.ro")
    return f"/run/{below.partition('/')[2]}" if name and not top else value


def names(files: Files, bundles: Iterable[str]) -> dict[str, ContainerNames]:
    """Names by id, of all containers that engines keep lists of; bundles: of those that run."""
    # A bundle of podman's or CRI-O's is STORAGE/KIND-containers/ID/userdata, wherever its storage is.
    folders = {bundle.rsplit("/", 2)[0] for bundle in bundles if bundle.endswith("/userdata")}
    folders |= {f"{at}/{name}" for at in _STORAGE for name in files.names(at) if name.endswith("-containers")}
    return {**dict(_of_storage(files, folders)), **dict(_of_docker(files))}


def by_config(files: Files, bundle: str) -> ContainerNames:
    """The names that the annotations of a bundle's config.json tell."""
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
    try:
        metadata = jsontext.loads(str(item.get("metadata", "null")).encode())
    except ValueError:
        metadata = None
    is_crios = isinstance(metadata, dict) and "pod-id" in metadata
    return _kubelets(CRIO.name, full) if is_crios else ContainerNames(PODMAN.name, full, full)


def _of_docker(files: Files) -> Iterator[tuple[str, ContainerNames]]:
    folder = files.object(DOCKER.ours).get("data-root")
    containers = f"{folder if isinstance(folder, str) else '/var/lib/docker'}/containers"
    for id in files.names(containers):
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
