# SPDX-License-Identifier: Apache-2.0
"""The rows that hold our types against container_t, and the runtime's domain against BuildKit's folder.

Must not do anything: `engine` carries the rows out.
"""

from __future__ import annotations

from . import policy
from .cases import BUILT, CRUN, WORKS, Container, Row

_DENIED = "EACCES"
# What BuildKit starts in the place of runc.
_BUILDKITS = ("oci-gpu-runtime",)
_NODES = {"nodes": "ENXIO", "lib": WORKS, "smi": WORKS}
_LOOKS = Container(
    "container_t",
    gpu=False,
    mounts=("/run/containers:/victim/containers",),
    expect={
        "list:/victim/containers": policy.HERE.list_engines,
        "map:/dev/zero": policy.HERE.map_node,
        "klog": _DENIED,
    },
    avcs=None,
)

BOUNDS = (
    # No less than container_t has, and no more.
    Row(
        "the host, as container_t sees it",
        tuple(_LOOKS._replace(type=it) for it in ("container_t", "nvidia_container_t", "nvidia_agent_t")),
        denied="nvidia_container_t kernel_t:system syslog_read",
        runtimes=CRUN,
    ),
    Row(
        "BuildKit's folder, by oci-gpu-runtime",
        (
            Container(
                "container_t",
                hook=False,
                mounts=(f"{policy.HERE.executor}:/victim/executor",),
                expect={**_NODES, f"read:/victim/executor/{BUILT}/config.json": _DENIED},
                avcs=None,
            ),
        ),
        buildkit=True,
        denied=f"container_t {policy.HERE.configs_type}:file read",
        runtimes=_BUILDKITS,
    ),
)
