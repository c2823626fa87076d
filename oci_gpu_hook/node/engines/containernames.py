# SPDX-License-Identifier: Apache-2.0
"""What engines call their containers: from where each engine keeps it, or from a bundle's annotations.

podman and CRI-O: containers/storage; Docker: config.v2.json of each container; containerd, which keeps its names in a
database: the annotations of config.json, where CRI-O and nerdctl have theirs as well.  What a user's engine keeps names
that user's containers alone.  Reads only, and starts no engine.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from oci_gpu_hook.formats import jsontext
from oci_gpu_hook.node.machine import processes
from oci_gpu_hook.node.machine.untrusted import ROOT
from oci_gpu_hook.record import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from oci_gpu_hook.node.machine.untrusted import Files

PODMAN, CRIO, DOCKER, CONTAINERD, LXC = "podman", "CRI-O", "Docker", "containerd", "LXC"

_STORAGE = ("/var/lib/containers/storage", "/run/containers/storage")
# CRI-O's are in the second one: they do not outlive a boot.
_LISTS = ("containers.json", "volatile-containers.json")
_DOCKER_FOLDER = "/var/lib/docker"
_DOCKER_SETTINGS = "/etc/docker/daemon.json"
# Of a user's own daemon, below the user's home.
_ROOTLESS_FOLDER = ".local/share/docker/containers"
# Of a user's containers that do not run, too.
_MOST_OF_USER = 1024
# Kubernetes' names have 253 letters at most, of which CRI-O joins four.
_LONGEST_NAME = 1100
# The kubelet's names for containers of CRI-O and Docker: k8s_NAME_POD_NAMESPACE_UID_ATTEMPT.  No part has a "_".
_KUBELETS = 6
_SANDBOX = "POD"

# What is part of a state's folder, a bundle's path or a cgroup's name, and the engine that has given that name.
_PLACES = {
    DOCKER: ("/moby/", "/docker/", "/docker-"),
    CONTAINERD: ("/cri-containerd-", "/containerd/"),
    CRIO: ("/crio-",),
    PODMAN: ("/libpod-",),
    LXC: (f"/{processes.LXC}",),
}


class ContainerNames(NamedTuple):
    """One container's names.

    engine: "" if only a runtime knows the container; full: the engine's own name where that is a longer one; pod,
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
        """As people would name it: ``POD/NAME`` or ``NAME``."""
        return f"{self.pod}/{self.name}" if self.pod else self.name

    @property
    def words(self) -> tuple[str, ...]:
        """All names of the container's own."""
        return self.name, self.full, self.shown, f"{self.namespace}/{self.shown}" if self.pod else self.shown

    @property
    def words_of_pod(self) -> tuple[str, ...]:
        """The names of its pod, if it is no sandbox."""
        return (self.pod, f"{self.namespace}/{self.pod}") if self.pod and not self.is_sandbox else ()


UNNAMED = ContainerNames()


def names(files: Files, bundles: Iterable[str]) -> dict[str, ContainerNames]:
    """Names by id, of all containers that one owner's engines keep lists of; bundles: of those that run."""
    # A bundle of podman's or CRI-O's is STORAGE/KIND-containers/ID/userdata, wherever its storage is.
    folders = {bundle.rsplit("/", 2)[0] for bundle in bundles if bundle.endswith("/userdata")}
    if files.owner != ROOT:
        found = dict(islice(_of_storage(files, folders), _MOST_OF_USER))
        # Only a node's own engine runs pods.
        return {id: name for id, name in found.items() if not name.pod}
    for storage in _STORAGE:
        kinds = [name for name in files.names(storage) if name.endswith("-containers")]
        folders.update([f"{storage}/{name}" for name in kinds])
    return {**dict(_of_storage(files, folders)), **dict(_of_docker(files))}


def by_config(files: Files, bundle: str) -> ContainerNames:
    """The names that the annotations of a bundle's config.json tell."""
    found = files.object(f"{bundle}/config.json").get("annotations")
    said = {key: str(value)[:_LONGEST_NAME] for key, value in (found if isinstance(found, dict) else {}).items()}
    if said.get("io.container.manager") == "libpod":
        return ContainerNames(PODMAN)
    full = said.get("io.kubernetes.cri-o.Name", "")
    if full:
        return _kubelets(CRIO, full)
    if "io.kubernetes.cri.container-type" in said:
        return ContainerNames(
            CONTAINERD,
            said.get("io.kubernetes.cri.container-name", ""),
            pod=said.get("io.kubernetes.cri.sandbox-name", ""),
            namespace=said.get("io.kubernetes.cri.sandbox-namespace", ""),
            is_sandbox=said["io.kubernetes.cri.container-type"] == "sandbox",
        )
    if "nerdctl/name" in said:
        return ContainerNames(CONTAINERD, said["nerdctl/name"])
    return UNNAMED


def of_rootless_docker(files: Files, home: str, bundle: str) -> ContainerNames:
    """The name of a container of a user's own Docker; home: the user's."""
    if f"/run/user/{files.owner}/docker/" not in bundle or not home:
        return UNNAMED
    return _dockers(files, f"{home}/{_ROOTLESS_FOLDER}/{bundle.rpartition('/')[2]}")


def engine_of(*places: str) -> str:
    """The engine that has made a state's folder, a bundle or a cgroup; "" if none of them tells."""
    every = [(place, engine, parts) for place in places for engine, parts in _PLACES.items()]
    return next((engine for place, engine, parts in every if any([part in place for part in parts])), "")


def _of_storage(files: Files, folders: Iterable[str]) -> Iterator[tuple[str, ContainerNames]]:
    for path in [f"{folder}/{name}" for folder in sorted(folders) for name in _LISTS]:
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
    return _kubelets(CRIO, full) if is_crios else ContainerNames(PODMAN, full, full)


def _of_docker(files: Files) -> Iterator[tuple[str, ContainerNames]]:
    folder = files.object(_DOCKER_SETTINGS).get("data-root")
    containers = f"{folder if isinstance(folder, str) else _DOCKER_FOLDER}/containers"
    for id in files.names(containers):
        found = _dockers(files, f"{containers}/{id}")
        if found.engine:
            yield id, found


def _dockers(files: Files, folder: str) -> ContainerNames:
    """One container, by dockerd's record of it."""
    name = files.object(f"{folder}/config.v2.json").get("Name")
    return _kubelets(DOCKER, name.lstrip("/")[:_LONGEST_NAME]) if isinstance(name, str) else UNNAMED


def _kubelets(engine: str, full: str) -> ContainerNames:
    """The parts of a name that the kubelet has given; any other name is one part."""
    parts = full.split("_")
    if parts[0] != "k8s" or len(parts) != _KUBELETS:
        return ContainerNames(engine, full, full)
    _, name, pod, namespace, _, _ = parts
    return ContainerNames(engine, name, full, pod, namespace, name == _SANDBOX)
