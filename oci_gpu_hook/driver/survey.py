# SPDX-License-Identifier: Apache-2.0
"""The survey: a new inventory of this host's driver, saved for later starts.

``inventory refresh`` adds what NVML says (`node.gpus.nvml`); a start makes one without that, if none that is saved is
true.  Opens no GPU.  Writes the saved inventory alone.
"""

from __future__ import annotations

from oci_gpu_hook.driver import catalogue, files, inventory, nodes, proc
from oci_gpu_hook.driver.inventory import DriverInventory, MigDevice
from oci_gpu_hook.driver.proc import Gpu
from oci_gpu_hook.errors import DriverError
from oci_gpu_hook.formats.decimal import decimal, decimals
from oci_gpu_hook.host import statefile
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.request.selectors import bus_id

_INSTALL_HINT = "the administrator must install all parts of one version"
_REFRESH = "run 'oci-gpu-hook inventory refresh'"
FROM_BRANCH = f"the CUDA version is taken from the driver's branch: {_REFRESH}"


def read_true(host: HostRoot, driver_root: str) -> DriverInventory | None:
    """The saved inventory while it is true, also of a half installed driver: no time that is compared tells that the
    folder of what it lacked was mounted since.
    """
    saved = inventory.read_saved(host, proc.stamp(host, driver_root))
    return None if saved and saved.misfits and survey(host, driver_root).misfits != saved.misfits else saved


def survey_and_save(host: HostRoot, driver_root: str) -> DriverInventory:
    """A new inventory, saved if that is possible; one that ``inventory refresh`` has saved meanwhile stays."""
    now = proc.stamp(host, driver_root)
    found = survey(host, driver_root)
    try:
        saved = inventory.read_saved(host, proc.stamp(host, driver_root))
        if saved is None or saved.misfits != found.misfits:
            save(host, now, found)
    except OSError:
        pass  # this start has its inventory either way
    return found


def survey(host: HostRoot, driver_root: str = "/") -> DriverInventory:
    """A new inventory, without what only NVML knows; DriverError if no kernel module is loaded."""
    version = driver_version(host)
    if version is None:
        if host.stat(nodes.CONTROL) is None:
            raise DriverError("this host has no NVIDIA driver: /proc/driver/nvidia is missing", _INSTALL_HINT)
        why = "NVIDIA device nodes are there, but /proc/driver/nvidia is not: the kernel module is not loaded"
        raise DriverError(why, "the administrator must load it: modprobe nvidia")
    # The branch's own or the next older one's; "" for a branch older than all in the list.
    branches = [cuda for first, cuda in catalogue.CUDA_OF_BRANCH if first <= int(version.partition(".")[0])]
    driver = files.find_driver(host, driver_root, version)
    libraries, faults = files.of_root(host, files.libraries(driver))
    gpus = list_gpus(host)
    instances = mig_devices(host, gpus)
    kinds = (files.binaries(driver), files.configuration(driver, host), files.firmware(driver, host))
    (binaries, configuration, firmware), more = zip(*[files.of_root(host, kind) for kind in kinds])
    left_out = {path: why for found in (faults, *more) for path, why in found.items()}
    sentences = (*driver.untrusted, *[f"{path} is left out: {why}" for path, why in left_out.items()])
    texts = [(name, host.read(f"{proc.DRIVER}/{name}")) for name in ("params", "version", "registry")]
    return DriverInventory(
        driver_version=version,
        cuda_version=branches[-1] if branches else "",
        gpus=gpus,
        mig_devices=instances,
        mig_config_minor=proc.capability_minor(host, "mig/config"),
        mig_monitor_minor=proc.capability_minor(host, "mig/monitor"),
        libraries=libraries,
        misfits=files.misfits(driver, libraries, faults),
        binaries=binaries,
        files=configuration,
        firmware=firmware,
        proc_files=tuple([(name, data.decode("utf-8", "replace")) for name, data in texts if data is not None]),
        unknown=(*sentences, FROM_BRANCH, *missing(gpus, instances)),
    )


def save(host: HostRoot, now: proc.Stamp, found: DriverInventory) -> str:
    """Gives the path.  OSError if it cannot be written."""
    statefile.save(host, inventory.FILE, inventory.HEADING, (now, found))
    return host.path.rstrip("/") + inventory.SAVED


def driver_version(host: HostRoot) -> str | None:
    # The first dotted number in the NVRM line: the words before it differ between the two flavours of the module.
    words = host.text(proc.VERSION).partition("\n")[0].split()
    return next((word for word in words if "." in word and decimals(word)), None)


def list_gpus(host: HostRoot) -> tuple[Gpu, ...]:
    """The GPUs that NVML would list, in its order."""
    found: list[Gpu] = []
    # Of one length each, addresses sort as numbers do; a name of another shape sorts last.
    for bus, name in sorted([(bus_id(name) or f"~{name}", name) for name in host.names(proc.GPUS)]):
        fields = proc.information(host, f"{proc.GPUS}/{name}/information")
        minor = decimal(fields.get("Device Minor", ""))
        # "GPU Excluded: Yes" comes from a module parameter that the administrator sets.  NVML skips such a GPU.
        if fields.get("GPU Excluded") == "Yes" or minor is None:
            continue
        found.append(Gpu(len(found), proc.uuid_in(fields), fields.get("Model", "unknown"), bus, minor, proc=name))
    return tuple(found)


def mig_devices(host: HostRoot, gpus: tuple[Gpu, ...]) -> tuple[MigDevice, ...]:
    """Sorted (NVIDIA's MIG user guide, "Device Nodes and Capabilities"); NVML knows their names."""
    parents = {f"gpu{gpu.minor}": gpu for gpu in gpus}
    found = []
    for folder in proc.mig_instances(host):
        parent, mig, instance, compute = folder.split("/")
        gpu, gi, ci = parents.get(parent), decimal(instance[2:]), decimal(compute[2:])
        gi_minor = proc.capability_minor(host, f"{parent}/{mig}/{instance}/access")
        ci_minor = proc.capability_minor(host, f"{folder}/access")
        if gpu is None or gi is None or ci is None or gi_minor is None or ci_minor is None:
            continue
        found.append(MigDevice(gpu.nvml_index, None, None, "", gi, ci, gi_minor, ci_minor))
    return tuple(sorted(found, key=lambda device: (device.gpu, device.gi, device.ci)))


def missing(gpus: tuple[Gpu, ...], mig_devices: tuple[MigDevice, ...]) -> tuple[str, ...]:
    unlisted = ", ".join([str(gpu.nvml_index) for gpu in gpus if not gpu.compute_capability])
    unnamed = len([device for device in mig_devices if device.uuid is None])
    of_gpus = (f"compute capability and brand of GPU {unlisted}: {_REFRESH}",) if unlisted else ()
    return (*of_gpus, f"UUIDs and numbers of {unnamed} MIG devices: {_REFRESH}") if unnamed else of_gpus
