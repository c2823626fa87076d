# SPDX-License-Identifier: Apache-2.0
"""What sysfs shows of devices: where the kernel puts each, its files, and the links that lead there from its number."""

from __future__ import annotations

PCI_DEVICES = "bus/pci/devices"
CHARACTER = "dev/char"

# The folders below /sys in which a node shows devices of its own beside the machine's.
FOLDERS = ("devices", PCI_DEVICES, CHARACTER, "module")


def pci_folder(address: str) -> str:
    """A PCI device's own folder below /sys: behind a bridge, as the devices of a server are."""
    domain, bus, _ = address.split(":")
    root = int(bus, 16) & 0xF0
    if int(bus, 16) == root:
        return f"devices/pci{domain}:{root:02x}/{address}"
    return f"devices/pci{domain}:{root:02x}/{domain}:{root:02x}:01.0/{address}"


def pci_files(address: str, driver: str, kind: str, own: str, subsystem: str) -> dict[str, str]:
    """The files of a PCI device, `0000:23:00.0`; kind: its class, `0x030200`; own, subsystem: `1002:740f`."""
    vendor, device = own.split(":")
    its_vendor, its_device = subsystem.split(":")
    return {
        "class": f"{kind}\n",
        "vendor": f"0x{vendor}\n",
        "device": f"0x{device}\n",
        "subsystem_vendor": f"0x{its_vendor}\n",
        "subsystem_device": f"0x{its_device}\n",
        "numa_node": "0\n",
        "enable": "1\n",
        "uevent": f"DRIVER={driver}\nPCI_CLASS={kind[3:].upper()}\nPCI_ID={own.upper()}\n"
        f"PCI_SUBSYS_ID={subsystem.upper()}\nPCI_SLOT_NAME={address}\n",
    }


def up(folder: str) -> str:
    """The way from a folder below /sys back to /sys itself."""
    return "/".join([".."] * (folder.count("/") + 1))


class Sysfs:
    """Files and links, by their paths below /sys."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.links: dict[str, str] = {}

    def folders(self) -> list[str]:
        """Those of `FOLDERS` in which there is something."""
        paths = [*self.files, *self.links]
        return [it for it in FOLDERS if any(path.startswith(f"{it}/") for path in paths)]

    def pci_device(self, address: str, driver: str, files: dict[str, str]) -> str:
        """Add a PCI device; its folder."""
        folder = pci_folder(address)
        for name, text in files.items():
            self.files[f"{folder}/{name}"] = text
        self.links[f"{folder}/subsystem"] = f"{up(folder)}/bus/pci"
        self.links[f"{folder}/driver"] = f"{up(folder)}/bus/pci/drivers/{driver}"
        self.links[f"{PCI_DEVICES}/{address}"] = f"{up(PCI_DEVICES)}/{folder}"
        return folder

    def character_device(
        self, parent: str, kind: str, path: str, number: tuple[int, int], files: dict[str, str]
    ) -> None:
        """Add the character device `path` of the class `kind`; parent: its device's folder, "" for none."""
        name = path.rpartition("/")[2]
        folder = f"{parent or 'devices/virtual'}/{kind}/{name}"
        major, minor = number
        self.files[f"{folder}/dev"] = f"{major}:{minor}\n"
        self.files[f"{folder}/uevent"] = f"MAJOR={major}\nMINOR={minor}\nDEVNAME={path[len('/dev/') :]}\n"
        for file, text in files.items():
            self.files[f"{folder}/{file}"] = text
        self.links[f"{folder}/subsystem"] = f"{up(folder)}/class/{kind}"
        if parent:
            self.links[f"{folder}/device"] = f"../../../{parent.rpartition('/')[2]}"
        self.links[f"{CHARACTER}/{major}:{minor}"] = f"{up(CHARACTER)}/{folder}"

    def module(self, name: str, version: str = "") -> None:
        """Add a loaded kernel module; some have no version."""
        self.files[f"module/{name}/initstate"] = "live\n"
        if version:
            self.files[f"module/{name}/version"] = f"{version}\n"
