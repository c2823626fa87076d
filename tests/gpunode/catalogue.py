# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's installer puts on a host, as data: libraries, programs, firmware, links, texts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Library(NamedTuple):
    name: str
    soname: str = ""  # the number after `.so.`; empty: the SONAME is the file's own name
    source: str = "library"  # which file in src/ is its body
    folder: str = ""  # below the library folder
    since: int = 0  # first and last driver branch that has it
    until: int = 9999
    development_link: bool = False  # libX.so -> libX.so.N beside it
    twin: bool = False  # there is an i386 one too
    version: str | None = None  # None: the driver's; empty: the file's name ends in `.so`

    def basename(self, driver: str) -> str:
        version = driver if self.version is None else self.version
        return f"{self.name}.so.{version}".rstrip(".")

    def file(self, driver: str) -> str:
        return self.folder + self.basename(driver)

    def soname_of(self, driver: str) -> str:
        return f"{self.name}.so.{self.soname}" if self.soname else self.basename(driver)


LIBRARIES = (
    # utility
    Library("libnvidia-ml", "1", source="nvml", development_link=True, twin=True),
    Library("libnvidia-cfg", "1", development_link=True),
    Library("libnvidia-nscq", "2", development_link=True),
    Library("libnvidia-api", "1", since=530),
    Library("libnvidia-sandboxutils", "1", since=560, development_link=True),
    # compute
    Library("libcuda", "1", source="cuda", development_link=True, twin=True),
    Library("libcudadebugger", "1", since=495),
    Library("libnvidia-opencl", "1", twin=True),
    Library("libnvidia-gpucomp", since=545, twin=True),
    Library("libnvidia-ptxjitcompiler", "1", development_link=True, twin=True),
    Library("libnvidia-fatbinaryloader", until=450),
    Library("libnvidia-compiler", until=495, twin=True),
    Library("libnvidia-allocator", "1", development_link=True, twin=True),
    Library("libnvidia-pkcs11", since=495, until=560),
    Library("libnvidia-pkcs11-openssl3", since=495),
    Library("libnvidia-nvvm", "4", development_link=True, twin=True),
    Library("libnvidia-nvvm70", version="4", since=590),
    Library("libnvidia-tileiras", since=590),
    # video
    Library("libnvidia-encode", "1", development_link=True, twin=True),
    Library("libnvidia-opticalflow", "1", development_link=True, twin=True),
    Library("libnvcuvid", "1", development_link=True, twin=True),
    Library("libvdpau_nvidia", "1", folder="vdpau/", twin=True),
    # graphics and display
    Library("libnvidia-eglcore", twin=True),
    Library("libnvidia-glcore", twin=True),
    Library("libnvidia-tls", twin=True),
    Library("libnvidia-glsi", twin=True),
    Library("libnvidia-glvkspirv", twin=True),
    Library("libnvidia-rtcore"),
    Library("libnvidia-cbl", until=495),
    Library("libnvidia-ifr", "1", until=495, twin=True),
    Library("libnvidia-fbc", "1", development_link=True, twin=True),
    Library("libnvoptix", "1"),
    Library("libGLX_nvidia", "0", twin=True),
    Library("libEGL_nvidia", "0", twin=True),
    Library("libGLESv2_nvidia", "2", twin=True),
    Library("libGLESv1_CM_nvidia", "1", twin=True),
    Library("libnvidia-vksc-core", "1", since=545),
    Library("libnvidia-present", since=575),
    Library("libnvidia-vulkan-producer", until=550, development_link=True),
    # These come with the driver and have versions of their own.
    Library("libnvidia-egl-gbm", "1", version="1.1.2"),
    Library("libnvidia-egl-wayland", "1", version="1.1.19"),
    Library("libnvidia-egl-wayland2", "1", version="1.0.0", since=590),
    Library("libnvidia-egl-xcb", "1", version="1.0.3", since=560),
    Library("libnvidia-egl-xlib", "1", version="1.0.3", since=560),
    Library("nvidia_drv", folder="xorg/modules/drivers/", version=""),
    Library("libglxserver_nvidia", folder="xorg/modules/extensions/", development_link=True),
    # ngx
    Library("libnvidia-ngx", "1"),
)

