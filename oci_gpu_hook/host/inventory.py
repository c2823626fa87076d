# SPDX-License-Identifier: Apache-2.0
"""DriverInventory: what this host's driver offers, as a value, and as it was saved while that is still true.

The survey (`survey`) reads /proc/driver/nvidia and some hundred files; it is done once and saved.  A start loads the
saved one if its stamp still fits (`Stamp`).  Nothing here opens a GPU, asks NVML or writes.
"""

from __future__ import annotations

import posix

from oci_gpu_hook import jsontext, linux
from oci_gpu_hook.host import nodes, proc
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FOLDER = "/run/oci-gpu-hook"
FILE = "inventory.json"
SAVED = f"{FOLDER}/{FILE}"
LD_SO_CACHE = "/etc/ld.so.cache"

# A host with 16 GPUs and a hundred MIG devices has 60 KiB; one larger than this serves only to keep us busy.
LARGEST = 4 << 20

# Raised whenever a record below changes its fields: a saved inventory of another format is no inventory.
FORMAT = 3
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_BOUND = "/sys/bus/pci/drivers/nvidia"
_WRITABLE_BY_OTHERS = 0o022
_FILE_TYPE = 0o170000
_REGULAR = 0o100000


class Library(NamedTuple):
    """A driver library: host path of the versioned file, and the names it must have in a container.

    origin: its path in the driver's root; subfolder: where below a library folder it belongs, "" is directly in it;
    flags: as an entry of ld.so.cache has them.
    """

    path: str
    origin: str
    file: str
    soname: str
    names: tuple[str, ...]
    flags: int
    bits: int
    subfolder: str
    capabilities: tuple[str, ...]


class DriverFile(NamedTuple):
    """A program, configuration or firmware file: host path, container path, and what brings it (() is any request)."""

    path: str
    target: str
    capabilities: tuple[str, ...]


class Misfit(NamedTuple):
    """A required library that is there in another version only, or (found is "") not at all."""

    name: str
    capability: str
    found: str


class MigDevice(NamedTuple):
    """A compute instance of a GPU in MIG mode.

    gpu: the parent's nvml_index; number: NVML's index on that GPU; gi, ci: GPU and compute instance; the minors are
    those of /dev/nvidia-caps/nvidia-capN.  number and uuid are None, and profile is "", where NVML was not asked.
    """

    gpu: int
    number: int | None
    uuid: str | None
    profile: str
    gi: int
    ci: int
    gi_minor: int
    ci_minor: int


class Stamp(NamedTuple):
    """What changes when the survey's outcome would: compared, never interpreted.

    A folder's time in /proc is when the kernel first showed it, not when it changed, so names stand for it.

    bound: the PCI driver's entries with their inode numbers, which sysfs gives to nothing else while the kernel runs.
    Where a GPU was unbound and bound again, or the module loaded again, the same GPUs may have other minors.
    """

    boot_id: str
    driver: str
    gpus: tuple[str, ...]
    bound: tuple[str, ...]
    mig: tuple[str, ...]
    driver_root: str
    ld_so_cache: tuple[int, ...]


class DriverInventory(NamedTuple):
    """One host's driver.  The last three fields are looked up at every load, see `nodes`.

    unknown: what could not be found out, a sentence each; library_folder: the folder in the driver's root that holds
    its native libraries.
    """

    driver_version: str
    cuda_version: str
    gpus: tuple[proc.Gpu, ...]
    mig_devices: tuple[MigDevice, ...]
    mig_config_minor: int | None
    mig_monitor_minor: int | None
    libraries: tuple[Library, ...]
    library_folder: str
    misfits: tuple[Misfit, ...]
    binaries: tuple[DriverFile, ...]
    files: tuple[DriverFile, ...]
    firmware: tuple[DriverFile, ...]
    proc_files: tuple[tuple[str, str], ...]
    unknown: tuple[str, ...]
    devices: tuple[nodes.DeviceNode, ...] = ()
    links: tuple[nodes.DeviceLink, ...] = ()
    ipc_paths: tuple[nodes.IpcPath, ...] = ()


def stamp(root: HostRoot, driver_root: str) -> Stamp:
    """The stamp of this moment."""
    cache = root.stat(f"{driver_root.rstrip('/')}{LD_SO_CACHE}")
    return Stamp(
        boot_id=_text(root.read(_BOOT_ID)),
        driver=_text(root.read(proc.VERSION)),
        gpus=tuple(root.names(proc.GPUS)),
        bound=tuple([f"{name} {inode}" for name, inode in root.inodes(_BOUND)]),
        mig=proc.mig_instances(root),
        driver_root=driver_root,
        ld_so_cache=()
        if cache is None
        else (cache.st_dev, cache.st_ino, cache.st_size, cache.st_mtime_ns),
    )


