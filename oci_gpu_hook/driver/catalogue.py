# SPDX-License-Identifier: Apache-2.0
"""The driver's files by the capability that brings them: data, and nothing else.

To serve another library, program or configuration file, add a line here; nothing else changes.  Each file has all the
capabilities that bring it: video needs compute's libraries too, and display those of graphics.
"""

from __future__ import annotations

_UTILITY = ("utility",)
_COMPUTE = ("compute", "video")
_VIDEO = ("video",)
_DRAWING = ("graphics", "display")
_BOTH = ("compute", "video", "graphics", "display")

# Name (before ".so"), and the capabilities that bring it.  The file's name ends with the driver's exact version.
LIBRARIES = (
    ("libnvidia-ml", _UTILITY),
    ("libnvidia-cfg", _UTILITY),
    ("libnvidia-nscq", _UTILITY),
    ("libnvsdm", _UTILITY),
    ("libnvidia-sandboxutils", _UTILITY),
    ("libcuda", _COMPUTE),
    ("libcudadebugger", _COMPUTE),
    ("libnvidia-opencl", _COMPUTE),
    ("libnvidia-gpucomp", _BOTH),
    ("libnvidia-ptxjitcompiler", _COMPUTE),
    ("libnvidia-fatbinaryloader", _COMPUTE),
    ("libnvidia-allocator", _BOTH),
    ("libnvidia-compiler", _COMPUTE),
    ("libnvidia-pkcs11", _COMPUTE),
    ("libnvidia-pkcs11-openssl3", _COMPUTE),
    ("libnvidia-nvvm", _COMPUTE),
    ("libnvidia-nvvm70", _COMPUTE),
    ("libnvidia-tileiras", _COMPUTE),
    ("libvdpau_nvidia", _VIDEO),
    ("libnvidia-encode", _VIDEO),
    ("libnvidia-opticalflow", _VIDEO),
    ("libnvcuvid", _VIDEO),
    ("libnvidia-eglcore", _DRAWING),
    ("libnvidia-glcore", _DRAWING),
    ("libnvidia-tls", _DRAWING),
    ("libnvidia-glsi", _DRAWING),
    ("libnvidia-fbc", _DRAWING),
    ("libnvidia-ifr", _DRAWING),
    ("libnvidia-rtcore", _DRAWING),
    ("libnvoptix", _DRAWING),
    ("libGLX_nvidia", _DRAWING),
    ("libEGL_nvidia", _DRAWING),
    ("libGLESv2_nvidia", _DRAWING),
    ("libGLESv1_CM_nvidia", _DRAWING),
    ("libnvidia-glvkspirv", _DRAWING),
    ("libnvidia-cbl", _DRAWING),
    ("libnvidia-vulkan-producer", _DRAWING),
    ("libnvidia-vksc-core", _DRAWING),
    ("libnvidia-ngx", ("ngx",)),
)

# Libraries that have versions of their own, X.Y.Z: the highest is taken.  The last two are rdma-core's, by which
# libnvsdm finds NVLink's switches.
OWN_VERSION = (
    ("libnvidia-egl-gbm", _DRAWING),
    ("libnvidia-egl-wayland", _DRAWING),
    ("libnvidia-egl-wayland2", _DRAWING),
    ("libnvidia-egl-xcb", _DRAWING),
    ("libnvidia-egl-xlib", _DRAWING),
    ("libibumad", _UTILITY),
    ("libibmad", _UTILITY),
)
# How many numbers their versions have, where these are not three.
NUMBERS = {"libibumad": 4, "libibmad": 4}

# The subfolder of a library folder in which a library may lie.
SUBFOLDERS = {"libvdpau_nvidia": "vdpau"}

# Further names, beside the SONAME, by which programs load a library.
OTHER_NAMES = {
    "libcuda": ("libcuda.so",),
    "libGLX_nvidia": ("libGLX_indirect.so.0",),
    "libnvidia-opticalflow": ("libnvidia-opticalflow.so",),
    "libnvidia-vulkan-producer": ("libnvidia-vulkan-producer.so",),
}

# Libraries that programs look for in a subfolder, under another name: library, subfolder, that name, capabilities.
ELSEWHERE = (("libnvidia-allocator", "gbm", "nvidia-drm_gbm.so", _DRAWING),)

# Library, and the capability that does not work without it: a driver that lacks one of these is half installed.
REQUIRED = (("libnvidia-ml", "utility"), ("libcuda", "compute"))

