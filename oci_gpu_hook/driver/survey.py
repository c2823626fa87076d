# SPDX-License-Identifier: Apache-2.0
"""The survey: a new inventory of this host's driver, saved for later starts.

``inventory refresh`` makes it with what NVML says.  A start makes it without NVML where no saved inventory is current:
the result is correct, but the start takes longer.  Opens no GPU.  Writes the saved inventory and nothing else.
"""

from __future__ import annotations

from oci_gpu_hook.driver import catalogue, files, inventory, mig, proc, stamp
from oci_gpu_hook.driver.gpu import Gpu, driver_version, list_gpus
from oci_gpu_hook.driver.inventory import DriverInventory
from oci_gpu_hook.driver.stamp import Stamp
from oci_gpu_hook.errors import DriverError
from oci_gpu_hook.host import saved
from oci_gpu_hook.host.root import HostRoot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.driver.facts import Facts

_INSTALL_HINT = "whoever installs the driver must install all parts of one version"
_REFRESH = "run 'oci-gpu-hook inventory refresh'"


def survey_and_save(root: HostRoot, driver_root: str) -> DriverInventory:
    """A new inventory, without nodes, saved for the next start if that is possible.

    A current inventory that was saved meanwhile stays: that of ``inventory refresh`` has what NVML says.
    """
    now = stamp.now(root, driver_root)
    found = survey(root, driver_root)
    try:
        if inventory.read_saved(root, stamp.now(root, driver_root)) is None:
            _write(root, now, found)
    except OSError:
        pass  # this start has its inventory either way
    if found.mig_devices:
        saved.want_refresh(root)  # NVML alone knows their names
    return found


def current(root: HostRoot, driver_root: str) -> DriverInventory:
    """The saved inventory while it is true, as only that has NVML's answer, else a new one; nothing is saved."""
    return inventory.read_saved(root, stamp.now(root, driver_root)) or survey(root, driver_root)


def survey(root: HostRoot, driver_root: str = "/", facts: Facts | None = None) -> DriverInventory:
    """A new inventory; DriverError if no kernel module is loaded.  `facts`: NVML's answer, if there is one."""
    version = driver_version(root)
    if version is None:
        raise _absent(root)
    if facts is not None and facts.driver_version != version:
        facts = None  # an NVML of another version knows nothing of this module
    driver = _driver(root, driver_root, version)
    libraries = files.libraries(driver)
    gpus = _gpus(list_gpus(root), facts)
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
        unknown=(*driver.untrusted, *_unknown(gpus, mig_devices, facts)),
    )


def save(root: HostRoot, now: Stamp, found: DriverInventory) -> str:
    """Save the inventory; gives the path.  OSError if it cannot be written.

    The folder is made where it is missing.  Readers see the old inventory or the new one, never a part of it.
    """
    _write(root, now, found)
    return root.path.rstrip("/") + inventory.SAVED


def _write(root: HostRoot, now: Stamp, found: DriverInventory) -> None:
    values = (now, found._replace(devices=(), links=(), ipc_paths=()))
    saved.write(root, inventory.FILE, saved.packed(inventory.HEADING, values))


def _driver(root: HostRoot, driver_root: str, version: str) -> files.Driver:
    prefix = driver_root.rstrip("/")
    if not prefix:
        return files.driver(root, "", version)
    if root.stat(prefix) is None:
        raise DriverError(f"the driver root {prefix} is not there", "the administrator sets driver-root")
    return files.driver(HostRoot(root.path.rstrip("/") + root.real(prefix)), prefix, version)


def _gpus(found: tuple[Gpu, ...], facts: Facts | None) -> tuple[Gpu, ...]:
    """The kernel's GPUs, each with what NVML says of it.  A GPU that NVML does not list stays as it is."""
    listed = {gpu.bus_id: gpu for gpu in facts.gpus} if facts else {}
    return tuple(
        [
            gpu._replace(
                uuid=gpu.uuid or listed[gpu.bus_id].uuid,
                compute_capability=listed[gpu.bus_id].compute_capability,
                brand=listed[gpu.bus_id].brand,
            )
            if gpu.bus_id in listed
            else gpu
            for gpu in found
        ]
    )


def _cuda_of(version: str) -> str:
    """The CUDA version that a driver of this branch supports at least; "" for a branch older than all in the list."""
    branch = int(version.partition(".")[0])
    supported = [cuda for first, cuda in catalogue.CUDA_OF_BRANCH if first <= branch]
    return supported[-1] if supported else ""


def _unknown(
    gpus: tuple[Gpu, ...], mig_devices: tuple[inventory.MigDevice, ...], facts: Facts | None
) -> tuple[str, ...]:
    """A sentence for each fact that only NVML knows and that is missing."""
    sentences = []
    unlisted = [gpu for gpu in gpus if not gpu.compute_capability]
    if facts is None:
        sentences.append(f"the CUDA version is taken from the driver's branch: {_REFRESH}")
    if unlisted:
        numbers = ", ".join([str(gpu.nvml_index) for gpu in unlisted])
        sentences.append(f"compute capability and brand of GPU {numbers}: {_REFRESH}")
    unnamed = [device for device in mig_devices if device.uuid is None]
    if unnamed:
        sentences.append(f"UUIDs and numbers of {len(unnamed)} MIG devices: {_REFRESH}")
    return tuple(sentences)


def _proc_files(root: HostRoot) -> tuple[tuple[str, str], ...]:
    """Name and text of those files in /proc/driver/nvidia that libraries read."""
    texts = [(name, root.read(f"{proc.DRIVER}/{name}")) for name in ("params", "version", "registry")]
    return tuple([(name, data.decode("utf-8", "replace")) for name, data in texts if data is not None])


def _absent(root: HostRoot) -> DriverError:
    status = root.stat("/dev/nvidiactl")
    if status is None:
        return DriverError("this host has no NVIDIA driver: /proc/driver/nvidia is missing", _INSTALL_HINT)
    return DriverError(
        "NVIDIA device nodes are there, but /proc/driver/nvidia is not: the kernel module is not loaded",
        "whoever installs the driver must load it: modprobe nvidia",
    )
