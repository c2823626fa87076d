# SPDX-License-Identifier: Apache-2.0
"""Other vendors' hardware in real containers, by oci-decorator's published files and by those that we ship.

Devices can be opened where they were given and nowhere else, libraries are in the loader's cache, and the root holds
empty mount points and links.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.integration import roots
from tests.integration.conftest import Maker
from tests.integration.engines import REPOSITORY, RUNTIMES
from tests.integration.inside import COMPUTE, Seen, added, attempt, look, node, refused

PUBLISHED = REPOSITORY / "tests/data/vendors"
FOLDER = f"/usr/lib/{roots.MULTIARCH}"
# The drivers' own in a container.
NVIDIAS, OTHERS = "/usr/local/nvidia/lib64", "/usr/local/oci-gpu-hook"
# Of the administrator's: these take the place of ours with the same names.
ADMINISTRATORS = "/etc/oci-gpu-hook/vendors"
PUBLISH = f"mkdir -p {ADMINISTRATORS} && cp {PUBLISHED}/oci-*.json {ADMINISTRATORS}/"
ONLOAD = {"/dev/onload", "/dev/onload_epoll", "/dev/sfc_char"}
NVIDIA = {"/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}
EVERYBODYS = ("amd", "intel", "habana", "neuron", "rdma", "onload", "xrt")
ALL: dict[str, Any] = {"description": "none", "vendors": EVERYBODYS, "refresh": False}


class Shipped(NamedTuple):
    """One of our files on a node with everybody's hardware.

    asked: the nodes by what asks for them; programs: what says that all nodes can be opened; sonames: what the loader
    finds; paths: what else is there.
    """

    flag: str
    asked: dict[str, set[str]]
    programs: tuple[str, ...]
    sonames: tuple[str, ...]
    paths: tuple[str, ...] = ()


def _dri(number: int) -> str:
    return f"/dev/dri/renderD{number}"


def _gaudi(number: int) -> set[str]:
    return {f"/dev/accel/accel{number}", f"/dev/accel/accel_controlD{number}"}


def _verbs(*numbers: int) -> set[str]:
    return {"/dev/infiniband/rdma_cm", *(f"/dev/infiniband/uverbs{number}" for number in numbers)}


SHIPPED = {
    "amd": Shipped(
        "OCI_AMD",
        {
            # By PCI address, which is not the order in which the driver numbered them.
            "0": {"/dev/kfd", _dri(129)},
            "0000:83:00.0": {"/dev/kfd", _dri(128)},
            "renderD129": {"/dev/kfd", _dri(129)},
            "all": {"/dev/kfd", _dri(128), _dri(129)},
            "none": set(),
        },
        ("rocminfo", "/opt/rocm-6.2.0/bin/rocm-smi"),
        ("libhsa-runtime64.so.1", "libamdhip64.so.6", "libamd_smi.so.24", "libamdocl64.so"),
        ("/opt/rocm-6.2.0/.info/version", "/etc/OpenCL/vendors/amdocl64_60200_66.icd"),
    ),
    "intel": Shipped(
        "OCI_INTEL",
        {
            # Indices count the GPUs, though the other's address is the lowest.
            "0": {_dri(130)},
            "accel0,0000:b5:00.0": {"/dev/accel/accel0", _dri(131)},
            "renderD131": {_dri(131)},
            "all": {"/dev/accel/accel0", _dri(130), _dri(131)},
        },
        ("xpu-smi",),
        ("libze_loader.so.1", "libze_intel_gpu.so.1", "libze_intel_npu.so.1", "libigdgmm.so.12"),
        ("/etc/OpenCL/vendors/intel.icd", f"{FOLDER}/intel-opencl/libigdrcl.so"),
    ),
    "habana": Shipped(
        "OCI_HABANA",
        {"1": _gaudi(2), "0000:33:00.0": _gaudi(1), "accel2": _gaudi(2), "all": _gaudi(1) | _gaudi(2)},
        ("hl-smi",),
        ("libhlml.so", "libhl-thunk.so"),
    ),
    "neuron": Shipped(
        "OCI_NEURON",
        {"1": {"/dev/neuron1"}, "neuron0": {"/dev/neuron0"}, "all": {"/dev/neuron0", "/dev/neuron1"}},
        ("/opt/aws/neuron/bin/neuron-ls",),
        ("libnrt.so.1", "libnccom.so.2"),
    ),
    "rdma": Shipped(
        "OCI_RDMA",
        {"0": _verbs(0), "0000:ca:00.0": _verbs(1), "uverbs0": _verbs(0), "mlx5_1": _verbs(1), "all": _verbs(0, 1)},
        ("ibv_devinfo",),
        ("libibverbs.so.1", "librdmacm.so.1", "libmlx5.so.1", "libmlx5-rdmav34.so"),
        ("/etc/libibverbs.d/mlx5.driver",),
    ),
    "oci-onload": Shipped(
        "OCI_SOLARFLARE",
        {"all": ONLOAD, "none": set()},
        ("onload", "/usr/sbin/onload_tool"),
        ("libonload.so", "libonload_ext.so.1", "libonload_zf.so.1"),
        ("/usr/libexec/onload/profiles/latency.opf",),
    ),
    "xrt": Shipped(
        "OCI_XRT",
        {"0": {_dri(132)}, "0000:e7:00.1": {_dri(133)}, "renderD132": {_dri(132)}, "all": {_dri(132), _dri(133)}},
        ("/opt/xilinx/xrt/bin/xbutil",),
        ("libxrt_core.so.2", "libxilinxopencl.so.2"),
        ("/etc/OpenCL/vendors/xilinx.icd", "/opt/xilinx/xrt/version.json"),
    ),
}


def test_every_file_that_we_ship_is_tested() -> None:
    files = {path.stem for path in (REPOSITORY / "packaging/vendors").glob("*.json")}
    assert files - {"vendor.schema"} == set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_container_has_what_it_asks_for_of_a_vendor(bundle: Maker, name: str) -> None:
    shipped = SHIPPED[name]
    made = [bundle("debian").asks(None, **{shipped.flag: asked}) for asked in shipped.asked]
    runtime = "crun" if name in ("amd", "rdma") else "runc"
    tried = attempt(*made, commands=_commands(shipped), runtime=runtime, **ALL)
    for each, nodes in zip(tried, shipped.asked.values()):
        seen = each.seen()
        seen.has_exactly(*nodes)
        _check(shipped, seen, nodes)
        _check_root(each.bundle.rootfs, each.before, seen)


def test_each_partition_of_a_gpu_is_a_device(bundle: Maker) -> None:
    """Also those whose nodes hang on no bus; nodes of partitions that are not there are no devices'."""
    partitions = [*range(128, 138)]
    asked = {
        "all": partitions,
        # GPU by GPU: the first has eight.
        "1,8": [129, 136],
        "amdgpu_xcp_7,0000:05:00.0": [137, 128],
        "renderD135": [135],
    }
    made = [bundle("debian").asks(None, OCI_AMD=names) for names in asked]
    links = "echo /dev/dri/by-path/*"
    how: dict[str, Any] = {**ALL, "vendors": ("mi300",)}
    for each, numbers in zip(attempt(*made, commands=links, **how), asked.values()):
        each.seen().has_exactly("/dev/kfd", *map(_dri, numbers))
        if numbers == [129, 136]:
            names = ("pci-0000:15:00.0", "platform-amdgpu_xcp_0")
            assert each.seen().printed.split() == [f"/dev/dri/by-path/{name}-render" for name in names]
    said = refused(bundle("debian").asks(None, OCI_AMD="renderD138"), **how)
    assert "unknown device 'renderD138' of OCI_AMD: this host has 10: " in said


