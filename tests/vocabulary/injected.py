# SPDX-License-Identifier: Apache-2.0
"""Rows of section 2: what comes into a container, for which capability."""

from __future__ import annotations

import platform

from oci_gpu_hook.asking import Spec
from oci_gpu_hook.container.compat import Compat
from oci_gpu_hook.driver import catalogue
from oci_gpu_hook.formats import glob
from oci_gpu_hook.operations import Device, LdCache, Mount, Service, Symlink, Tmpfs
from oci_gpu_hook.planning import meanings
from oci_gpu_hook.vendors import wsl
from tests.unit import hosts
from tests.vocabulary import host
from tests.vocabulary.host import FOLDER, GIVEN, LAYOUT, REFUSED, TWIN, Row, brings, everything, planned, targets


def _comes(paths: str, by: str, without: str | None = None, **more: str) -> bool:
    """Whether all these paths, with blanks between them, come by capabilities and variables, and none by `without`."""
    lacks = set() if without is None else targets("1", without)
    return {*paths.split()} <= targets("1", by, **more) - lacks


def _options(path: str, capabilities: str = "utility") -> tuple[str, ...]:
    """Of the mount to which the link at `path` leads."""
    operations = planned("1", capabilities).operations
    (led,) = [it.to for it in operations if isinstance(it, Symlink) and it.path == path]
    (mount,) = [it for it in operations if isinstance(it, Mount) and it.target == led]
    return mount.options


def _by_cdi_too(path: str) -> bool:
    """Whether the hook brings it where a CDI spec is used, too."""
    plan = planned("1", "utility")
    paths = tuple([it.path for it in plan.operations if isinstance(it, Device)])
    left = meanings.leave_to_engine(plan, Spec(("utility",), ""), paths).operations
    return path in [it.target for it in left if isinstance(it, Service)]


def _tmpfs(path: str, capabilities: str = "utility") -> Tmpfs:
    (found,) = [it for it in planned("1", capabilities).operations if isinstance(it, Tmpfs) and it.path == path]
    return found


COMPAT = Compat("/usr/local/cuda/compat", ("libcuda.so.1", "libcuda.so.999.1.1"), "libcuda.so.999.1.1", (999, 1, 1))


def _newer_cuda_comes_first() -> bool:
    operations = planned("1", "compute", LAYOUT._replace(compat=COMPAT)).operations
    (cache,) = [it for it in operations if isinstance(it, LdCache)]
    mounts = [it for it in operations if isinstance(it, Mount)]
    links = {it.path: it.to for it in operations if isinstance(it, Symlink)}
    named = [links.get(path) for soname, path in cache.entries() if soname == "libcuda.so.1"]
    beside = [mount for mount in mounts if "compat" in mount.source or links.keys() & {*mount.paths()}]
    return named == ["/usr/local/cuda/compat/libcuda.so.1"] and not beside


GIVEN_TWIN = f"{host.GIVEN_32}/{TWIN.rpartition('/')[2]}"
COMPUTE = (
    "libcuda libcudadebugger libnvidia-opencl libnvidia-gpucomp libnvidia-ptxjitcompiler libnvidia-fatbinaryloader "
    "libnvidia-allocator libnvidia-compiler libnvidia-pkcs11 libnvidia-pkcs11-openssl3 libnvidia-nvvm "
    "libnvidia-nvvm70 libnvidia-tileiras"
)
GRAPHICS = (
    "libnvidia-eglcore libnvidia-glcore libnvidia-tls libnvidia-glsi libnvidia-fbc libnvidia-ifr libnvidia-rtcore "
    "libnvoptix libGLX_nvidia libEGL_nvidia libGLESv2_nvidia libGLESv1_CM_nvidia libnvidia-glvkspirv libnvidia-cbl "
    "libnvidia-gpucomp libnvidia-allocator libnvidia-ptxjitcompiler libnvidia-nvvm"
)
PROGRAMS = ("nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nv-fabricmanager")
SHARED = (
    "/usr/share/glvnd/egl_vendor.d/10_nvidia.json /usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json "
    "/usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json "
    "/usr/share/egl/egl_external_platform.d/09_nvidia_wayland2.json "
    "/usr/share/egl/egl_external_platform.d/20_nvidia_xcb.json "
    "/usr/share/egl/egl_external_platform.d/20_nvidia_xlib.json "
    "/usr/share/nvidia/nvoptix.bin /usr/share/X11/xorg.conf.d/10-nvidia.conf "
    "/usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf"
)
VULKAN = (
    "/etc/vulkan/icd.d/nvidia_icd.json /etc/vulkan/icd.d/nvidia_layers.json "
    f"/etc/vulkan/implicit_layer.d/nvidia_layers.json /etc/vulkan/icd.d/nvidia_icd.{platform.machine()}.json"
)

