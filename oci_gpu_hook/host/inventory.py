# SPDX-License-Identifier: Apache-2.0
"""DriverInventory: what this host's driver offers, surveyed, saved, and loaded again while it is still true.

The survey reads /proc/driver/nvidia and some thirty files; it is done once by ``inventory refresh`` and saved.  A hook
loads the saved one if its stamp still fits (`Stamp`), and surveys anew if not, correctly, only slower.  Nothing here
opens a GPU or asks NVML.  Apart from `save`, reads only.
"""

from __future__ import annotations

import posix

from oci_gpu_hook import jsontext
from oci_gpu_hook.errors import DriverError
from oci_gpu_hook.host import files, nodes, proc
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SAVED = "/run/oci-gpu-hook/inventory.json"

# Raised whenever a record below changes its fields: a saved inventory of another format is no inventory.
_FORMAT = 1
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_MIG_MINORS = "/proc/driver/nvidia-caps/mig-minors"
_WRITABLE_BY_OTHERS = 0o022
_INSTALL_HINT = "whoever installs the driver must install all parts of one version"


class Stamp(NamedTuple):
    """What changes when the survey's outcome would: compared, never interpreted.

    A folder's time in /proc is when the kernel first showed it, not when it changed, so the GPUs' names stand for it.
    """

    boot_id: str
    driver: str
    gpus: tuple[str, ...]
    mig_minors: str
    ld_so_cache: tuple[int, ...]


class DriverInventory(NamedTuple):
    """One host's driver.  The last two fields are looked up at every load, see `nodes`."""

    driver_version: str
    gpus: tuple[proc.Gpu, ...]
    libraries: tuple[files.Library, ...]
    misfits: tuple[files.Misfit, ...]
    binaries: tuple[files.DriverFile, ...]
    firmware: tuple[files.DriverFile, ...]
    proc_files: tuple[tuple[str, str], ...]
    devices: tuple[nodes.DeviceNode, ...] = ()
    ipc_paths: tuple[nodes.IpcPath, ...] = ()


def load(root: HostRoot) -> DriverInventory:
    """The host's inventory: the saved one where it is still true, else surveyed now and saved for the next."""
    now = stamp(root)
    inventory = read_saved(root, now)
    if inventory is None:
        inventory = survey(root)
        _save_quietly(root, now, inventory)
    return with_nodes(root, inventory)


def refresh(root: HostRoot) -> tuple[DriverInventory, str]:
    """Survey and save, making the folder; gives the inventory and where it lies."""
    now = stamp(root)
    inventory = survey(root)
    return with_nodes(root, inventory), save(root, now, inventory)


def with_nodes(root: HostRoot, inventory: DriverInventory) -> DriverInventory:
    """The inventory with device nodes and sockets as they are now."""
    return inventory._replace(
        devices=nodes.devices(root, inventory.gpus), ipc_paths=nodes.ipc_paths(root)
    )


def survey(root: HostRoot) -> DriverInventory:
    """Look at everything; DriverError where no kernel module is loaded."""
    version = proc.driver_version(root)
    if version is None:
        raise _absent(root)
    libraries = files.libraries(root, version)
    return DriverInventory(
        driver_version=version,
        gpus=proc.gpus(root),
        libraries=libraries,
        misfits=files.misfits(root, version, libraries),
        binaries=files.binaries(root),
        firmware=files.firmware(root, version),
        proc_files=_proc_files(root),
    )


