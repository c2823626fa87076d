# SPDX-License-Identifier: Apache-2.0
"""The texts that NVIDIA's kernel modules show below /proc, and the device nodes they answer to.

Must not: read or write any file; what the real /proc/devices says is handed in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .description import Description, Gpu

MAJOR = 195  # of the GPUs and control devices, given to NVIDIA by the kernel's list
# The other modules take what is free; the kernel hands out this range from its upper end.
DYNAMIC_MAJORS = range(511, 383, -1)
DYNAMIC_NAMES = (
    "nvidia-uvm",
    "nvidia-nvswitch",
    "nvidia-nvlink",
    "nvidia-caps",
    "nvidia-caps-imex-channels",
)

VERSION_FORMATS = {
    "proprietary": "NVIDIA UNIX {machine} Kernel Module  {driver}  Tue May 20 19:18:36 UTC 2025",
    "open": "NVIDIA UNIX Open Kernel Module for {machine}  {driver}  Release Build"
    "  (dvs-builder@U22-I3-B17-02-2)  Tue May 20 19:18:36 UTC 2025",
}

PARAMS = """\
ResmanDebugLevel: 4294967295
RmLogonRC: 1
ModifyDeviceFiles: 1
DeviceFileUID: 0
DeviceFileGID: 0
DeviceFileMode: 438
InitializeSystemMemoryAllocations: 1
UsePageAttributeTable: 4294967295
EnableMSI: 1
EnablePCIeGen3: 0
MemoryPoolSize: 0
KMallocHeapMaxSize: 0
VMallocHeapMaxSize: 0
IgnoreMMIOCheck: 0
EnableStreamMemOPs: 0
EnableUserNUMAManagement: 1
NvLinkDisable: 0
RmProfilingAdminOnly: 1
PreserveVideoMemoryAllocations: 0
EnableS0ixPowerManagement: 0
S0ixPowerManagementVideoMemoryThreshold: 256
DynamicPowerManagement: 3
DynamicPowerManagementVideoMemoryThreshold: 200
RegisterPCIDriver: 1
EnablePCIERelaxedOrderingMode: 0
EnableResizableBar: 0
EnableGpuFirmware: 18
EnableGpuFirmwareLogs: 2
RmNvlinkBandwidthLinkCount: 0
EnableDbgBreakpoint: 0
OpenRmEnableUnsupportedGpus: 1
DmaRemapPeerMmio: 1
ImexChannelCount: 2048
CreateImexChannel0: 0
GrdmaPciTopoCheckOverride: 0
RegistryDwords: ""
RegistryDwordsPerDevice: ""
RmMsg: ""
GpuBlacklist: ""
TemporaryFilePath: ""
ExcludedGpus: ""
"""

POWER = """\
Runtime D3 status:          Disabled by default
Video Memory:               Active

GPU Hardware Support:
 Video Memory Self Refresh: Not Supported
 Video Memory Off:          Not Supported

S0ix Power Management:
 Platform Support:          Not Supported
 Status:                    Disabled
"""

REGISTRY = 'Binary: ""\n'


class DeviceNode(NamedTuple):
    path: str
    major: int
    minor: int
    mode: int = 0o666


def _version(node: Description, machine: str) -> str:
    module = VERSION_FORMATS[node.kernel_module].format(machine=machine, driver=node.driver)
    return f"NVRM version: {module}\nGCC version:  gcc version 12.2.0 (Debian 12.2.0-14+deb12u1)\n"


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


def tree(node: Description, mig_minors: str, machine: str) -> dict[str, str]:
    """Every file below /proc/driver, by its path there."""
    files = {
        "nvidia/version": _version(node, machine),
        "nvidia/params": PARAMS,
        "nvidia/registry": REGISTRY,
        "nvidia/capabilities/mig/config": _capability(1, 0o400),
        "nvidia/capabilities/mig/monitor": _capability(2, 0o444),
        "nvidia-caps/mig-minors": mig_minors,
    }
    for gpu in node.gpus:
        folder = f"nvidia/gpus/{gpu.bus_id}"
        files[f"{folder}/information"] = _information(gpu, node.driver)
        files[f"{folder}/power"] = POWER
        files[f"{folder}/registry"] = REGISTRY
    return files


def choose_majors(real: str) -> dict[str, int]:
    """A number for each dynamic name, used by nothing on this kernel, so that open() is ENXIO."""
    first_words = (line.split(maxsplit=1)[0] for line in real.splitlines() if line)
    used = {int(word) for word in first_words if word.isdigit()}
    free = (major for major in DYNAMIC_MAJORS if major not in used)
    return dict(zip(DYNAMIC_NAMES, free))


def devices(real: str, registered: dict[str, int]) -> str:
    """The real /proc/devices with the driver's lines among the character devices, by number."""
    characters, blocks = real.split("\nBlock devices:", 1)
    lines = [line for line in characters.splitlines()[1:] if line and "nvidia" not in line]
    lines += [f"{major:3d} {name}" for name, major in registered.items()]
    lines.sort(key=lambda line: int(line.split()[0]))  # stable: equal numbers keep their order
    return "\n".join(["Character devices:", *lines, "", f"Block devices:{blocks}"])


def registered(majors: dict[str, int]) -> dict[str, int]:
    """Name -> major, as the kernel would list them."""
    return {"nvidia": MAJOR, "nvidia-modeset": MAJOR, "nvidiactl": MAJOR, **majors}


def nodes(node: Description, majors: dict[str, int]) -> list[DeviceNode]:
    found = [
        DeviceNode("/dev/nvidiactl", MAJOR, 255),
        DeviceNode("/dev/nvidia-modeset", MAJOR, 254),
        DeviceNode("/dev/nvidia-uvm", majors["nvidia-uvm"], 0),
        DeviceNode("/dev/nvidia-uvm-tools", majors["nvidia-uvm"], 1),
    ]
    found += [DeviceNode(f"/dev/nvidia{gpu.minor}", MAJOR, gpu.minor) for gpu in node.gpus]
    for minor in node.capability_minors:
        mode = 0o400 if minor == 1 else 0o444
        path = f"/dev/nvidia-caps/nvidia-cap{minor}"
        found.append(DeviceNode(path, majors["nvidia-caps"], minor, mode))
    if node.nvswitches:
        major = majors["nvidia-nvswitch"]
        found.append(DeviceNode("/dev/nvidia-nvswitchctl", major, 255))
        found += [DeviceNode(f"/dev/nvidia-nvswitch{number}", major, number) for number in range(node.nvswitches)]
    return found
