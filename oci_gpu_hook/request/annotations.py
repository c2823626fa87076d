# SPDX-License-Identifier: Apache-2.0
"""Which image and which Kubernetes namespace a container is of, where its engine says so in annotations.  Pure."""

from __future__ import annotations

from oci_gpu_hook.errors import RequestError, quoted

# CRI-O, containerd, podman's kube play.  CRI-O sets io.kubernetes.cri-o.Namespace on a pod's sandbox only: in its
# containers that annotation is the pod's author's to set.
_NAMESPACES = (
    "io.kubernetes.pod.namespace",
    "io.kubernetes.cri.sandbox-namespace",
    "io.kubernetes.cri-o.Namespace",
)
# CRI-O, containerd; podman by its user's own word, as by --annotation.
_IMAGES = (
    "io.kubernetes.cri-o.ImageName",
    "io.kubernetes.cri.image-name",
    "io.container.image",
    "org.opencontainers.image.ref.name",
)

# CRI-O, podman.
_MANAGER = "io.container.manager"


def image(annotations: dict[str, str]) -> str:
    """The container's image; "" where its engine does not say."""
    return _first(annotations, _IMAGES)


def namespace(annotations: dict[str, str]) -> str:
    """The container's Kubernetes namespace; "" where its engine does not say."""
    return _first(annotations, _NAMESPACES)


def unsaid(annotations: dict[str, str]) -> tuple[str, ...]:
    """Which of "image" and "namespace" the engine does not say; podman has no namespaces, so there is none to say."""
    missing = [] if image(annotations) else ["image"]
    if not namespace(annotations) and annotations.get(_MANAGER) != "libpod":
        missing.append("namespace")
    return tuple(missing)


def check_namespace(annotations: dict[str, str]) -> None:
    """RequestError where several are named: engines hand a pod's own annotations on beside theirs."""
    said = {annotations[name] for name in _NAMESPACES if name in annotations}
    if len(said) > 1:
        raise RequestError(
            f"the annotations name several namespaces, {' and '.join(map(quoted, sorted(said)))}",
            "the pod's author must leave them to the engine",
        )


def _first(annotations: dict[str, str], names: tuple[str, ...]) -> str:
    # The engine's own comes first, and where it is empty, no other counts.
    return next((annotations[name] for name in names if name in annotations), "")
