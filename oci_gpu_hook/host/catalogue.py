# SPDX-License-Identifier: Apache-2.0
"""The driver's files by the capability that brings them: data, and nothing else.

To serve another library, program or configuration file, add a line here; nothing else changes.  A capability that
brings another's files as well is named for both: video uses compute's libraries, display those of graphics.
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

# These come with the driver and count their own versions, X.Y.Z: the highest is taken.
OWN_VERSION = (
    ("libnvidia-egl-gbm", _DRAWING),
    ("libnvidia-egl-wayland", _DRAWING),
    ("libnvidia-egl-wayland2", _DRAWING),
    ("libnvidia-egl-xcb", _DRAWING),
    ("libnvidia-egl-xlib", _DRAWING),
)

# Where a library may lie below a library folder, when not directly in it.
SUBFOLDERS = {"libvdpau_nvidia": "vdpau"}

# Names beside the SONAME by which programs load a library.
OTHER_NAMES = {
    "libcuda": ("libcuda.so",),
    "libGLX_nvidia": ("libGLX_indirect.so.0",),
    "libnvidia-opticalflow": ("libnvidia-opticalflow.so",),
    "libnvidia-vulkan-producer": ("libnvidia-vulkan-producer.so",),
}

# A library under another name in a folder of its own: library, folder, name there, capabilities.
ELSEWHERE = (("libnvidia-allocator", "gbm", "nvidia-drm_gbm.so", _DRAWING),)

# Without these the capability is void, and a driver that lacks one is half installed.
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

# Name below the folder, and what brings it.  The first folder of CONFIGURATION_FOLDERS that has it gives it: what the
# administrator has put into /etc comes before what a package has brought.
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
# {machine}: as RPMs name the file for each architecture.
ETC_CONFIGURATION = (
    ("vulkan/icd.d/nvidia_icd.json", _DRAWING),
    ("vulkan/icd.d/nvidia_icd.{machine}.json", _DRAWING),
    ("vulkan/icd.d/nvidia_layers.json", _DRAWING),
    ("vulkan/implicit_layer.d/nvidia_layers.json", _DRAWING),
    ("OpenCL/vendors/nvidia.icd", _COMPUTE),
)
ETC_TARGET = "/etc"
CONFIGURATION_FOLDERS = ("/etc", "/usr/local/share", "/usr/share")

# Taken as they are, at the host's own path; "gds" is a feature, asked for by NVIDIA_GDS.
AS_THEY_ARE = (("/etc/cufile.json", ("gds",)), ("/run/udev", ("gds",)))

# Modules of the X server: name, and the folders below a library folder where it may lie.
XORG_MODULES = (
    ("nvidia_drv.so", ("xorg/modules/drivers", "nvidia/current", "nvidia/xorg")),
    ("libglxserver_nvidia.so", ("xorg/modules/extensions", "nvidia/current", "nvidia/xorg")),
)
XORG_CAPABILITIES = _DRAWING

# In the kernel's own order (Documentation/driver-api/firmware/fw_search_path.rst); before all, what its parameter says.
FIRMWARE_CLASS = "/sys/module/firmware_class/parameters/path"
FIRMWARE_FOLDERS = (
    "/lib/firmware/updates/{release}/nvidia",
    "/lib/firmware/updates/nvidia",
    "/lib/firmware/{release}/nvidia",
    "/lib/firmware/nvidia",
)
FIRMWARE_TARGET = "/lib/firmware/nvidia"

# The CUDA version that the first driver of a branch supports (CUDA's release notes, "CUDA Toolkit and Corresponding
# Driver Versions").  NVML knows better; without it a later branch supports at least what an earlier one did.
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