BINARIES = (
    ("nvidia-smi", _UTILITY),
    ("nvidia-debugdump", _UTILITY),
    ("nvidia-persistenced", _UTILITY),
    ("nv-fabricmanager", _UTILITY),
    ("nvidia-imex", _UTILITY),
    ("nvidia-imex-ctl", _UTILITY),
    ("nvidia-cuda-mps-control", ("compute",)),
    ("nvidia-cuda-mps-server", ("compute",)),
    ("nvidia-xconfig", _DRAWING),
)
BINARY_FOLDERS = ("/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/local/bin", "/usr/local/sbin")
BINARY_TARGET = "/usr/bin"

# Path below one of CONFIGURATION_FOLDERS, and the capabilities that bring it.  The first folder that has the file
# counts: a file of the administrator's, in /etc, comes before a package's.
SHARED_CONFIGURATION = (
    ("glvnd/egl_vendor.d/10_nvidia.json", _DRAWING),
    ("egl/egl_external_platform.d/15_nvidia_gbm.json", _DRAWING),
    ("egl/egl_external_platform.d/10_nvidia_wayland.json", _DRAWING),
    ("egl/egl_external_platform.d/09_nvidia_wayland2.json", _DRAWING),
    ("egl/egl_external_platform.d/20_nvidia_xcb.json", _DRAWING),
    ("egl/egl_external_platform.d/20_nvidia_xlib.json", _DRAWING),
    ("nvidia/nvoptix.bin", _DRAWING),
    ("X11/xorg.conf.d/10-nvidia.conf", _DRAWING),
    ("X11/xorg.conf.d/nvidia-drm-outputclass.conf", _DRAWING),
)
SHARED_TARGET = "/usr/share"
# {machine}: RPMs name the file after the architecture.
ETC_CONFIGURATION = (
    ("vulkan/icd.d/nvidia_icd.json", _DRAWING),
    ("vulkan/icd.d/nvidia_icd.{machine}.json", _DRAWING),
    ("vulkan/icd.d/nvidia_layers.json", _DRAWING),
    ("vulkan/implicit_layer.d/nvidia_layers.json", _DRAWING),
    ("OpenCL/vendors/nvidia.icd", _COMPUTE),
)
ETC_TARGET = "/etc"
CONFIGURATION_FOLDERS = ("/etc", "/usr/local/share", "/usr/share")

# Mounted at the host's own path; "gds" is a feature, which NVIDIA_GDS asks for.
AS_THEY_ARE = (("/etc/cufile.json", ("gds",)), ("/run/udev", ("gds",)))

# Modules of the X server: name, and the folders below a library folder where it may lie.
XORG_MODULES = (
    ("nvidia_drv.so", ("xorg/modules/drivers", "nvidia/current", "nvidia/xorg")),
    ("libglxserver_nvidia.so", ("xorg/modules/extensions", "nvidia/current", "nvidia/xorg")),
)
XORG_CAPABILITIES = _DRAWING

# Where the kernel looks for firmware, in its order (Documentation/driver-api/firmware/fw_search_path.rst).  The folder
# in its parameter comes before all others.
FIRMWARE_CLASS = "/sys/module/firmware_class/parameters/path"
FIRMWARE_FOLDERS = (
    "/lib/firmware/updates/{release}/nvidia",
    "/lib/firmware/updates/nvidia",
    "/lib/firmware/{release}/nvidia",
    "/lib/firmware/nvidia",
)
FIRMWARE_TARGET = "/lib/firmware/nvidia"

# The CUDA version that the first driver of a branch supports (CUDA's release notes, "CUDA Toolkit and Corresponding
# Driver Versions").  NVML gives the exact version.  Without NVML, the driver's branch or the next older one counts.
CUDA_OF_BRANCH = (
    (450, "11.0"),
    (455, "11.1"),
    (460, "11.2"),
    (465, "11.3"),
    (470, "11.4"),
    (495, "11.5"),
    (510, "11.6"),
    (515, "11.7"),
    (520, "11.8"),
    (525, "12.0"),
    (530, "12.1"),
    (535, "12.2"),
    (545, "12.3"),
    (550, "12.4"),
    (555, "12.5"),
    (560, "12.6"),
    (565, "12.7"),
    (570, "12.8"),
    (575, "12.9"),
    (580, "13.0"),
    (590, "13.1"),
)
