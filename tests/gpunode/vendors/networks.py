# SPDX-License-Identifier: Apache-2.0
"""The drivers of network adapters that programs use without the kernel: InfiniBand and RoCE, Solarflare's Onload."""

from __future__ import annotations

from ..procfs import MISC_MAJOR, RDMA_CM_MINOR, VERBS_FIRST, VERBS_MAJOR
from .additions import Additions, numbered

# In the part of the kernel's major that is for InfiniBand's management datagrams.
MANAGEMENT_FIRST, SUBNET_FIRST = 0, 64
RDMA_CORE = "44.0"
PROVIDERS = {"mlx5": "1.24.44.0", "mlx4": "1.0.44.0", "efa": "1.2.44.0"}
NODES = "/dev/infiniband"


def rdma(node: Additions) -> None:
    """Two host channel adapters, mlx5_0 and mlx5_1."""
    for name in ("ib_core", "ib_uverbs", "ib_umad", "rdma_cm", "rdma_ucm"):
        node.sysfs.module(name)
    node.sysfs.module("mlx5_core", "24.04-0.6.6")
    node.sysfs.module("mlx5_ib", "24.04-0.6.6")
    node.major("infiniband_mad", VERBS_MAJOR)
    node.major("infiniband_verbs", VERBS_MAJOR)
    for number, address in enumerate(("0000:17:00.0", "0000:ca:00.0")):
        name = f"mlx5_{number}"
        folder = node.pci(address, "15b3:1021", "0x020700", "mlx5_core")
        node.sysfs.files[f"{folder}/infiniband/{name}/node_type"] = "1: CA\n"
        verbs = (VERBS_MAJOR, VERBS_FIRST + number)
        path = f"{NODES}/uverbs{number}"
        node.node(path, verbs, "infiniband_verbs", folder, ibdev=name, abi_version="1")
        for kind, first in (("umad", MANAGEMENT_FIRST), ("issm", SUBNET_FIRST)):
            path = f"{NODES}/{kind}{number}"
            minor = (VERBS_MAJOR, first + number)
            node.node(path, minor, "infiniband_mad", folder, 0o600, ibdev=name, port="1")
    node.node(f"{NODES}/rdma_cm", (MISC_MAJOR, RDMA_CM_MINOR), "misc")
    _rdma_core(node)


def _rdma_core(node: Additions) -> None:
    """As Debian and Fedora have it."""
    core = [f"lib{name}.{RDMA_CORE}" for name in ("ibverbs.so.1.14", "rdmacm.so.1.3", "ibumad.so.3.2", "ibmad.so.5.3")]
    for name in [*core, *(f"lib{provider}.so.{version}" for provider, version in PROVIDERS.items())]:
        node.library(name, numbered(name), development=True)
    for provider, version in PROVIDERS.items():
        link = f"{node.library_folder}/libibverbs/lib{provider}-rdmav34.so"
        node.links[link] = f"../lib{provider}.so.{version}"
        node.texts[f"/etc/libibverbs.d/{provider}.driver"] = f"driver {provider}\n"
    node.library("libibverbs/librxe-rdmav34.so")
    node.texts["/etc/libibverbs.d/rxe.driver"] = "driver rxe\n"
    tools = ("ibv_devices", "ibv_devinfo", "ibv_rc_pingpong", "rdma_server", "ucmatose")
    node.program(NODES, *(f"/usr/bin/{name}" for name in tools), "/usr/sbin/ibstat")


# All that oci-decorator's oci-onload.json names, of a release of today.
ONLOAD = "8.1.3.40"


def onload(node: Additions) -> None:
    """Onload's kernel drivers make nodes that are no PCI device's."""
    node.sysfs.module("onload", ONLOAD)
    node.sysfs.module("sfc_char", ONLOAD)
    major = node.major("onload")
    node.node("/dev/onload", (major, 0), "onload")
    node.node("/dev/onload_epoll", (major, 1), "onload")
    node.node("/dev/sfc_char", (node.major("sfc_char"), 0), "sfc_char")
    node.pci("0000:5a:00.0", "1924:0b03", "0x020000", "sfc")
    folder = "/usr/lib64"
    node.library(f"{folder}/libonload.so")
    node.library(f"{folder}/libsfcaffinity.so")
    node.library(f"{folder}/libonload_ext.so.1.1.0", "libonload_ext.so.1", development=True)
    node.library(f"{folder}/libonload_zf.so.1.1.1", "libonload_zf.so.1", development=True)
    node.texts[f"{folder}/libonload_zf_static.a"] = "!<arch>\n"
    for name in ("latency", "latency-best", "throughput"):
        node.texts[f"/usr/libexec/onload/profiles/{name}.opf"] = "onload_set EF_POLL_USEC 100000\n"
    node.texts["/usr/libexec/onload/apps/memcached.opf"] = "onload_import throughput\n"
    nodes = "/dev/onload /dev/onload_epoll /dev/sfc_char"
    tools = ("/usr/bin/onload", "/usr/bin/sfnt-pingpong", "/usr/bin/onload_stackdump")
    node.program(nodes, *tools, "/usr/sbin/onload_tool")
