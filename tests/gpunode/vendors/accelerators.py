# SPDX-License-Identifier: Apache-2.0
"""The drivers of AMD's, Intel's, Habana's, AWS's and Xilinx's accelerators."""

from __future__ import annotations

from .additions import Additions, numbered

ROCM = "6.2.0"


def amd(node: Additions) -> None:
    """Two Instinct; amdgpu found the one with the higher PCI address first."""
    node.sysfs.module("amdgpu", "6.8.5")
    first, second = (
        node.pci(address, "1002:740f", "0x038000", "amdgpu") for address in ("0000:23:00.0", "0000:83:00.0")
    )
    node.node("/dev/kfd", (node.major("kfd"), 0), "kfd")
    node.drm([second, first])
    folder = f"/opt/rocm-{ROCM}"
    node.links["/opt/rocm"] = f"rocm-{ROCM}"
    for name in (
        *("libhsa-runtime64.so.1.14.60200", "libamdhip64.so.6.2.60200", "libhiprtc.so.6.2.60200", "libhsakmt.so.1.0.6"),
        *("librocprofiler-register.so.0.4.0", "libamd_comgr.so.2.8.60200", "librocm_smi64.so.7.3.60200"),
        *("libamd_smi.so.24.6.60200", "librocm-core.so.1.0.60200", "librccl.so.1.0.60200"),
        *("librocblas.so.4.2.60200", "libamdocl64.so.2.1.60200"),
    ):
        node.library(f"{folder}/lib/{name}", numbered(name), development=True)
    node.library("libdrm_amdgpu.so.1.0.0", "libdrm_amdgpu.so.1")
    nodes = "/dev/kfd /dev/dri"
    node.program(nodes, *(f"{folder}/bin/{name}" for name in ("rocminfo", "rocm-smi", "amd-smi")))
    node.texts[f"{folder}/.info/version"] = f"{ROCM}-66\n"
    node.texts[f"{folder}/share/amd_smi/README.md"] = "simulated\n"
    node.texts["/etc/OpenCL/vendors/amdocl64_60200_66.icd"] = "libamdocl64.so\n"
    node.texts["/etc/ld.so.conf.d/10-rocm-opencl.conf"] = f"{folder}/lib\n"
    node.texts["/usr/share/libdrm/amdgpu.ids"] = "740F,\t02,\tAMD Instinct MI210\n"


def mi300(node: Additions) -> None:
    """Two MI300X, the first in eight partitions (CPX) and the second in two (DPX).

    Whatever the mode, amdgpu has made a platform device and its nodes for each further partition that there could be.
    """
    node.sysfs.module("amdgpu", "6.8.5")
    if "kfd" not in node.registered:
        node.node("/dev/kfd", (node.major("kfd"), 0), "kfd")
    topology = {0: (0, 0)}
    for first, bus, partitions in ((0, 0x05, 8), (7, 0x15, 2)):
        further = [f"devices/platform/amdgpu_xcp_{first + number}" for number in range(7)]
        minor = node.drm([node.pci(f"0000:{bus:02x}:00.0", "1002:74a1", "0x120000", "amdgpu"), *further])
        for number in range(partitions):
            topology[len(topology)] = (minor + number, bus << 8 | number)
    for name, (render, place) in topology.items():
        said = f"simd_count {608 if render else 0}\nlocation_id {place}\ndomain 0\ndrm_render_minor {render}\n"
        node.sysfs.files[f"devices/virtual/kfd/kfd/topology/nodes/{name}/properties"] = f"{said}unique_id {1 << 63}\n"


def intel(node: Additions) -> None:
    """Two data centre GPUs and a neural processor."""
    node.sysfs.module("i915")
    node.sysfs.module("intel_vpu")
    gpus = [node.pci(address, "8086:56c0", "0x038000", "i915") for address in ("0000:4d:00.0", "0000:b5:00.0")]
    node.drm(gpus)
    node.accel(node.pci("0000:40:0b.0", "8086:643e", "0x120000", "intel_vpu"))
    for name in (
        *("libze_loader.so.1.17.44", "libze_validation_layer.so.1.17.44", "libze_tracing_layer.so.1.17.44"),
        *("libze_intel_gpu.so.1.3.30872", "libze_intel_npu.so.1.8.0", "libigdgmm.so.12.5.0", "libigc.so.1.0.17537"),
        *("libigdfcl.so.1.0.17537", "libiga64.so.1.0.17537", "libopencl-clang.so.14", "libvpl.so.2.12"),
    ):
        node.library(name, numbered(name))
    node.library("libmfx-gen.so.1.2.12", "libmfx-gen.so.1.2")
    node.library("intel-opencl/libigdrcl.so")
    node.library("dri/iHD_drv_video.so")
    node.texts["/etc/OpenCL/vendors/intel.icd"] = f"{node.library_folder}/intel-opencl/libigdrcl.so\n"
    node.program("/dev/dri /dev/accel", "/usr/bin/xpu-smi", "/usr/bin/ocloc")


