# SPDX-License-Identifier: Apache-2.0
"""What the PCI bus and the DRM subsystem show of the GPUs: /sys/bus/pci/devices and /dev/dri."""

from __future__ import annotations

from .description import Description, Gpu
from .sysfs import pci_files

DEVICES = "/sys/bus/pci/devices"
DRM_MAJOR = 226  # given to DRM by the kernel's list
CLASS = "0x030200"  # a 3D controller: these GPUs drive no screen of their own
VGA = "0x030000"


def files(gpu: Gpu) -> dict[str, str]:
    """`0x233010DE` is device 2330 of vendor 10de, as NVML writes the pair."""
    own, subsystem = [f"{pair[6:]}:{pair[2:6]}".lower() for pair in (gpu.pci_id, gpu.subsystem_id)]
    kind = VGA if gpu.brand in ("geforce", "titan", "quadro") else CLASS
    found = {**pci_files(gpu.bus_id, "nvidia", kind, own, subsystem), "irq": f"{gpu.irq}\n"}
    for name, number in zip(("card", "renderD"), gpu.dri):
        found[f"drm/{name}{number}/dev"] = f"{DRM_MAJOR}:{number}\n"
        found[f"drm/{name}{number}/uevent"] = f"DEVNAME=dri/{name}{number}\n"
    return found


def tree(node: Description) -> dict[str, str]:
    """Every file below `DEVICES`, by its path there."""
    return {f"{gpu.bus_id}/{name}": text for gpu in node.gpus for name, text in files(gpu).items()}


def device_links(node: Description) -> dict[str, str]:
    """udev's links by the address: link -> target."""
    return {
        f"/dev/dri/by-path/pci-{gpu.bus_id}-{kind}": f"../{name}{number}"
        for gpu in node.gpus
        for kind, name, number in zip(("card", "render"), ("card", "renderD"), gpu.dri)
    }
