# SPDX-License-Identifier: Apache-2.0
"""The text files of NVIDIA's kernel module in /proc/driver/nvidia (its README, "Driver Proc Files"), and /proc/devices.

Their stamp tells whether what is saved about this host's driver is still true.  Reading opens no GPU.
"""

from __future__ import annotations

from oci_gpu_hook.formats.decimal import decimal
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    # All that must be the same, and times.
    Stamp = tuple[tuple[Any, ...], tuple[tuple[int, int], ...]]

DRIVER = "/proc/driver/nvidia"
GPUS = f"{DRIVER}/gpus"
# The integrated GPU's folder there, on a Jetson Thor; and JetPack's lists of what a Jetson's containers get.
INTEGRATED = "0000:01:00.0"
CSV_FOLDER = "/etc/nvidia-container-runtime/host-files-for-container.d"
VERSION = f"{DRIVER}/version"
PARAMS = f"{DRIVER}/params"
CAPABILITIES = f"{DRIVER}/capabilities"
DEVICES = "/proc/devices"
LD_SO_CACHE = "/etc/ld.so.cache"
# Where NixOS, which has no such cache, has the driver's libraries and configuration, and beside it the 32-bit ones.
NIXOS = "/run/opengl-driver"
_BOUND = "/sys/bus/pci/drivers/nvidia"


class Gpu(NamedTuple):
    """nvml_index: in the order of PCI addresses, as NVML's; uuid: None until the GPU is first initialised; bus_id: the
    PCI address with an eight-digit domain; proc: the name of its folder in `GPUS`; by NVML: compute_capability
    (``9.0``), brand, and peers, the bus_ids of the GPUs that it reaches by NVLink; and whether it is in MIG mode.
    """

    nvml_index: int
    uuid: str | None
    model: str
    bus_id: str
    minor: int
    proc: str
    compute_capability: str = ""
    brand: str = ""
    peers: tuple[str, ...] = ()
    in_mig_mode: bool = False


def is_masked(host: HostRoot) -> bool:
    """Whether another file lies over `PARAMS`: so NVIDIA's CDI specs keep a container's programs from making nodes."""
    params, folder = host.stat(PARAMS), host.stat(DRIVER)
    return params is not None and folder is not None and params.st_dev != folder.st_dev


def mig_instances(host: HostRoot) -> list[str]:
    found = [""]
    for within, start in (("", "gpu"), ("mig/", "gi"), ("", "ci")):
        folders = [f"{path}{within}" for path in found]
        found = [f"{at}{it}/" for at in folders for it in host.names(f"{CAPABILITIES}/{at}") if it.startswith(start)]
    return [path[:-1] for path in found]


def capability_minor(host: HostRoot, path: str) -> int | None:
    return decimal(information(host, f"{CAPABILITIES}/{path}").get("DeviceFileMinor", ""))


def information(host: HostRoot, path: str) -> dict[str, str]:
    pairs = [line.partition(":") for line in host.text(path).splitlines()]
    return {key.strip(): value.strip() for key, colon, value in pairs if colon}


def uuid_in(information: dict[str, str]) -> str | None:
    """The UUID of a GPU; None until it is first initialised, for which the module writes question marks."""
    uuid = information.get("GPU UUID", "?")
    return None if "?" in uuid else "GPU-" + uuid[4:].lower()


def character_majors(host: HostRoot) -> dict[str, int]:
    """From /proc/devices (proc(5))."""
    text = host.text(DEVICES).partition("Block devices:")[0]
    pairs = [line.strip().partition(" ") for line in text.splitlines()]
    # If two have one name, the first counts.
    return {name: major for text, _, name in reversed(pairs) if (major := decimal(text)) is not None}


def character_major(host: HostRoot, name: str) -> int | None:
    before, found, _ = host.text(DEVICES).partition("Block devices:")[0].partition(f" {name}\n")
    return decimal(before.rpartition("\n")[2].strip()) if found else None


def stamp(host: HostRoot, driver_root: str) -> Stamp:
    """Values of which one changes whenever a new survey would find something else, and times.

    A folder's time in /proc says when it was first shown: its names are compared instead.  The PCI driver's entries
    come with their inode numbers, each of which sysfs uses once: GPUs may have other minors after one was bound again.
    So do the folders of MIG's compute instances.  One that is made again has another number, unless the kernel had
    dropped the old folder from memory.  For that case there are these folders' times, of each mount of procfs (st_dev).
    If only they differ, an instance was made again, or is shown once more: a doubt (`read_saved`).
    """
    # On NixOS each driver has a folder of its own.
    top = driver_root.rstrip("/")
    cache = host.stat(f"{top}{LD_SO_CACHE}") or host.stat(f"{top}{NIXOS}")
    cached = () if cache is None else (cache.st_dev, cache.st_ino, cache.st_size, cache.st_mtime_ns)
    folders = [(name, it) for name in mig_instances(host) if (it := host.stat(f"{CAPABILITIES}/{name}"))]
    instances = tuple([(name, folder.st_ino) for name, folder in folders])
    listed = (tuple(host.names(GPUS)), tuple(host.inodes(_BOUND)), instances)
    same = (host.boot_id(), host.text(VERSION), *listed, driver_root, cached)
    return same, tuple([(folder.st_dev, folder.st_mtime_ns) for _, folder in folders])


def is_orin(host: HostRoot) -> bool:
    """Whether it is a Jetson whose integrated GPU NVIDIA's module does not drive, as it drives Thor's."""
    return host.stat(CSV_FOLDER) is not None and host.stat(f"{GPUS}/{INTEGRATED}") is None
