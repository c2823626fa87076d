# SPDX-License-Identifier: Apache-2.0
"""The texts that NVIDIA's kernel modules show below /proc, and the device nodes they answer to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .description import Description, Gpu, MigDevice
from .pci import DRM_MAJOR

MAJOR = 195  # of the GPUs and control devices, given to NVIDIA by the kernel's list
# The other modules take what is free; the kernel hands out this range from its upper end.
DYNAMIC_MAJORS = range(511, 383, -1)
DYNAMIC_NAMES = (
    "nvidia-uvm",
    "nvidia-nvswitch",
    "nvidia-nvlink",
    "nvidia-caps",
    "nvidia-caps-imex-channels",
    "nvidia-fs",
    "gdrdrv",
)
VERBS_MAJOR, VERBS_FIRST = 231, 192  # of /dev/infiniband/uverbsN, from the kernel's list
MISC_MAJOR, RDMA_CM_MINOR = 10, 1000  # a minor that the kernel gives out last, if ever

VERSION_FORMATS = {
    "proprietary": "NVIDIA UNIX {machine} Kernel Module  {driver}  Tue May 20 19:18:36 UTC 2025",
    "open": "NVIDIA UNIX Open Kernel Module for {machine}  {driver}  Release Build"
    "  (dvs-builder@U22-I3-B17-02-2)  Tue May 20 19:18:36 UTC 2025",
}

# Some of some forty.
PARAMS = """\
ResmanDebugLevel: 4294967295
RmLogonRC: 1
ModifyDeviceFiles: 1
DeviceFileUID: 0
DeviceFileGID: 0
DeviceFileMode: 438
EnableMSI: 1
EnableGpuFirmware: 18
RegistryDwords: ""
ExcludedGpus: ""
"""

POWER = """\
Runtime D3 status:          Disabled by default
Video Memory:               Active
"""

REGISTRY = 'Binary: ""\n'


class DeviceNode(NamedTuple):
    path: str
    major: int
    minor: int
    mode: int = 0o666


def _information(gpu: Gpu, driver: str) -> str:
    firmware = driver if gpu.gsp_firmware else "N/A"
    return (
        f"Model: \t\t {gpu.model}\n"
        f"IRQ:   \t\t {gpu.irq}\n"
        f"GPU UUID: \t {gpu.uuid}\n"
        f"Video BIOS: \t {gpu.vbios}\n"
        "Bus Type: \t PCIe\n"
        "DMA Size: \t 47 bits\n"
        "DMA Mask: \t 0x7fffffffffff\n"
        f"Bus Location: \t {gpu.bus_id}\n"
        f"Device Minor: \t {gpu.minor}\n"
        f"GPU Firmware: \t {firmware}\n"
        "GPU Excluded:\t No\n"
    )


def _capability(minor: int, mode: int) -> str:
    return f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n"


def capability_paths(gpu: Gpu, device: MigDevice) -> tuple[str, str]:
    """The GPU instance's and the compute instance's, as below nvidia/capabilities."""
    folder = f"gpu{gpu.minor}/mig/gi{device.gi}"
    return f"{folder}/access", f"{folder}/ci{device.ci}/access"


def read_minors(mig_minors: str) -> dict[str, int]:
    """`gpu0/gi1/access 12` for all that there may be, by the path below nvidia/capabilities."""
    found = {}
    for line in mig_minors.splitlines():
        path, number = line.split()
        gpu, slash, rest = path.partition("/")
        found[f"{gpu}/mig/{rest}" if slash else f"mig/{gpu}"] = int(number)
    return found


def tree(node: Description, mig_minors: str, machine: str) -> dict[str, str]:
    """Every file below /proc/driver, by its path there."""
    if not node.driver:
        return {}
    module = VERSION_FORMATS[node.kernel_module].format(machine=machine, driver=node.driver)
    files = {
        "nvidia/version": f"NVRM version: {module}\nGCC version:  gcc version 12.2.0 (Debian 12.2.0-14+deb12u1)\n",
        "nvidia/params": PARAMS,
        "nvidia/registry": REGISTRY,
        "nvidia/capabilities/mig/config": _capability(1, 0o400),
        "nvidia/capabilities/mig/monitor": _capability(2, 0o444),
        "nvidia-caps/mig-minors": mig_minors,
        "nvidia-caps/nvlink-minors": "fabric-mgmt 0\n",
        "nvidia-nvlink/permissions": "DeviceFileMode: 438\n",
        "nvidia-nvlink/capabilities/fabric-mgmt": _capability(0, 0o400),
    }
    if node.nvswitches:
        files["nvidia-nvswitch/permissions"] = "DeviceFileMode: 438\n"
    if node.imex_channels:
        minor = _imex_minor(mig_minors)
        files["nvidia-caps/sys-minors"] = f"fabric-imex-mgmt {minor}\n"
        files["nvidia/capabilities/fabric-imex-mgmt"] = _capability(minor, 0o400)
    minors = read_minors(mig_minors)
    for gpu in node.gpus:
        for path in [path for device in gpu.mig for path in capability_paths(gpu, device)]:
            files[f"nvidia/capabilities/{path}"] = _capability(minors[path], 0o444)
        folder = f"nvidia/gpus/{gpu.bus_id}"
        files[f"{folder}/information"] = _information(gpu, node.driver)
        files[f"{folder}/power"] = POWER
        files[f"{folder}/registry"] = REGISTRY
    return files


def free_majors(real: str) -> Iterator[int]:
    """Numbers that nothing uses on this kernel, so that open() is ENXIO."""
    first_words = (line.split(maxsplit=1)[0] for line in real.splitlines() if line)
    used = {int(word) for word in first_words if word.isdigit()}
    return (major for major in DYNAMIC_MAJORS if major not in used)


def choose_majors(real: str) -> dict[str, int]:
    """A number for each dynamic name."""
    return dict(zip(DYNAMIC_NAMES, free_majors(real)))


def devices(real: str, registered: dict[str, int]) -> str:
    """The real /proc/devices with the driver's lines among the character devices, by number."""
    characters, blocks = real.split("\nBlock devices:", 1)
    lines = [
        line
        for line in characters.splitlines()[1:]
        if line and "nvidia" not in line and line.split()[1] not in registered
    ]
    lines += [f"{major:3d} {name}" for name, major in registered.items()]
    lines.sort(key=lambda line: int(line.split()[0]))  # stable: equal numbers keep their order
    return "\n".join(["Character devices:", *lines, "", f"Block devices:{blocks}"])


