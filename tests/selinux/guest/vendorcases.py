# SPDX-License-Identifier: Apache-2.0
"""The rows in which containers ask for other vendors' hardware, by the files that we ship.

Of the node's devices: see `vendors`.  AMD's first by PCI address is the second that its driver found.
"""

from __future__ import annotations

from .cases import CRUN, OWN, RUNC, WORKS, Container, Row

_NO_DEVICE = "ENXIO"
_CONFINED = Container("nvidia_container_t", gpu=False)
_UNMODIFIED = Container("container_t", gpu=False)
_MADE = f"system_u:object_r:container_file_t:{OWN}"
_ROCM = "/opt/rocm-6.2.0/.info/version"
_INTEL = "/dev/dri/renderD132"

AMD = {"read:/dev/kfd": _NO_DEVICE, "read:/dev/dri/renderD131": _NO_DEVICE}
VERBS = {"read:/dev/infiniband/uverbs1": _NO_DEVICE, "read:/dev/infiniband/rdma_cm": "ENXIO|ENODEV"}
ONLOAD = {f"read:/dev/{name}": _NO_DEVICE for name in ("onload", "onload_epoll", "sfc_char")}

VENDORS = (
    Row(
        "container_t c1,c2: a vendor's GPU",
        (
            _UNMODIFIED._replace(
                asks={"OCI_AMD": "0"},
                expect={
                    **AMD,
                    "read:/dev/dri/renderD130": "ENOENT",
                    f"read:{_ROCM}": WORKS,
                    "load:libhsa-runtime64.so.1": WORKS,
                    "load:libamdhip64.so.6": WORKS,
                },
            ),
        ),
    ),
    Row(
        "container_t c1,c2: a GPU, a vendor's adapter and a third's",
        (
            Container(
                "container_t",
                asks={"OCI_RDMA": "mlx5_1", "OCI_SOLARFLARE": "all"},
                expect={
                    "nodes": "ENXIO",
                    "lib": WORKS,
                    "smi": WORKS,
                    **VERBS,
                    "read:/dev/infiniband/uverbs0": "ENOENT",
                    "read:/etc/libibverbs.d/mlx5.driver": WORKS,
                    "load:libibverbs.so.1": WORKS,
                    **ONLOAD,
                    "load:libonload_ext.so.1": WORKS,
                    "read:/usr/libexec/onload/profiles/latency.opf": WORKS,
                },
            ),
        ),
        runtimes=CRUN,
    ),
    Row(
        "container_t c1,c2: all that a vendor's file can say",
        (
            _UNMODIFIED._replace(
                asks={"OCI_EVERYTHING": "mlx5_0"},
                expect={
                    **ONLOAD,
                    "read:/dev/infiniband/uverbs0": _NO_DEVICE,
                    "read:/dev/infiniband/uverbs1": "ENOENT",
                    "read:/opt/libraries/libamdhip64.so.6": WORKS,
                    "load:libamdhip64.so.6": WORKS,
                    "read:/opt/rocm/bin/rocminfo": WORKS,
                    "read:/usr/sbin/onload_tool": WORKS,
                    "read:/etc/libdrm/amdgpu.ids": WORKS,
                },
            ),
        ),
        runtimes=RUNC,
    ),
    Row(
        "labels of vendors' nodes",
        (
            _CONFINED._replace(
                asks={"OCI_SOLARFLARE": "all", "OCI_AMD": "0", "OCI_RDMA": "0"},
                hold=True,
                expect={"hold": WORKS, "hold-mq": WORKS, "labels": _MADE},
            ),
        ),
        runtimes=CRUN,
    ),
    Row(
        "nvidia_container_t c1,c2: a vendor's GPU in a user namespace",
        (_CONFINED._replace(mapped=100_000, asks={"OCI_INTEL": "0"}, expect={f"read:{_INTEL}": _NO_DEVICE}),),
        runtimes=CRUN,
    ),
)
