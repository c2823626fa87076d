# SPDX-License-Identifier: Apache-2.0
"""What the PCI bus and the DRM subsystem show of the GPUs: /sys/bus/pci/devices and /dev/dri.

Must not: read or write any file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .description import Description, Gpu

DEVICES = "/sys/bus/pci/devices"
DRM_MAJOR = 226  # given to DRM by the kernel's list
CLASS = "0x030200"  # a 3D controller: these GPUs drive no screen of their own
VGA = "0x030000"


def _uevent(gpu: Gpu) -> str:
    identity = f"{gpu.pci_id[6:]}:{gpu.pci_id[2:6]}"
    subsystem = f"{gpu.subsystem_id[6:]}:{gpu.subsystem_id[2:6]}"
    return "\n".join(
        (
            "DRIVER=nvidia",
            f"PCI_CLASS={_class(gpu)[3:]}",
            f"PCI_ID={identity.upper()}",
            f"PCI_SUBSYS_ID={subsystem.upper()}",
            f"PCI_SLOT_NAME={gpu.bus_id}",
        )
    )


def _class(gpu: Gpu) -> str:
    return VGA if gpu.brand in ("geforce", "titan", "quadro") else CLASS


def _files(gpu: Gpu) -> dict[str, str]:
    """`0x233010DE` is device 2330 of vendor 10de, as NVML writes the pair."""
    found = {
        "class": _class(gpu),
        "device": gpu.pci_id[:6].lower(),
        "vendor": f"0x{gpu.pci_id[6:].lower()}",
        "subsystem_device": gpu.subsystem_id[:6].lower(),
        "subsystem_vendor": f"0x{gpu.subsystem_id[6:].lower()}",
        "irq": str(gpu.irq),
        "numa_node": "0",
        "enable": "1",
        "uevent": _uevent(gpu),
    }
    for name, number in zip(("card", "renderD"), gpu.dri):
        found[f"drm/{name}{number}/dev"] = f"{DRM_MAJOR}:{number}"
        found[f"drm/{name}{number}/uevent"] = f"DEVNAME=dri/{name}{number}"
    return found


def tree(node: Description) -> dict[str, str]:
    """Every file below `DEVICES`, by its path there."""
    return {f"{gpu.bus_id}/{name}": f"{text}\n" for gpu in node.gpus for name, text in _files(gpu).items()}


def links(node: Description) -> dict[str, str]:
    """Link -> target, of which udev reads no more than the last name."""
    found = {}
    for gpu in node.gpus:
        found[f"{gpu.bus_id}/subsystem"] = "../../../../bus/pci"
        found[f"{gpu.bus_id}/driver"] = "../../../../bus/pci/drivers/nvidia"
    return found


def device_links(node: Description) -> dict[str, str]:
    """udev's links by the address: link -> target."""
    found = {}
    for gpu in node.gpus:
        for kind, name, number in zip(("card", "render"), ("card", "renderD"), gpu.dri):
            link = f"/dev/dri/by-path/pci-{gpu.bus_id}-{kind}"
            found[link] = f"../{name}{number}"
    return found