@pytest.mark.parametrize(("runtime", "cgroup"), RUNTIMES)
def test_the_published_files_give_two_vendors(bundle: Maker, runtime: str, cgroup: str) -> None:
    made = bundle("debian").asks(None, OCI_SOLARFLARE="all", OCI_NVIDIA="all")
    before = roots.listing(made.rootfs)
    node = {**ALL, "vendors": ("onload", "nvidia-decorator", "amd")}
    seen = look(made, runtime=runtime, cgroup=cgroup, before=PUBLISH, **node)
    _check_root(made.rootfs, before, seen)
    seen.has_exactly(*ONLOAD, *NVIDIA)
    assert seen.denied == {
        *("/dev/kfd", "/dev/dri/card0", "/dev/dri/card1", "/dev/dri/renderD128"),
        "/dev/dri/renderD129",
    }
    for soname in ("libcuda.so.1", "libnvidia-ml.so.1", "libonload_ext.so.1", "libonload_zf.so"):
        flag = "OCI_SOLARFLARE" if "onload" in soname else "OCI_NVIDIA"
        assert seen.libraries[soname, 64] == [f"{OTHERS}/{flag}/lib64/{soname}"]
    assert f"{OTHERS}/OCI_NVIDIA/lib64/libcuda.so.396.26" in seen.mounts
    folders = {"/usr/lib64/nvidia", "/usr/libexec/onload"}
    files = {"/usr/bin/nvidia-smi", "/usr/bin/onload", "/etc/ld.so.conf.d/nvidia-lib64.conf"}
    assert folders | files <= set(seen.mounts)


