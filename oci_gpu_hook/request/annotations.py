# SPDX-License-Identifier: Apache-2.0
"""A container's image, Kubernetes namespace, pod and name, if its engine provably says them.  Pure.

Engines pass on annotations of a pod's author, and podman before 4.6 those of an image's manifest.  One counts if the
engine is known by the container's id, which neither can predict: CRI-O annotates it, the others' bundles have its name.
"""

from __future__ import annotations

from oci_gpu_hook.request.state import State

CONTAINERD, DOCKER, PODMAN = "containerd", "docker", "podman"

_CRIOS_ID = "io.kubernetes.cri-o.ContainerID"
_CRIOS_TYPE = "io.kubernetes.cri-o.ContainerType"
_CRIOS_IMAGE, _CONTAINERDS_IMAGE = "io.kubernetes.cri-o.ImageName", "io.kubernetes.cri.image-name"
# Of a container's namespace, pod and name.  The kubelet's labels for CRI-O come after what a pod's author says.
_CRIOS_NAMES = ("io.kubernetes.pod.namespace", "io.kubernetes.pod.name", "io.kubernetes.container.name")
_CRIOS_NAMESPACE_OF_SANDBOX = "io.kubernetes.cri-o.Namespace"
_SANDBOXS = "io.kubernetes.cri.sandbox-"
CONTAINERDS_NAMES = (f"{_SANDBOXS}namespace", f"{_SANDBOXS}name", "io.kubernetes.cri.container-name")

# Below containerd's state folder, with a folder for each of its own namespaces: that of Kubernetes, that of Docker.
TASKS = "io.containerd.runtime.v2.task"
_OF_TASKS = {f"{TASKS}/k8s.io": CONTAINERD, f"{TASKS}/moby": DOCKER}


def read_engine(state: State) -> tuple[tuple[str, str, str, str], tuple[str, ...]]:
    """The image, and Kubernetes' namespace, pod and name, "" for what is not known; and which of "image" and
    "namespace" its engine does not say.
    """
    image, keys, given = state.image, ("", "", ""), state.annotations
    keeper = keeper_of(state.bundle, state.id)
    if state.id and given.get(_CRIOS_ID) == state.id:
        keeper, image = "", given.get(_CRIOS_IMAGE, "")
        keys = (_CRIOS_NAMESPACE_OF_SANDBOX, "", "") if given.get(_CRIOS_TYPE) == "sandbox" else _CRIOS_NAMES
    elif keeper == CONTAINERD:
        image, keys = given.get(_CONTAINERDS_IMAGE, ""), CONTAINERDS_NAMES
    namespace, pod, name = [key and given.get(key, "") for key in keys]
    known = {"image": image, "namespace": namespace or keeper == PODMAN}
    return (image, namespace, pod, name), tuple([scope for scope, text in known.items() if not text])


def keeper_of(bundle: str, id: str) -> str:
    """Whose folder a bundle lies in, one of the constants above; CRI-O's are as podman's.  "" for any other."""
    folder, name = folder_of(bundle)
    if not id or name != id:
        return ""
    if bundle.endswith("/userdata"):
        return PODMAN if folder.endswith("-containers") else ""
    return next((_OF_TASKS[end] for end in _OF_TASKS if folder.endswith(f"/{end}")), "")


def folder_of(bundle: str) -> tuple[str, str]:
    """The folder that has a folder for each container, and the name of the bundle's one in it."""
    folder, _, name = bundle.removesuffix("/userdata").rpartition("/")
    return folder, name