PROGRAMS = (
    *("nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"),
    *("nv-fabricmanager", "nvidia-imex", "nvidia-imex-ctl", "nvidia-xconfig"),
)

FIRMWARE = ("gsp_ga10x.bin", "gsp_tu10x.bin")

SOCKETS = ("/run/nvidia-persistenced/socket", "/run/nvidia-fabricmanager/socket")
MPS_FOLDER = "/tmp/nvidia-mps"

_EGL = '{"file_format_version": "1.0.0", "ICD": {"library_path": "libEGL_nvidia.so.0"}}\n'
_PLATFORM = '{{"file_format_version": "1.0.0", "ICD": {{"library_path": "{}.so.1"}}}}\n'
_VULKAN = '{"file_format_version": "1.0.1", "ICD": {"library_path": "libGLX_nvidia.so.0", "api_version": "1.4.303"}}\n'
_LAYER = '{"file_format_version": "1.0.0", "layer": {"name": "VK_LAYER_NV_optimus", "type": "INSTANCE"}}\n'
_DEVICE = 'Section "Device"\n    Identifier "nvidia"\n    Driver "nvidia"\nEndSection\n'
_OUTPUT = 'Section "OutputClass"\n    MatchDriver "nvidia-drm"\n    Driver "nvidia"\nEndSection\n'

# Small texts of the driver outside the library folder.
TEXTS = {
    "/etc/OpenCL/vendors/nvidia.icd": "libnvidia-opencl.so.1\n",
    "/etc/vulkan/icd.d/nvidia_icd.json": _VULKAN,
    "/etc/vulkan/implicit_layer.d/nvidia_layers.json": _LAYER,
    "/usr/share/glvnd/egl_vendor.d/10_nvidia.json": _EGL,
    "/usr/share/nvidia/nvoptix.bin": "simulated\n",
    "/usr/share/X11/xorg.conf.d/10-nvidia.conf": _DEVICE,
    "/usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf": _OUTPUT,
}

# EGL's platforms: file -> the library, with which it comes.
_PLATFORMS = {
    "09_nvidia_wayland2": "libnvidia-egl-wayland2",
    "10_nvidia_wayland": "libnvidia-egl-wayland",
    "15_nvidia_gbm": "libnvidia-egl-gbm",
    "20_nvidia_xcb": "libnvidia-egl-xcb",
    "20_nvidia_xlib": "libnvidia-egl-xlib",
}


def libraries(driver: str) -> list[Library]:
    branch = int(driver.split(".", maxsplit=1)[0])
    return [library for library in LIBRARIES if library.since <= branch <= library.until]


def twins(driver: str) -> list[Library]:
    """Those that are there for i386 too."""
    return [library for library in libraries(driver) if library.twin]


def texts(driver: str) -> dict[str, str]:
    """`TEXTS`, and what comes with some libraries."""
    found = dict(TEXTS)
    there = {library.name for library in libraries(driver)}
    for name, library in _PLATFORMS.items():
        if library in there:
            path = f"/usr/share/egl/egl_external_platform.d/{name}.json"
            found[path] = _PLATFORM.format(library)
    return found


def links_of(chosen: Iterable[Library], driver: str) -> dict[str, str]:
    """Link -> target of these libraries, both below the library folder."""
    found = {}
    for library in chosen:
        soname = library.soname_of(driver)
        if library.soname:
            found[library.folder + soname] = library.basename(driver)
        if library.development_link:
            found[f"{library.folder}{library.name}.so"] = soname
    return found


def links(driver: str) -> dict[str, str]:
    """Link -> target, both below the library folder, as the installer and ldconfig leave them."""
    return {
        "libGLX_indirect.so.0": f"libGLX_nvidia.so.{driver}",
        "libvdpau_nvidia.so": f"vdpau/libvdpau_nvidia.so.{driver}",
        "gbm/nvidia-drm_gbm.so": "../libnvidia-allocator.so.1",
        **links_of(libraries(driver), driver),
    }
