# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's installer puts on a host, as data: libraries, programs, firmware, links, texts.

Must not: touch the file system, or know how any of it is made.
"""

from __future__ import annotations

from typing import NamedTuple


class Library(NamedTuple):
    name: str
    soname: str = ""  # the number after `.so.`; empty: the SONAME carries the driver version
    source: str = "library"  # which file in src/ is its body
    folder: str = ""  # below the library folder
    since: int = 0  # first and last driver branch that has it
    until: int = 9999
    development_link: bool = False  # libX.so -> libX.so.N beside it

    def file(self, driver: str) -> str:
        return f"{self.folder}{self.name}.so.{driver}"

    def soname_of(self, driver: str) -> str:
        return f"{self.name}.so.{self.soname or driver}"


LIBRARIES = (
    Library("libcuda", "1", source="cuda", development_link=True),
    Library("libnvidia-ml", "1", source="nvml", development_link=True),
    Library("libcudadebugger", "1"),
    Library("libnvidia-opencl", "1"),
    Library("libnvidia-gpucomp", since=545),
    Library("libnvidia-ptxjitcompiler", "1", development_link=True),
    Library("libnvidia-allocator", "1", development_link=True),
    Library("libnvidia-pkcs11", until=560),
    Library("libnvidia-pkcs11-openssl3"),
    Library("libnvidia-nvvm", "4", development_link=True),
    Library("libnvidia-cfg", "1", development_link=True),
    Library("libnvidia-encode", "1", development_link=True),
    Library("libnvidia-opticalflow", "1", development_link=True),
    Library("libnvcuvid", "1", development_link=True),
    Library("libvdpau_nvidia", "1", folder="vdpau/"),
    Library("libnvidia-eglcore"),
    Library("libnvidia-glcore"),
    Library("libnvidia-tls"),
    Library("libnvidia-glsi"),
    Library("libnvidia-glvkspirv"),
    Library("libnvidia-rtcore"),
    Library("libnvidia-fbc", "1", development_link=True),
    Library("libnvoptix", "1"),
    Library("libGLX_nvidia", "0"),
    Library("libEGL_nvidia", "0"),
    Library("libGLESv2_nvidia", "2"),
    Library("libGLESv1_CM_nvidia", "1"),
    Library("libnvidia-ngx", "1"),
    Library("libnvidia-nscq", "2", development_link=True),
    Library("libnvidia-sandboxutils", "1", since=560, development_link=True),
    Library("libnvidia-vksc-core", "1", since=545),
)

PROGRAMS = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nv-fabricmanager",
)

FIRMWARE = ("gsp_ga10x.bin", "gsp_tu10x.bin")

SOCKETS = ("/run/nvidia-persistenced/socket", "/run/nvidia-fabricmanager/socket")
MPS_FOLDER = "/tmp/nvidia-mps"

_EGL = '{"file_format_version": "1.0.0", "ICD": {"library_path": "libEGL_nvidia.so.0"}}\n'
_VULKAN = '{"file_format_version": "1.0.1", "ICD": {"library_path": "libGLX_nvidia.so.0", "api_version": "1.4.303"}}\n'

# Small texts of the driver outside the library folder.
TEXTS = {
    "/etc/OpenCL/vendors/nvidia.icd": "libnvidia-opencl.so.1\n",
    "/etc/vulkan/icd.d/nvidia_icd.json": _VULKAN,
    "/usr/share/glvnd/egl_vendor.d/10_nvidia.json": _EGL,
    "/usr/share/nvidia/nvoptix.bin": "simulated\n",
}


def libraries(driver: str) -> list[Library]:
    branch = int(driver.split(".", maxsplit=1)[0])
    return [library for library in LIBRARIES if library.since <= branch <= library.until]


def links(driver: str) -> dict[str, str]:
    """Link -> target, both below the library folder, as the installer and ldconfig leave them."""
    found = {
        "libGLX_indirect.so.0": f"libGLX_nvidia.so.{driver}",
        "libvdpau_nvidia.so": f"vdpau/libvdpau_nvidia.so.{driver}",
        "gbm/nvidia-drm_gbm.so": "../libnvidia-allocator.so.1",
    }
    for library in libraries(driver):
        soname = library.soname_of(driver)
        if library.soname:
            found[library.folder + soname] = f"{library.name}.so.{driver}"
        if library.development_link:
            found[f"{library.folder}{library.name}.so"] = soname
    return found
