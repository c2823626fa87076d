# SPDX-License-Identifier: Apache-2.0
"""A Jetson Orin with JetPack 6: what its kernel has in /dev, its driver's libraries, and NVIDIA's lists of both.

The lists are those of L4T 36.4, shortened: with lines for other boards, a frame buffer, and one more file, which only
containers get that ask for all.  The machine's own library folder stands in place of aarch64's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .procfs import MISC_MAJOR, DeviceNode

if TYPE_CHECKING:
    from .vendors.additions import Additions

LISTS = "/etc/nvidia-container-runtime/host-files-for-container.d"
RELEASE = (
    "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64, "
    "DATE: Wed Jan  8 01:49:37 UTC 2025\n# KERNEL_VARIANT: oot\n"
    "TARGET_USERSPACE_LIB_DIR=nvidia\nTARGET_USERSPACE_LIB_DIR_PATH=usr/lib/aarch64-linux-gnu/nvidia\n"
)
# Names below /dev by the driver that has them.
_OF_GPU = ("ctxsw", "dbg", "nvsched", "power", "prof", "prof-ctx", "prof-dev", "sched", "tsg")
NVHOST = ("as-gpu", "ctrl-gpu", "gpu", *[f"{name}-gpu" for name in _OF_GPU])
NVGPU = ("as", "channel", "ctrl", *_OF_GPU)
MISC_MINOR = 1001  # and the next: minors that the kernel gives out last, if ever
# udev makes it for the video decoder's library, which never passes it on to the kernel.
NULL = (1, 3)

# What other boards have beside: an Orin Nano has no such accelerators, and no encoder.
OTHER_BOARDS = ("nvhost-ctrl-nvdla0", "nvhost-ctrl-nvdla1", "nvhost-ctrl-pva0", "nvsciipc", "v4l2-nvenc")
DEVICES = (
    *(f"/dev/nvhost-{name}" for name in NVHOST),
    *(f"/dev/nvgpu/igpu0/{name}" for name in NVGPU),
    "/dev/nvmap",
    "/dev/host1x-fence",
    "/dev/v4l2-nvdec",
)
REFUSED = ("/dev/fb0", "/dev/fb1")
FIRMWARE = "/lib/firmware/tegra23x/nvhost_nvdec050_desc_prod.bin"


def tegra(node: Additions) -> None:
    """One integrated GPU."""
    nvhost, nvgpu, frame_buffer = node.major("nvhost"), node.major("nvgpu"), node.major("fb", 29)
    node.major("misc", MISC_MAJOR)
    node.nodes += [
        *(DeviceNode(f"/dev/nvhost-{name}", nvhost, n, 0o660) for n, name in enumerate(NVHOST)),
        *(DeviceNode(f"/dev/nvgpu/igpu0/{name}", nvgpu, n, 0o660) for n, name in enumerate(NVGPU)),
        DeviceNode("/dev/nvmap", MISC_MAJOR, MISC_MINOR, 0o660),
        DeviceNode("/dev/host1x-fence", MISC_MAJOR, MISC_MINOR + 1, 0o660),
        DeviceNode("/dev/v4l2-nvdec", *NULL),
        DeviceNode("/dev/fb0", frame_buffer, 0, 0o660),
    ]
    node.texts["/etc/nv_tegra_release"] = RELEASE
    node.texts[f"{LISTS}/devices.csv"] = _lines("dev", (*REFUSED, *DEVICES, *[f"/dev/{name}" for name in OTHER_BOARDS]))
    _add_libraries(node)


# What Thor's list names of NVIDIA's module: of both GPUs, whichever a board has.
OF_THE_MODULE = ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-modeset")


def thor(node: Additions) -> None:
    """The same lists on a board whose integrated GPU NVIDIA's module drives, with a GPU on PCI beside it."""
    tegra(node)
    node.texts[f"{LISTS}/devices.csv"] += _lines("dev", OF_THE_MODULE)
    node.nodes.append(DeviceNode("/dev/nvidia2", 195, 2, 0o666))
    # The simulated server's driver has these already.
    for path in ("/etc/vulkan/icd.d/nvidia_icd.json", f"{node.library_folder}/libcuda.so"):
        del node.links[path]


def _add_libraries(node: Additions) -> None:
    usual = node.library_folder
    own = f"{usual}/nvidia"
    libraries = {
        f"{own}/libcuda.so.1.1": "libcuda.so.1",
        f"{own}/libnvrm_gpu.so": "libnvrm_gpu.so",
        f"{own}/libnvrm_mem.so": "libnvrm_mem.so",
        f"{own}/libnvos.so": "libnvos.so",
        f"{own}/libnvidia-ptxjitcompiler.so.540.4.0": "libnvidia-ptxjitcompiler.so.1",
        f"{own}/libnvbufsurface.so.1.0.0": "libnvbufsurface.so.1.0.0",
        f"{own}/libv4l2_nvvideocodec.so": "libv4l2_nvvideocodec.so",
        f"{usual}/libcudnn.so.9.3.0": "libcudnn.so.9",
    }
    links = {
        f"{usual}/libcuda.so": "nvidia/libcuda.so.1",
        f"{own}/libcuda.so": "libcuda.so.1.1",
        f"{own}/libcuda.so.1": "libcuda.so.1.1",
        f"{own}/libnvidia-ptxjitcompiler.so.1": "libnvidia-ptxjitcompiler.so.540.4.0",
        f"{own}/libnvbufsurface.so": "libnvbufsurface.so.1.0.0",
        f"{usual}/libv4l/plugins/nv/libv4l2_nvvideocodec.so": "../../../nvidia/libv4l2_nvvideocodec.so",
        f"{usual}/libcudnn.so.9": "libcudnn.so.9.3.0",
        "/etc/vulkan/icd.d/nvidia_icd.json": f"{own}/nvidia_icd.json",
    }
    node.libraries.update(libraries)
    node.links.update(links)
    node.texts["/etc/ld.so.conf.d/nvidia-tegra.conf"] = f"{own}\n"
    node.texts[f"{own}/nvidia_icd.json"] = '{"ICD": {"library_path": "libGLX_nvidia.so.0"}}\n'
    node.texts[FIRMWARE] = "simulated\n"
    node.program(" ".join(DEVICES), "/usr/sbin/nvidia-smi")
    drivers = [path for path in libraries if path.startswith(own)]
    drivers += ["/usr/sbin/nvidia-smi", FIRMWARE, f"{own}/libnvtvmr_2d.so"]
    node.texts[f"{LISTS}/drivers.csv"] = (
        _lines("lib", drivers) + _lines("sym", [path for path in links if "cudnn" not in path]) + "\n"
    )
    node.texts[f"{LISTS}/cudnn.csv"] = (
        f"lib, {usual}/libcudnn.so.9.3.0\r\nsym, {usual}/libcudnn.so.9\r\ndir, /usr/src/cudnn_samples_v9\r\n"
    )
    node.texts["/usr/src/cudnn_samples_v9/README.md"] = "simulated\n"


def _lines(kind: str, paths: list[str] | tuple[str, ...]) -> str:
    return "".join(f"{kind}, {path}\n" for path in paths)