def habana(node: Additions) -> None:
    """Two Gaudi 2, each with a node to compute and one to look."""
    node.sysfs.module("habanalabs", "1.18.0-524")
    control = node.major("habanalabs")
    for address in ("0000:33:00.0", "0000:9a:00.0"):
        folder = node.pci(address, "1da3:1020", "0x120000", "habanalabs")
        number = node.accel(folder)
        node.node(f"/dev/accel/accel_controlD{number}", (control, number), "accel", folder)
    folder = "/usr/lib/habanalabs"
    for name in (
        *("libhl-thunk", "libhl_logger", "libhlml", "libSynapse", "libSynapse_profiler", "libSynapseUtils"),
        *("libhcl", "libtpc_kernels", "libscal", "libaeon"),
    ):
        node.library(f"{folder}/{name}.so")
    node.texts["/etc/ld.so.conf.d/habanalabs.conf"] = f"{folder}\n"
    node.texts["/lib/firmware/habanalabs/gaudi2/gaudi2-fw.bin"] = "simulated\n"
    node.program("/dev/accel", "/usr/bin/hl-smi", "/opt/habanalabs/qual/gaudi2/bin/hl_qual")


def neuron(node: Additions) -> None:
    """Two devices of a Trainium; to sysfs they are no PCI device's."""
    node.sysfs.module("neuron", "2.18.12.0")
    major = node.major("neuron")
    for number, address in enumerate(("0000:a0:1c.0", "0000:a0:1d.0")):
        node.pci(address, "1d0f:7164", "0x088000", "neuron")
        node.node(f"/dev/neuron{number}", (major, number), "neuron_device", core_count="2")
    folder = "/opt/aws/neuron"
    for name, version, soname in (
        ("libnrt", "2.22.14.0", "1"),
        ("libnccom", "2.22.26.0", "2"),
        ("libncfw", "2.22.14.0", "2.22.14.0"),
        ("libnccom-net", "2.22.26.0", "2"),
    ):
        node.library(f"{folder}/lib/{name}.so.{version}", f"{name}.so.{soname}", development=True)
    node.texts["/etc/ld.so.conf.d/aws_neuron.conf"] = f"{folder}/lib\n"
    tools = ("neuron-ls", "neuron-top", "neuron-monitor")
    node.program("/dev/neuron0 /dev/neuron1", *(f"{folder}/bin/{name}" for name in tools))


def xrt(node: Additions) -> None:
    """Two Alveo, each with a function for its users and one for who loads it."""
    node.sysfs.module("xocl", "2.16.204,0000000000000000000000000000000000000000")
    node.sysfs.module("xclmgmt", "2.16.204,0000000000000000000000000000000000000000")
    major = node.major("xclmgmt")
    users = []
    for minor, slot in enumerate(("0000:65:00", "0000:e7:00")):
        manager = node.pci(f"{slot}.0", "10ee:5004", "0x120000", "xclmgmt")
        users.append(node.pci(f"{slot}.1", "10ee:5005", "0x120000", "xocl"))
        number = int(slot.split(":")[1], 16) << 8  # bus and function, as xclmgmt names it
        node.node(f"/dev/xclmgmt{number}", (major, minor), "xrt_mgmt", manager, 0o600)
    node.drm(users, cards=False)
    folder = "/opt/xilinx/xrt"
    for name in ("xrt_core", "xrt_coreutil", "xrt++", "xilinxopencl", "xma2api", "xdp_core"):
        node.library(f"{folder}/lib/lib{name}.so.2.16.0", f"lib{name}.so.2", development=True)
    node.library(f"{folder}/lib/xrt/module/libxdp_hal_plugin.so.2.16.0", "libxdp_hal_plugin.so.2")
    node.program("/dev/dri", *(f"{folder}/bin/{name}" for name in ("xbutil", "xrt-smi", "unwrapped/xbutil")))
    node.texts[f"{folder}/version.json"] = '{"BUILD_VERSION": "2.16.204"}\n'
    node.texts[f"{folder}/setup.sh"] = f"export XILINX_XRT={folder}\n"
    node.texts["/etc/OpenCL/vendors/xilinx.icd"] = "libxilinxopencl.so\n"
    node.texts["/etc/ld.so.conf.d/xrt.conf"] = f"{folder}/lib\n"
