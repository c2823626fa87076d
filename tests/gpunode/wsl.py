# SPDX-License-Identifier: Apache-2.0
"""WSL 2 on a Windows with NVIDIA's driver: one device, the libraries that Windows shows, its driver packages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .procfs import MISC_MAJOR, DeviceNode

if TYPE_CHECKING:
    from .vendors.additions import Additions

DXG = "/dev/dxg"
DXG_MINOR = 1001  # a minor that the kernel gives out last, if ever
FOLDER = "/usr/lib/wsl/lib"
DRIVERS = "/usr/lib/wsl/drivers"
STORE = f"{DRIVERS}/nv_dispi.inf_amd64_feedb8c0271ca811"

# Windows has no links: what are names of one library elsewhere are files of the same content here.
LIBRARIES = {
    "libcuda.so": "libcuda.so.1",
    "libcuda.so.1": "libcuda.so.1",
    "libcuda.so.1.1": "libcuda.so.1",
    "libcudadebugger.so.1": "libcudadebugger.so.1",
    "libd3d12.so": "libd3d12.so",
    "libd3d12core.so": "libd3d12core.so",
    "libdxcore.so": "libdxcore.so",
    "libnvcuvid.so": "libnvcuvid.so.1",
    "libnvcuvid.so.1": "libnvcuvid.so.1",
    "libnvidia-encode.so": "libnvidia-encode.so.1",
    "libnvidia-encode.so.1": "libnvidia-encode.so.1",
    "libnvidia-ml.so.1": "libnvidia-ml.so.1",
    "libnvidia-opticalflow.so": "libnvidia-opticalflow.so.1",
    "libnvidia-opticalflow.so.1": "libnvidia-opticalflow.so.1",
    "libnvoptix.so.1": "libnvoptix_loader.so.1",
    "libnvwgf2umx.so": "libnvwgf2umx.so",
}
STORED = {
    "libcuda.so.1.1": "libcuda.so.1",
    "libcuda_loader.so": "libcuda_loader.so",
    "libnvidia-ptxjitcompiler.so.1": "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-ml.so.1": "libnvidia-ml.so.1",
    "libnvidia-ml_loader.so": "libnvidia-ml_loader.so",
    "libnvdxgdmal.so.1": "libnvdxgdmal.so.1",
}


def wsl(node: Additions) -> None:
    """However many GPUs Windows has."""
    node.major("misc", MISC_MAJOR)
    node.nodes.append(DeviceNode(DXG, MISC_MAJOR, DXG_MINOR))
    node.libraries.update({f"{FOLDER}/{name}": soname for name, soname in LIBRARIES.items()})
    node.libraries.update({f"{STORE}/{name}": soname for name, soname in STORED.items()})
    node.program(DXG, f"{FOLDER}/nvidia-smi", f"{STORE}/nvidia-smi")
    node.texts[f"{STORE}/nvcubins.bin"] = "simulated\n"
    node.texts[f"{STORE}/nvapi64.dll"] = "for Windows\n"
    node.texts[f"{DRIVERS}/iigd_dch.inf_amd64_9f/igdgmm64.dll"] = "for Windows\n"
    node.texts["/etc/ld.so.conf.d/ld.wsl.conf"] = f"{FOLDER}\n"
