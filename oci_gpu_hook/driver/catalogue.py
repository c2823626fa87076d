# SPDX-License-Identifier: Apache-2.0
"""The driver's files by the capability that brings them: data, and nothing else.

To serve another file, add its name here alone.  Each has all the capabilities that bring it: video needs compute's
libraries too, and display those of graphics.
"""

from __future__ import annotations

from oci_gpu_hook.driver.proc import NIXOS

NIXOS_PROGRAMS = "/run/current-system/sw/bin"

_UTILITY = ("utility",)
_COMPUTE = ("compute", "video")
_VIDEO = ("video",)
_DRAWING = ("graphics", "display")
_BOTH = ("compute", "video", "graphics", "display")


def _each(*rows: tuple[tuple[str, ...], tuple[str, ...]]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Each name with the capabilities that bring it, in the order in which a container gets them."""
    return tuple([(name, capabilities) for capabilities, names in rows for name in names])


# Libraries by name (before ".so").  The file's name ends with the driver's exact version, but for `FILES`.
LIBRARIES = _each(
    (_UTILITY, ("libnvidia-ml", "libnvidia-cfg", "libnvidia-nscq", "libnvsdm", "libnvidia-sandboxutils")),
    (_COMPUTE, ("libcuda", "libcudadebugger", "libnvidia-opencl")),
    # The compiler of PTX, and before 495 that of NVVM, is what Vulkan's ray tracing opens, too.
    (_BOTH, ("libnvidia-gpucomp", "libnvidia-ptxjitcompiler")),
    (_COMPUTE, ("libnvidia-fatbinaryloader",)),
    (_BOTH, ("libnvidia-allocator",)),
    (_COMPUTE, ("libnvidia-compiler", "libnvidia-pkcs11", "libnvidia-pkcs11-openssl3")),
    (_BOTH, ("libnvidia-nvvm",)),
    (_COMPUTE, ("libnvidia-nvvm70", "libnvidia-tileiras")),
    (_VIDEO, ("libvdpau_nvidia", "libnvidia-encode", "libnvidia-opticalflow", "libnvcuvid")),
    (_DRAWING, ("libnvidia-eglcore", "libnvidia-glcore", "libnvidia-tls", "libnvidia-glsi", "libnvidia-fbc")),
    (_DRAWING, ("libnvidia-ifr", "libnvidia-rtcore", "libnvoptix", "libGLX_nvidia", "libEGL_nvidia")),
    (_DRAWING, ("libGLESv2_nvidia", "libGLESv1_CM_nvidia", "libnvidia-glvkspirv", "libnvidia-cbl")),
    (_DRAWING, ("libnvidia-vulkan-producer", "libnvidia-vksc-core", "libnvidia-present")),
    (("ngx",), ("libnvidia-ngx",)),
)

# Further files of libraries, with no driver's version in their names: of 470, since 590, and of some RPMs of 590.
FILES = ("libnvidia-nvvm.so.4.0.0", "libnvidia-nvvm70.so.4", "libGLX_nvidia.so.0")

# What is beside them and not for containers: parts of nvidia-settings' window, and what runs Windows' programs.
NOT_BROUGHT = ("libnvidia-gtk2", "libnvidia-gtk3", "libnvidia-wayland-client", "libnvidia-api")
# What brings a library there that is in no table: a newer driver's.
OF_UNKNOWN = _BOTH

# Libraries with versions of their own, X.Y.Z: the highest is taken.  By rdma-core's libnvsdm finds NVLink's switches.
OWN_VERSION = _each(
    (_DRAWING, tuple([f"libnvidia-egl-{name}" for name in ("gbm", "wayland", "wayland2", "xcb", "xlib")])),
    (_UTILITY, ("libibumad", "libibmad")),
)
# How many numbers their versions have, if not three.
NUMBERS = {"libibumad": 4, "libibmad": 4}

# The subfolder in which a library may lie on a host.  In a container libvdpau looks in the folder itself.
SUBFOLDERS = {"libvdpau_nvidia": "vdpau"}

# Further names, beside the SONAME and a link ``NAME.so`` that the host has, by which programs load a library.
_BY_PLAIN_NAME = ("libcuda", "libvdpau_nvidia", "libnvidia-opticalflow", "libnvidia-vulkan-producer")
OTHER_NAMES = {**{name: f"{name}.so" for name in _BY_PLAIN_NAME}, "libGLX_nvidia": "libGLX_indirect.so.0"}

# Libraries that programs look for in a subfolder, under another name: library, subfolder, that name, capabilities.
ELSEWHERE = (("libnvidia-allocator", "gbm", "nvidia-drm_gbm.so", _DRAWING),)

# Library, and the capability that does not work without it: a driver that lacks one of these is half installed.
REQUIRED = (("libnvidia-ml", "utility"), ("libcuda", "compute"))

# Programs and configuration lie below a container's folder, and come from the first of these folders that has the file;
# `files.binaries` adds more to these.
BINARIES = _each(
    (_UTILITY, ("nvidia-smi", "nvidia-debugdump", "nvidia-persistenced")),
    (_UTILITY, ("nv-fabricmanager", "nvidia-imex", "nvidia-imex-ctl")),
    (("compute",), ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server")),
    (_DRAWING, ("nvidia-xconfig",)),
)
BINARY_FOLDERS = ("/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/local/bin", "/usr/local/sbin", NIXOS_PROGRAMS)
BINARY_TARGET = "/usr/bin"

# A file of the administrator's, in /etc, comes before a package's.  The last two are a driver-root's: of a package of
# Nix's, and of Google's nodes.
CONFIGURATION_FOLDERS = ("/etc", "/usr/local/share", "/usr/share", f"{NIXOS}/share", f"{NIXOS}/etc", "/share", "")
_EGL = "egl/egl_external_platform.d"
SHARED_CONFIGURATION = _each(
    (_DRAWING, ("glvnd/egl_vendor.d/10_nvidia.json", f"{_EGL}/15_nvidia_gbm.json", f"{_EGL}/10_nvidia_wayland.json")),
    (_DRAWING, (f"{_EGL}/09_nvidia_wayland2.json", f"{_EGL}/99_nvidia_wayland2.json", f"{_EGL}/20_nvidia_xcb.json")),
    (_DRAWING, (f"{_EGL}/20_nvidia_xlib.json", "nvidia/nvoptix.bin", "X11/xorg.conf.d/10-nvidia.conf")),
    (_DRAWING, ("X11/xorg.conf.d/nvidia-drm-outputclass.conf",)),
)
SHARED_TARGET, ETC_TARGET = "/usr/share", "/etc"
# What such a file's name ends with if its text may name a library.
NAMES_LIBRARIES = (".json", ".icd")
# {machine}: RPMs have it in the file's name.  i686's is not brought: Vulkan's loaders would take the library twice.
ETC_CONFIGURATION = _each(
    (_DRAWING, ("vulkan/icd.d/nvidia_icd.json", "vulkan/icd.d/nvidia_icd.{machine}.json")),
    (_DRAWING, ("vulkan/icd.d/nvidia_layers.json", "vulkan/implicit_layer.d/nvidia_layers.json")),
    (_DRAWING, ("vulkansc/icd.d/nvidia_icd_vksc.json",)),
    (_COMPUTE, ("OpenCL/vendors/nvidia.icd",)),
)

# Mounted at the host's own path; "gds" is a feature, which NVIDIA_GDS asks for.
AS_THEY_ARE = (("/etc/cufile.json", ("gds",)), ("/run/udev", ("gds",)))

# Modules of the X server: name, the folder below the server's own, and those below a library folder where it may lie.
_BELOW = ("nvidia/current", "nvidia/xorg")
XORG_MODULES = (
    ("nvidia_drv.so", "drivers", ("xorg/modules/drivers", "xorg/modules/updates/drivers", *_BELOW)),
    ("libglxserver_nvidia.so", "extensions", ("xorg/modules/extensions", "xorg/modules/updates/extensions", *_BELOW)),
)
XORG_CAPABILITIES = _DRAWING

# Where the kernel looks for firmware, in its order, behind its parameter's folder (its fw_search_path.rst).
FIRMWARE_CLASS = "/sys/module/firmware_class/parameters/path"
FIRMWARE_FOLDERS = tuple([f"/lib/firmware/{at}nvidia" for at in ("updates/{release}/", "updates/", "{release}/", "")])
FIRMWARE_TARGET = "/lib/firmware/nvidia"

# The CUDA version that the first driver of a branch supports (CUDA's release notes, "CUDA Toolkit and Corresponding
# Driver Versions"), for a host whose NVML was not asked.
CUDA_OF_BRANCH = (
    *((470, "11.4"), (495, "11.5"), (510, "11.6"), (515, "11.7"), (520, "11.8"), (525, "12.0"), (530, "12.1")),
    *((535, "12.2"), (545, "12.3"), (550, "12.4"), (555, "12.5"), (560, "12.6"), (565, "12.7"), (570, "12.8")),
    *((575, "12.9"), (580, "13.0"), (590, "13.1"), (595, "13.2"), (610, "13.3"), (615, "13.4")),
)
