# SPDX-License-Identifier: Apache-2.0
"""Pods as the field writes them (packaging/openshift/pods/nvidia-smi*.yaml): what their containers must show.

Here are CRI-O's rows; what podman plays is in `podman`.  Must not do anything: `engine` carries the rows out.
"""

from __future__ import annotations

from tests.gpunode.description import load

from .cases import Container, Row

# The GPU without MIG.
_GPU = next(gpu for gpu in load("h100mig").gpus if not gpu.mig)
_NODE = f"/dev/nvidia{_GPU.minor}"
_NONE = "0" * 16
_LOOK = ("/app/nvidia-smi", "-L")

# By `tests.pods.LOOK` from inside, by `outside` from the host.
_LOCKED = {
    **dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), _NONE),
    "NoNewPrivs": "1",
    "user": "1000",
    "shm": "",
    "left": "nothing",
    "labels": "own",
}
CONFINED = {
    **_LOCKED,
    "root": r".*: Read-only file system",
    "smi": rf"GPU 0: .* \(UUID: {_GPU.uuid}\)",
    _NODE: ".*: No such device or address",
    "nodes": "4",
    "allowed": _NODE,
}
_POD = Container(
    "container_t",
    shm="pod",
    command=_LOOK,
    readonly=True,
    hold=True,
    devices=_GPU.uuid,
    asks={"NVIDIA_REQUIRE_CUDA": "cuda>=5.0"},
)
_SANDBOX = _POD._replace(
    gpu=False,
    asks={},
    expect={**_LOCKED, "smi": ".*not found", "nodes": "0", "allowed": "none", "domain": "container_t"},
)

PODS = tuple(
    Row(
        f"CRI-O's pod of {type_}",
        (_SANDBOX, _POD._replace(type=type_, expect={**CONFINED, "domain": type_})),
        pod=True,
        runtimes=(runtime,),
    )
    # The other two pairs are podman's.
    for type_, runtime in (("container_t", "runc"), ("nvidia_container_t", "crun"))
)