@pytest.mark.parametrize(("runtime", "cgroup"), [("runc", "v2"), ("crun", "v1")])
def test_a_gpu_and_an_adapter_in_one_line(bundle: Maker, runtime: str, cgroup: str) -> None:
    made = bundle("debian").asks("0", OCI_RDMA="mlx5_1")
    before = roots.listing(made.rootfs)
    commands = "/app/cuda && nvidia-smi && ibv_devinfo"
    seen = look(made, commands, runtime=runtime, cgroup=cgroup, vendors=("rdma",))
    seen.has_exactly(*COMPUTE, node(0), *_verbs(1))
    assert "cuInit 0, 1 devices" in seen.printed
    assert "/dev/infiniband/uverbs1 allowed" in seen.printed
    assert seen.libraries["libcuda.so.1", 64] == [f"{NVIDIAS}/libcuda.so.1"]
    assert seen.libraries["libibverbs.so.1", 64] == [f"{OTHERS}/OCI_RDMA/lib64/libibverbs.so.1"]
    _check_root(made.rootfs, before, seen)


def _commands(shipped: Shipped) -> str:
    """In the container: its programs' words, and whether the files are there."""
    programs = "; ".join(f"{program} || echo {program}: $?" for program in shipped.programs)
    return f"{programs}\nfor path in {' '.join(shipped.paths)}; do cat $path >/dev/null; done"


def _check(shipped: Shipped, seen: Seen, nodes: set[str]) -> None:
    lines = seen.printed.splitlines()
    if nodes:
        assert {line for line in lines if line.startswith("/dev/")} == {f"{path} allowed" for path in nodes}
        assert not [line for line in lines if ": " in line]
    for soname in shipped.sonames:
        assert seen.libraries[soname, 64] == [f"{OTHERS}/{shipped.flag}/lib64/{soname}"], soname


def _check_root(root: Path, before: dict[str, tuple[str, int]], seen: Seen) -> None:
    """Nothing was copied into the root: it has empty mount points, and links to them."""
    new = added(root, before)
    assert set(new.values()) <= {("file", 0), ("folder", 0), ("link", 0)}
    for name, (kind, _) in new.items():
        if kind == "file":
            assert f"/{name}" in seen.mounts, "a file that nothing is mounted on"
        if kind == "link":
            text = os.readlink(root / name)
            target = text if text.startswith("/") else os.path.normpath(f"/{name}/../{text}")
            assert target in seen.mounts, name