def registered(node: Description, majors: dict[str, int]) -> dict[str, int]:
    """Name -> major, as the kernel would list them."""
    if not node.driver:
        return {}
    found = {"nvidia": MAJOR, "nvidia-modeset": MAJOR, "nvidiactl": MAJOR, **majors}
    if not node.nvidia_fs:
        del found["nvidia-fs"]
    if not node.gdrcopy:
        del found["gdrdrv"]
    if node.uverbs:
        found["infiniband_verbs"] = VERBS_MAJOR
    if any(gpu.dri for gpu in node.gpus):
        found["drm"] = DRM_MAJOR
    return found


def nodes(node: Description, majors: dict[str, int], mig_minors: str) -> list[DeviceNode]:
    if not node.driver:
        return []
    found = [
        DeviceNode("/dev/nvidiactl", MAJOR, 255),
        DeviceNode("/dev/nvidia-modeset", MAJOR, 254),
        DeviceNode("/dev/nvidia-uvm", majors["nvidia-uvm"], 0),
        DeviceNode("/dev/nvidia-uvm-tools", majors["nvidia-uvm"], 1),
    ]
    found += [DeviceNode(f"/dev/nvidia{gpu.minor}", MAJOR, gpu.minor) for gpu in node.gpus]
    found += _capability_nodes(node, majors["nvidia-caps"], read_minors(mig_minors))
    if node.imex_channels:
        # Which nvidia-imex has made.
        minor = _imex_minor(mig_minors)
        found.append(DeviceNode(f"/dev/nvidia-caps/nvidia-cap{minor}", majors["nvidia-caps"], minor, 0o400))
    if node.nvswitches:
        found.append(DeviceNode("/dev/nvidia-nvswitchctl", majors["nvidia-nvswitch"], 255))
    found += _numbered("/dev/nvidia-nvswitch", majors["nvidia-nvswitch"], node.nvswitches)
    channels = "/dev/nvidia-caps-imex-channels/channel"
    found += _numbered(channels, majors["nvidia-caps-imex-channels"], node.imex_channels)
    found += _numbered("/dev/nvidia-fs", majors["nvidia-fs"], node.nvidia_fs)
    found += _numbered("/dev/infiniband/uverbs", VERBS_MAJOR, node.uverbs, VERBS_FIRST)
    if node.uverbs:
        found.append(DeviceNode("/dev/infiniband/rdma_cm", MISC_MAJOR, RDMA_CM_MINOR))
    if node.gdrcopy:
        found.append(DeviceNode("/dev/gdrdrv", majors["gdrdrv"], 0))
    for gpu in node.gpus:
        for name, number in zip(("card", "renderD"), gpu.dri):
            found.append(DeviceNode(f"/dev/dri/{name}{number}", DRM_MAJOR, number, 0o660))
    return found


def _imex_minor(mig_minors: str) -> int:
    """The last of all, behind those of GPUs."""
    return 1 + max(read_minors(mig_minors).values())


def _numbered(prefix: str, major: int, count: int, first: int = 0) -> list[DeviceNode]:
    return [DeviceNode(f"{prefix}{number}", major, first + number) for number in range(count)]


def _capability_nodes(node: Description, major: int, minors: dict[str, int]) -> list[DeviceNode]:
    modes = {minor: 0o400 if minor == 1 else 0o444 for minor in node.capability_minors}
    for gpu in node.gpus:
        for device in gpu.mig:
            modes.update((minors[path], 0o444) for path in capability_paths(gpu, device))
    return [DeviceNode(f"/dev/nvidia-caps/nvidia-cap{minor}", major, minor, mode) for minor, mode in modes.items()]
