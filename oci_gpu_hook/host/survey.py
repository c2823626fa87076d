# SPDX-License-Identifier: Apache-2.0
"""The survey: everything about this host's driver looked at anew, and saved for the starts to come.

``inventory refresh`` does it with what NVML says; a start that finds no saved inventory, or one that is no longer true,
does it without, correctly, only slower.  Opens no GPU.  Writes the saved inventory and nothing else.
"""

from __future__ import annotations

import marshal
import posix

from oci_gpu_hook.errors import DriverError
from oci_gpu_hook.host import catalogue, files, inventory, mig, proc, saved, stamp
from oci_gpu_hook.host.inventory import DriverInventory
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.host.stamp import Stamp

TYPE_CHECKING = False
if TYPE_CHECKING:

    from oci_gpu_hook.host.nvml import Facts

_INSTALL_HINT = "whoever installs the driver must install all parts of one version"
_REFRESH = "run 'oci-gpu-hook inventory refresh'"


def anew(root: HostRoot, driver_root: str) -> DriverInventory:
    """The inventory of this moment, saved for the next start if it can be; without nodes.

    What has been saved meanwhile and is true stays: ``inventory refresh`` knows more than we do.
    """
    now = stamp.now(root, driver_root)
    found = survey(root, driver_root)
    try:
        if inventory.read_saved(root, stamp.now(root, driver_root)) is None:
            _write(root, now, found)
    except OSError:
        pass  # this start has its inventory either way
    return found


def survey(root: HostRoot, driver_root: str = "/", facts: Facts | None = None) -> DriverInventory:
    """Look at everything; DriverError where no kernel module is loaded.  `facts`: what NVML says, if it was asked."""
    version = proc.driver_version(root)
    if version is None:
        raise _absent(root)
    if facts is not None and facts.driver_version != version:
        facts = None  # NVML of another version than the module's can know nothing of it
    driver = _driver(root, driver_root, version)
    libraries = files.libraries(driver)
    gpus = _gpus(proc.gpus(root), facts)
    mig_devices = mig.devices(root, gpus, facts)
    return DriverInventory(
        driver_version=version,
        cuda_version=facts.cuda_version if facts else _cuda_of(version),
        gpus=gpus,
        mig_devices=mig_devices,
        mig_config_minor=proc.capability_minor(root, "mig/config"),
        mig_monitor_minor=proc.capability_minor(root, "mig/monitor"),
        libraries=tuple(libraries),
        library_folder=files.library_folder(libraries),
        misfits=files.misfits(driver, libraries),
        binaries=files.binaries(driver),
        files=files.configuration(driver, root),
        firmware=files.firmware(driver, root),
        proc_files=_proc_files(root),
        unknown=_unknown(gpus, mig_devices, facts),
    )


def save(root: HostRoot, now: Stamp, found: DriverInventory) -> str:
    """Write the inventory beside its name and rename it there: readers see the old one or the new one, whole.

    The folder is made where it is missing; OSError where it cannot be written.  Gives the path.
    """
    top = root.path.rstrip("/")
    try:
        posix.mkdir(top + saved.FOLDER, 0o755)
    except FileExistsError:
        pass
    _write(root, now, found)
    return top + inventory.SAVED


def _write(root: HostRoot, now: Stamp, found: DriverInventory) -> None:
    data = _packed(now, found._replace(devices=(), links=(), ipc_paths=()))
    saved.write(root, inventory.FILE, data)


def _driver(root: HostRoot, driver_root: str, version: str) -> files.Driver:
    prefix = driver_root.rstrip("/")
    if not prefix:
        return files.driver(root, "", version)
    if root.stat(prefix) is None:
        raise DriverError(
            f"the driver root {prefix} is not there", "the administrator sets driver-root"
        )
    return files.driver(HostRoot(root.path.rstrip("/") + root.real(prefix)), prefix, version)


def _gpus(found: tuple[proc.Gpu, ...], facts: Facts | None) -> tuple[proc.Gpu, ...]:
    """The kernel's GPUs with what NVML knows of each; one that NVML does not show stays as it is."""
    told = {gpu.bus_id: gpu for gpu in facts.gpus} if facts else {}
    return tuple(
        [
            gpu._replace(
                uuid=gpu.uuid or told[gpu.bus_id].uuid,
                compute_capability=told[gpu.bus_id].compute_capability,
                brand=told[gpu.bus_id].brand,
            )
            if gpu.bus_id in told
            else gpu
            for gpu in found
        ]
    )


def _cuda_of(version: str) -> str:
    """The CUDA version that a driver of this branch supports at least; "" before the oldest known one."""
    branch = int(version.partition(".")[0])
    known = [cuda for first, cuda in catalogue.CUDA_OF_BRANCH if first <= branch]
    return known[-1] if known else ""


def _unknown(
    gpus: tuple[proc.Gpu, ...], mig_devices: tuple[inventory.MigDevice, ...], facts: Facts | None
) -> tuple[str, ...]:
    """What only NVML knows and has not told."""
    sentences = []
    silent = [gpu for gpu in gpus if not gpu.compute_capability]
    if facts is None:
        sentences.append(f"the CUDA version is taken from the driver's branch: {_REFRESH}")
    if silent:
        numbers = ", ".join([str(gpu.nvml_index) for gpu in silent])
        sentences.append(f"compute capability and brand of GPU {numbers}: {_REFRESH}")
    unnamed = [device for device in mig_devices if device.uuid is None]
    if unnamed:
        sentences.append(f"UUIDs and numbers of {len(unnamed)} MIG devices: {_REFRESH}")
    return tuple(sentences)


def _packed(now: Stamp, found: DriverInventory) -> bytes:
    """The file's bytes, as `inventory` has them.

    The hook's Python need not be that of ``inventory refresh``.  Marshal's version 2 has no references, which version 3
    brought, and no short forms of strings and tuples, which version 4 brought; what it has for tuples, strings,
    integers, booleans and None, every Python from 3.9 on reads alike, whatever it writes by itself
    (https://docs.python.org/3/library/marshal.html; tests/unit/test_saved.py tries each Python of the machine).
    """
    content = marshal.dumps((saved.plain(now), saved.plain(found)), 2)
    length = len(content).to_bytes(inventory.LENGTH_BYTES, "little")
    return inventory.HEADING + length + content


def _proc_files(root: HostRoot) -> tuple[tuple[str, str], ...]:
    """The texts directly below /proc/driver/nvidia that libraries read."""
    texts = [
        (name, root.read(f"{proc.DRIVER}/{name}")) for name in ("params", "version", "registry")
    ]
    return tuple(
        [(name, data.decode("utf-8", "replace")) for name, data in texts if data is not None]
    )


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
