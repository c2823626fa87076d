# SPDX-License-Identifier: Apache-2.0
"""Which platform a host is: NVIDIA's driver, a Jetson (Tegra) or WSL 2.  Reads only.

The last two have no GPU below /proc/driver/nvidia/gpus.  The proofs are those of NVIDIA's toolkit (go-nvlib,
HasTegraFiles and HasDXCore), but that no library is loaded.
"""

from __future__ import annotations

from oci_gpu_hook.driver import proc
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel.filetypes import is_character_device, is_regular

NVIDIA, TEGRA, WSL = "nvidia", "tegra", "wsl"

# Of the devices of both, as CDI has them.
KIND = "nvidia.com/gpu"
NAMES = {NVIDIA: "NVIDIA's driver", TEGRA: "Jetson (Tegra)", WSL: "WSL 2"}

# What a container gets that does not ask for all: since JetPack 5 the images have CUDA, cuDNN and TensorRT themselves.
BASE = ("devices.csv", "drivers.csv", "l4t.csv")

# Jetson Linux has the first, a kernel of NVIDIA's the second, and every kernel with a device tree the third.
TEGRA_RELEASE = "/etc/nv_tegra_release"
SOC_FAMILY = "/sys/devices/soc0/family"
COMPATIBLE = "/sys/firmware/devicetree/base/compatible"

DXG = "/dev/dxg"
WSL_FOLDER = "/usr/lib/wsl"
DXCORE = f"{WSL_FOLDER}/lib/libdxcore.so"


def platform_of(host: HostRoot) -> str:
    """``nvidia``, ``tegra``, ``wsl``, or "" for none of them."""
    return prove(host)[0]


def prove(host: HostRoot) -> tuple[str, str]:
    """The platform, and the file that proves it; two empty words for none.  A Jetson Orin has
    /proc/driver/nvidia/version too, by its display, but no GPU there: nvgpu drives that.  On Thor the module drives the
    integrated GPU, and a board may have a GPU on PCI beside it: what containers get the lists say all the same, and
    without lists the module goes first.
    """
    has_module = host.stat(proc.VERSION) is not None
    if has_module and host.names(proc.GPUS) and {*BASE}.isdisjoint(host.names(proc.CSV_FOLDER)):
        return NVIDIA, proc.VERSION
    # /dev/dxg alone is the module's, which any kernel could have: the library comes from Windows.
    node, release = host.stat(DXG), host.stat(TEGRA_RELEASE)
    if node and is_character_device(node) and host.stat(DXCORE):
        return WSL, DXG
    if release and is_regular(release):
        return TEGRA, TEGRA_RELEASE
    if (host.read(SOC_FAMILY) or b"").lower().startswith(b"tegra"):
        return TEGRA, SOC_FAMILY
    # Words that end in a zero byte, the board's first and the chip's last: nvidia,p3737-0000, nvidia,tegra234.
    if any([word.startswith(b"nvidia,tegra") for word in (host.read(COMPATIBLE) or b"").split(b"\0")]):
        return TEGRA, COMPATIBLE
    return (NVIDIA, proc.VERSION) if has_module else ("", "")