def stamp(root: HostRoot) -> Stamp:
    """The stamp of this moment."""
    cache = root.stat(files.LD_SO_CACHE)
    return Stamp(
        boot_id=_text(root.read(_BOOT_ID)),
        driver=_text(root.read(proc.VERSION)),
        gpus=tuple(root.names(proc.GPUS)),
        mig_minors=_text(root.read(_MIG_MINORS)),
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
        if not isinstance(document, dict) or document.get("format") != _FORMAT:
            return None
        if document["stamp"] != _plain(now):
            return None
        return _from_rows(document["inventory"])
    except (ValueError, TypeError, KeyError):
        return None


def save(root: HostRoot, now: Stamp, inventory: DriverInventory) -> str:
    """Write the inventory beside its name and rename it there: readers see the old one or the new one, whole.

    The folder is made where it is missing; OSError where it cannot be written.
    """
    folder, _, name = SAVED.rpartition("/")
    path = root.path.rstrip("/") + folder
    try:
        posix.mkdir(path, 0o755)
    except FileExistsError:
        pass
    _write(f"{path}/{name}", now, inventory)
    return f"{path}/{name}"


def _save_quietly(root: HostRoot, now: Stamp, inventory: DriverInventory) -> None:
    """Save for the next start if the folder is there; this start has its inventory either way."""
    try:
        _write(root.path.rstrip("/") + SAVED, now, inventory)
    except OSError:
        pass


def _write(path: str, now: Stamp, inventory: DriverInventory) -> None:
    # Off the fast path: a hook writes at most once a driver and a boot.
    import json

    document = {
        "format": _FORMAT,
        "stamp": now,
        "inventory": inventory._replace(devices=(), ipc_paths=()),
    }
    # The pid keeps two hooks that survey at once out of each other's file; O_EXCL refuses a link set in its place.
    staged = f"{path}.{posix.getpid()}"
    fd = posix.open(staged, posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_CLOEXEC, 0o644)
    try:
        data = json.dumps(document).encode()
        while data:
            data = data[posix.write(fd, data) :]
        posix.rename(staged, path)
    except BaseException:
        posix.unlink(staged)
        raise
    finally:
        posix.close(fd)


def _read_trusted(root: HostRoot) -> bytes | None:
    """The saved bytes, if the file is a plain one that only root or we ourselves can have written."""
    try:
        fd = root.open(SAVED, posix.O_RDONLY | posix.O_NOFOLLOW | posix.O_NONBLOCK)
    except OSError:
        return None
    try:
        status = posix.fstat(fd)
        if status.st_uid not in (0, posix.geteuid()) or status.st_mode & _WRITABLE_BY_OTHERS:
            return None
        return posix.read(fd, status.st_size)
    except OSError:
        return None
    finally:
        posix.close(fd)


def _from_rows(rows: Any) -> DriverInventory:
    """The records again, from the lists that JSON made of them."""
    version, gpus, libraries, misfits, binaries, firmware, proc_files, _, _ = rows
    return DriverInventory(
        driver_version=str(version),
        gpus=tuple([proc.Gpu(*row) for row in gpus]),
        libraries=tuple([_library(*row) for row in libraries]),
        misfits=tuple([files.Misfit(*row) for row in misfits]),
        binaries=tuple([files.DriverFile(*row) for row in binaries]),
        firmware=tuple([files.DriverFile(*row) for row in firmware]),
        proc_files=tuple([(name, text) for name, text in proc_files]),
    )


def _library(
    path: str, file: str, soname: str, names: list[str], flags: int, capabilities: list[str]
) -> files.Library:
    return files.Library(path, file, soname, tuple(names), flags, tuple(capabilities))


def _plain(value: object) -> object:
    """A record as JSON gives it back: tuples are lists there."""
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _proc_files(root: HostRoot) -> tuple[tuple[str, str], ...]:
    """The texts directly below /proc/driver/nvidia that libraries read."""
    texts = [
        (name, root.read(f"{proc.DRIVER}/{name}")) for name in ("params", "version", "registry")
    ]
    return tuple([(name, _text(data)) for name, data in texts if data is not None])


def _absent(root: HostRoot) -> DriverError:
    status = root.stat("/dev/nvidiactl")
    if status is None:
        return DriverError(
            "this host has no NVIDIA driver: /proc/driver/nvidia is missing", _INSTALL_HINT
        )
    return DriverError(
        "NVIDIA device nodes are there, but /proc/driver/nvidia is not: the kernel module is not loaded",
        "whoever installs the driver must load it: modprobe nvidia",
    )


def _text(data: bytes | None) -> str:
    return (data or b"").decode("utf-8", "replace")