def read_saved(root: HostRoot, now: Stamp) -> DriverInventory | None:
    """The saved inventory, if it is there, ours, whole, and stamped like `now`."""
    data = _read_trusted(root)
    if data is None:
        return None
    try:
        document = jsontext.loads(data)
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            return None
        if document["stamp"] != _plain(now):
            return None
        found = _from_rows(document["inventory"])
    except (ValueError, TypeError, LookupError):
        return None
    return None if _has_named_more(root, found.gpus) else found


def with_nodes(
    root: HostRoot,
    inventory: DriverInventory,
    families: tuple[str, ...] = (),
    channels: tuple[str, ...] = (),
    driver_root: str = "/",
) -> DriverInventory:
    """The inventory with device nodes and sockets as they are now; `channels` are IMEX channels that are asked for."""
    gpus = inventory.gpus
    devices = nodes.devices(root, gpus)
    if families:
        devices += nodes.of_families(root, families, gpus, _caps_minors(inventory), channels)
    return inventory._replace(
        devices=devices,
        links=nodes.links(devices, gpus),
        ipc_paths=nodes.ipc_paths(root, driver_root),
    )


def open_folder(root: HostRoot) -> int:
    """The saved inventory's folder, for names in it; OSError where it is not there, or where others may put files."""
    fd = root.open(FOLDER, posix.O_PATH | posix.O_DIRECTORY | posix.O_NOFOLLOW)
    if not _is_ours(posix.fstat(fd)):
        posix.close(fd)
        raise PermissionError(linux.EPERM, "others than root may write to it", FOLDER)
    return fd


def _caps_minors(inventory: DriverInventory) -> list[int]:
    """The minors of all MIG capabilities that can be asked for."""
    minors = [inventory.mig_config_minor, inventory.mig_monitor_minor]
    for device in inventory.mig_devices:
        minors += [device.gi_minor, device.ci_minor]
    return list(dict.fromkeys([minor for minor in minors if minor is not None]))


def _has_named_more(root: HostRoot, gpus: tuple[proc.Gpu, ...]) -> bool:
    """Whether the kernel knows a UUID that it did not: a GPU has none until it is first used, and no stamp tells."""
    return any([not gpu.uuid and proc.uuid_of(root, gpu.proc) is not None for gpu in gpus])


def _read_trusted(root: HostRoot) -> bytes | None:
    """The saved bytes, if the file is a plain one that only root or we ourselves can have put there."""
    try:
        folder = open_folder(root)
        try:
            flags = posix.O_RDONLY | posix.O_NOFOLLOW | posix.O_NONBLOCK | posix.O_CLOEXEC
            fd = posix.open(FILE, flags, dir_fd=folder)
        finally:
            posix.close(folder)
    except OSError:
        return None
    try:
        status = posix.fstat(fd)
        plain = status.st_mode & _FILE_TYPE == _REGULAR
        if not plain or not _is_ours(status) or status.st_size > LARGEST:
            return None
        return posix.read(fd, status.st_size)
    except OSError:
        return None
    finally:
        posix.close(fd)


def _is_ours(status: posix.stat_result) -> bool:
    return status.st_uid in (0, posix.geteuid()) and not status.st_mode & _WRITABLE_BY_OTHERS


def _from_rows(rows: Any) -> DriverInventory:
    """The records again, from the lists that JSON made of them."""
    found = DriverInventory(*rows)
    return found._replace(
        gpus=tuple([proc.Gpu(*row) for row in found.gpus]),
        mig_devices=tuple([MigDevice(*row) for row in found.mig_devices]),
        libraries=tuple([_library(row) for row in found.libraries]),
        misfits=tuple([Misfit(*row) for row in found.misfits]),
        binaries=_files(found.binaries),
        files=_files(found.files),
        firmware=_files(found.firmware),
        proc_files=tuple([(name, text) for name, text in found.proc_files]),
        unknown=tuple(found.unknown),
        devices=(),
        links=(),
        ipc_paths=(),
    )


def _library(row: Any) -> Library:
    row[_NAMES], row[_BROUGHT_BY] = tuple(row[_NAMES]), tuple(row[_BROUGHT_BY])
    return Library._make(row)


# Where a library's row has its lists.
_NAMES, _BROUGHT_BY = Library._fields.index("names"), Library._fields.index("capabilities")


def _files(rows: Any) -> tuple[DriverFile, ...]:
    return tuple(
        [DriverFile._make((path, target, tuple(brought))) for path, target, brought in rows]
    )


def _plain(value: object) -> object:
    """A record as JSON gives it back: tuples are lists there."""
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _text(data: bytes | None) -> str:
    return (data or b"").decode("utf-8", "replace")
