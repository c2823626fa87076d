# SPDX-License-Identifier: Apache-2.0
"""The annotations of a container as CRI-O 1.37 writes them, into config.json and into the state alike.

By its internal/factory/container (SpecAddAnnotations) and server/sandbox_run_linux.go: first come the pod's, then
CRI-O's own, then the container's own and the kubelet's labels.  Must not import the source tree's modules.
"""

from __future__ import annotations

import json

LABELS = {
    "io.kubernetes.container.name": "main",
    "io.kubernetes.pod.name": "training",
    "io.kubernetes.pod.namespace": "team",
    "io.kubernetes.pod.uid": "9f0c1c1e-3f59-4a3a-8b63-0d2f7b1d7a55",
}


ID, SANDBOX = "c0a7" * 16, "6d1f" * 16


def container(pod: dict[str, str], own: dict[str, str] | None) -> dict[str, str]:
    """A container's annotations; own: None if no engine has made the map, which Go writes as null."""
    return {
        **pod,
        "io.kubernetes.cri-o.Image": "registry.example.com/cuda:12",
        "io.kubernetes.cri-o.ImageName": "registry.example.com/cuda:12",
        "io.kubernetes.cri-o.ContainerID": ID,
        "io.kubernetes.cri-o.SandboxID": SANDBOX,
        "io.kubernetes.cri-o.ContainerType": "container",
        "io.container.manager": "cri-o",
        "io.kubernetes.cri-o.Labels": json.dumps(LABELS, separators=(",", ":")),
        "io.kubernetes.cri-o.Annotations": json.dumps(own, separators=(",", ":")),
        **(own or {}),
        **LABELS,
    }


def sandbox(pod: dict[str, str]) -> dict[str, str]:
    """The annotations of the pod's sandbox."""
    return {
        **pod,
        "io.kubernetes.cri-o.Image": "registry.k8s.io/pause:3.10",
        "io.kubernetes.cri-o.ContainerID": SANDBOX,
        "io.kubernetes.cri-o.SandboxID": SANDBOX,
        "io.kubernetes.cri-o.ContainerType": "sandbox",
        "io.kubernetes.cri-o.Namespace": LABELS["io.kubernetes.pod.namespace"],
        "io.container.manager": "cri-o",
        "io.kubernetes.cri-o.Annotations": json.dumps(pod, separators=(",", ":")),
    }