INJECTED = (
    Row("2.1", "utility", lambda: brings("utility", "libnvidia-ml libnvidia-cfg libnvidia-nscq libnvsdm")),
    Row("2.1", "compute (also with video)",
        lambda: all(brings(capability, COMPUTE) for capability in ("compute", "video"))),
    Row("2.1", "video", lambda: brings("video", "libvdpau_nvidia libnvidia-encode libnvidia-opticalflow libnvcuvid")),
    Row("2.1", "graphics / display",
        lambda: all(brings(capability, GRAPHICS) for capability in ("graphics", "display"))),
    Row("2.1", "graphics extras",
        lambda: _comes(f"{GIVEN}/libnvidia-egl-gbm.so.1.1.2 {FOLDER}/xorg/modules/drivers/nvidia_drv.so "
                       f"{GIVEN}/libnvidia-vulkan-producer.so /usr/bin/nvidia-xconfig", "graphics")),
    Row("2.1", "ngx", lambda: brings("ngx", "libnvidia-ngx")),
    # By what its ELF header says, and only where the machine runs such programs.
    Row("2.1", "compat32",
        lambda: (GIVEN_TWIN in targets("1", "compute,compat32")) == (platform.machine() == "x86_64")
            and not {GIVEN_TWIN} & (targets("1", "compute") | targets("1", "utility,compat32"))),
    # By pattern: which of the driver package's libraries those of Windows look for changes with the driver.
    Row("2.1", "always on WSL",
        lambda: "libdxcore.so" in wsl.REQUIRED and glob.matches(wsl.OF_STORE[0], "libnvdxgdmal.so.1")),
    Row("2.1", "selection rule",
        lambda: f"{GIVEN}/libnvidia-encode.so.{hosts.VERSION}" in targets("1", "video")
            and not any(host.OTHER_VERSION in path for path in targets("1", "all"))),
    # Everything of the driver's version wherever it lies is not what was asked for: the catalogue names each.
    Row("2.1", "CDI rule", lambda: not any("libnvidia-api" in path for path in targets("1", "all")), REFUSED),
    Row("2.1", "host search paths",
        lambda: {library.path.rpartition("/")[0] for library in everything().libraries if library.bits == 64}
            == {FOLDER, f"{FOLDER}/vdpau"}),
    Row("2.2", "Binaries: utility",
        lambda: {f"/usr/bin/{name}" for name in PROGRAMS} <= targets("1", "utility")
            and _options("/usr/bin/nvidia-smi") == ("ro", "nosuid", "nodev")),
    Row("2.2", "Binaries: compute",
        lambda: _comes("/usr/bin/nvidia-cuda-mps-control /usr/bin/nvidia-cuda-mps-server", "compute", "utility")),
    Row("2.2", "Binaries: imex", lambda: _comes("/usr/bin/nvidia-imex /usr/bin/nvidia-imex-ctl", "utility")),
    Row("2.2", "IPC: persistenced, fabricmanager",
        lambda: _comes("/var/run/nvidia-persistenced/socket /var/run/nvidia-fabricmanager/socket", "utility")),
    Row("2.2", "IPC: MPS", lambda: _comes("/tmp/nvidia-mps", "compute", "utility")),
    Row("2.2", "IPC: CDI", lambda: _by_cdi_too("/var/run/nvidia-fabricmanager/socket")),
    Row("2.2", "Firmware", lambda: _comes(f"/lib/firmware/nvidia/{hosts.VERSION}/gsp_ga10x.bin", "utility")),
    Row("2.2", "procfs overlay",
        lambda: {name: content for name, content, _ in _tmpfs("/proc/driver/nvidia").files}["params"]
            == hosts.PARAMS.replace("ModifyDeviceFiles: 1", "ModifyDeviceFiles: 0")),
    Row("2.2", "per GPU procfs", lambda: "/proc/driver/nvidia/gpus/0000:08:00.0" in targets("1")),
    Row("2.2", "MIG procfs",
        lambda: {f"/proc/driver/nvidia/capabilities/gpu1/mig/gi1/{name}" for name in ("access", "ci0/access")}
                <= targets("0:0")
            and "/proc/driver/nvidia/capabilities" in targets("1", NVIDIA_MIG_CONFIG_DEVICES="all")),
    Row("2.2", "App profile",
        lambda: '"EGLVisibleDGPUDevices", 0x1]'
            in _tmpfs("/etc/nvidia/nvidia-application-profiles-rc.d", "graphics").files[0][1]),
    Row("2.2", "CUDA forward-compat", _newer_cuda_comes_first),
    Row("2.3", "`/dev/nvidiactl`", lambda: "/dev/nvidiactl" in targets("none")),
    Row("2.3", "`/dev/nvidia<minor>`", lambda: "/dev/nvidia1" in targets("0")),
    Row("2.3", "`/dev/nvidia-modeset`", lambda: _comes("/dev/nvidia-modeset", "display", "graphics")),
    Row("2.3", "`/dev/nvidia-uvm`, `/dev/nvidia-uvm-tools`",
        lambda: _comes("/dev/nvidia-uvm /dev/nvidia-uvm-tools", "compute", "utility")),
    Row("2.3", "`/dev/nvidia-caps/nvidia-cap<N>`",
        lambda: {"/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia-caps/nvidia-cap31"} <= targets("0:0") - targets("1")),
    Row("2.3", "`/dev/nvidia-nvswitchctl`, `/dev/nvidia-nvswitch*`",
        lambda: _comes("/dev/nvidia-nvswitchctl /dev/nvidia-nvswitch0", "", "", NVIDIA_NVSWITCH="enabled")),
    Row("2.3", "`/dev/nvidia-fs*` + `/run/udev`, `/etc/cufile.json`",
        lambda: _comes("/dev/nvidia-fs0 /etc/cufile.json", "", "", NVIDIA_GDS="enabled")
            and any(path == "/run/udev" for path, _ in catalogue.AS_THEY_ARE)),
    Row("2.3", "`/dev/infiniband/uverbs*`, `/dev/infiniband/rdma_cm`",
        lambda: _comes("/dev/infiniband/uverbs0 /dev/infiniband/rdma_cm", "", "", NVIDIA_MOFED="enabled")),
    Row("2.3", "`/dev/gdrdrv`", lambda: _comes("/dev/gdrdrv", "", "", NVIDIA_GDRCOPY="enabled")),
    Row("2.3", "`/dev/nvidia-caps-imex-channels/channel<N>`",
        lambda: _comes("/dev/nvidia-caps-imex-channels/channel7", "", "", NVIDIA_IMEX_CHANNELS="7")),
    Row("2.3", "`/dev/dri/card*`, `/dev/dri/renderD*`, by-path links",
        lambda: {"/dev/dri/card1", "/dev/dri/renderD128", "/dev/dri/by-path/pci-0000:08:00.0-card"}
                <= targets("1", "graphics")
            and "/dev/dri/card2" not in targets("1", "graphics")),
    # As above: there is no such device on a Linux host.
    Row("2.3", "`/dev/dxg`", lambda: not any(node.path == "/dev/dxg" for node in everything().devices), REFUSED),
    Row("2.4", "glvnd, EGL, nvoptix, X11 files", lambda: _comes(SHARED, "graphics", "compute")),
    Row("2.4", "vulkan files", lambda: _comes(VULKAN, "display", "compute")),
    Row("2.4", "OpenCL/vendors/nvidia.icd", lambda: _comes("/etc/OpenCL/vendors/nvidia.icd", "compute")),
    Row("2.4", "Symlinks legacy",
        lambda: {f"{GIVEN}/{name}" for name in ("libcuda.so", "libGLX_indirect.so.0", "libnvidia-opticalflow.so")}
                <= targets("1", "all")),
    Row("2.4", "Symlinks CDI",
        lambda: {f"{FOLDER}/gbm/nvidia-drm_gbm.so", f"{GIVEN}/libnvidia-ml.so.1"} <= targets("1", "all")),
    Row("2.4", "Legacy hook alone does not inject ICD files",
        lambda: _comes("/usr/share/glvnd/egl_vendor.d/10_nvidia.json", "graphics")),
)  # fmt: skip
