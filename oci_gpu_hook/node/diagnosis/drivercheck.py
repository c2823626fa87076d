# SPDX-License-Identifier: Apache-2.0
"""Findings about the driver: its module, its parts' versions, its nodes, the saved inventory, CDI specs.  Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oci_gpu_hook.node.diagnosis import FAIL, PASS, WARN, Finding, migspecs
from oci_gpu_hook.node.diagnosis.remedy import KERNELS_LOG, REBOOT, Remedy, command, then
from oci_gpu_hook.node.diagnosis.systemcheck import roots_alone
from oci_gpu_hook.record import NamedTuple

if TYPE_CHECKING:
    from oci_gpu_hook.driver.inventory import DriverInventory, MigDevice
    from oci_gpu_hook.driver.nodes import DeviceNode
    from oci_gpu_hook.node.engines.cdispecs import Spec

_INSTEAD_OF_NOUVEAU = then(command("modprobe", "-r", "nouveau"), command("modprobe", "nvidia"))
_DRIVER_ROOT = command("oci-gpu-hook", "config", "show", note="driver-root")
REFRESH = command("oci-gpu-hook", "inventory", "refresh")
_VALIDATE = command("oci-gpu-hook", "validate")
_USABLE_BY_ALL = 0o666
# Which lets adapters reach GPUs' memory: NVIDIA's, and Mellanox's before it.
_PEER_MEMORY = ("nvidia_peermem", "nv_peer_mem")
# Since then mlx5 takes memory by dma-buf; NVIDIA's proprietary module gives none.
_DMA_BUF_KERNEL = [5, 12]
_LOAD_PEER_MEMORY = then(
    command("modprobe", "nvidia_peermem"),
    command("sh", "-c", "echo nvidia_peermem >/etc/modules-load.d/nvidia-peermem.conf"),
)

# The commands that install the driver and its libraries, by the distribution's package manager.
_INSTALL = {
    "dnf": command("dnf", "install", "nvidia-driver", "nvidia-driver-cuda"),
    "apt": command("apt", "install", "nvidia-driver", "nvidia-smi"),
}
_REINSTALL = {
    "dnf": command("dnf", "reinstall", "nvidia-*", "libnvidia-*"),
    # apt-patterns(7): what is installed and has such a name.
    "apt": command("apt", "install", "--reinstall", "~i~nnvidia", "libcuda1"),
}
_UPGRADE = {
    "dnf": command("dnf", "upgrade", "nvidia-*", "libnvidia-*"),
    "apt": command("apt", "install", "--only-upgrade", "libnvidia-*", "libcuda1"),
}
# What fixes a host whose platform has a description of its driver in place of the module, by that platform.
_OF_PLATFORM = {
    "tegra": then(command("apt", "install", "--reinstall", "nvidia-l4t-init"), command("modprobe", "nvgpu")),
    "wsl": command("wsl.exe", "--shutdown"),
}


class Absence(NamedTuple):
    """A host without a loaded driver.

    why: the survey's error; has_nodes, has_module: whether NVIDIA's nodes and module are there all the same; nouveau:
    whether that module is loaded; has_root: whether the driver root exists.
    """

    why: str
    has_nodes: bool
    has_module: bool
    nouveau: bool
    has_root: bool


class State(NamedTuple):
    """The folder where the inventory is saved.

    is_folder: False if its name has another kind of file; is_open: whether others than root may write to it;
    is_saved: whether it holds an inventory, current or not.
    """

    folder: str
    is_folder: bool
    is_open: bool
    is_saved: bool


def absent(absence: Absence, tool: str) -> list[Finding]:
    """The one finding where no driver is loaded: all others would follow from it."""
    if absence.nouveau:
        why = "the kernel's nouveau drives the GPUs, and NVIDIA's module cannot"
        return [Finding("driver", FAIL, why, _INSTEAD_OF_NOUVEAU)]
    if not absence.has_root:
        return [Finding("driver", FAIL, absence.why, _DRIVER_ROOT)]
    is_installed = absence.has_nodes or absence.has_module
    remedy = command("modprobe", "nvidia") if is_installed else _INSTALL[tool]
    return [Finding("driver", FAIL, absence.why, remedy)]


def platform(kind: str, name: str, proof: str, error: str, left_out: tuple[str, ...]) -> list[Finding]:
    """A Jetson or WSL 2: what it is by, and what of its driver's description serves.

    name: for people; error: why nothing of it does, "" if it does; left_out: a sentence for each line that does not.
    """
    findings = [Finding("platform", PASS, f"{name}, by {proof}")]
    if error:
        return [*findings, Finding("driver", FAIL, error, _OF_PLATFORM[kind])]
    seen = "all that it says of containers' files and devices serves"
    if left_out:
        # Of every board, and more than a container may have: there is nothing to fix.
        others = f", and {len(left_out) - 1} more" if len(left_out) > 1 else ""
        seen = f"{left_out[0]}{others}"
    return [*findings, Finding("driver", PASS, seen)]


def parts(found: DriverInventory, tool: str) -> list[Finding]:
    """The module, and whether the libraries are of its version."""
    kernel = found.driver_version
    findings = [Finding("driver", PASS, f"the kernel module is of version {kernel}")]
    for misfit in found.misfits:
        if not misfit.found:
            seen = f"{misfit.name} of version {kernel} is missing: {misfit.capability} is not served"
            findings.append(Finding("libraries", FAIL, seen, _INSTALL[tool]))
        elif misfit.found == kernel:
            seen = f"{misfit.name} of version {kernel} is cut off or no library: its installation did not end"
            findings.append(Finding("libraries", FAIL, seen, _REINSTALL[tool]))
        else:
            seen = f"{misfit.name} is of version {misfit.found}, the kernel module of {kernel}"
            newer = _numbers(misfit.found) > _numbers(kernel)
            # After an upgrade the files are new, and the loaded module is still the old one.
            findings.append(Finding("libraries", FAIL, seen, REBOOT if newer else _UPGRADE[tool]))
    if not found.misfits:
        number = len(found.libraries)
        findings.append(Finding("libraries", PASS, f"{number} are of the module's version"))
    return findings


def firmware(found: DriverInventory, wanted: bool, tool: str) -> list[Finding]:
    """The firmware of the GPU system processor."""
    if found.firmware:
        return [Finding("firmware", PASS, f"{len(found.firmware)} files for the GPU's processor")]
    if not wanted:
        return [Finding("firmware", PASS, "these GPUs need none")]
    seen = f"the GPUs run firmware, and none of version {found.driver_version} is there"
    return [Finding("firmware", WARN, seen, _INSTALL[tool])]


def loader_cache(names: frozenset[str] | None) -> list[Finding]:
    """The host's ld.so.cache, by which the host's programs find the driver."""
    if names is not None and "libcuda.so.1" in names:
        return [Finding("ld.so.cache", PASS, "names libcuda.so.1")]
    seen = "there is none" if names is None else "does not name libcuda.so.1"
    return [Finding("ld.so.cache", WARN, seen, command("ldconfig"))]


def gpus(found: DriverInventory, unhealthy: dict[str, str]) -> list[Finding]:
    """The GPUs and MIG devices; unhealthy: why a GPU is not healthy, by its index."""
    if not found.gpus:
        seen = "the driver is loaded and drives no GPU"
        return [Finding("GPUs", FAIL, seen, KERNELS_LOG)]
    seen = f"{len(found.gpus)}, the first is {found.gpus[0].model}"
    if found.mig_devices:
        seen += f"; {len(found.mig_devices)} MIG devices"
    return [
        Finding("GPUs", PASS, seen),
        *[Finding("health", WARN, f"GPU {index}: {why}", _VALIDATE) for index, why in unhealthy.items()],
    ]


def nodes(
    wanted: tuple[DeviceNode, ...], found: dict[str, tuple[int, int] | None], uvm_is_loaded: bool
) -> list[Finding]:
    """The nodes in /dev.  `found`: the device numbers of each path, None if there is no device."""
    findings = []
    if not uvm_is_loaded:
        seen = "nvidia-uvm is not loaded: CUDA cannot start"
        findings.append(Finding("nodes", FAIL, seen, command("modprobe", "nvidia-uvm")))
    for node in wanted:
        numbers = found.get(node.path)
        if numbers is not None and numbers != (node.major, node.minor):
            major, minor = numbers
            seen = f"{node.path} is device {major}:{minor}, the driver's is {node.major}:{node.minor}"
            findings.append(Finding("nodes", FAIL, seen, then(command("rm", node.path), _made(wanted))))
    missing = [node.path for node in wanted if found.get(node.path) is None]
    if missing:
        # The hook makes nodes in containers, but in a user namespace it must bind the host's.
        seen = f"{_listed(missing)} missing: rootless containers cannot have them"
        findings.append(Finding("nodes", WARN, seen, _made(wanted)))
    narrow = [n for n in wanted if n.present and not n.family and n.mode & 0o666 != _USABLE_BY_ALL]
    if narrow:
        paths = [node.path for node in narrow]
        # What the hook gives by itself a rootless engine and CDI before 0.7 do not.
        group = f" without --group-add {narrow[0].gid} (rootless podman: keep-groups)" if narrow[0].mode & 0o060 else ""
        seen = f"{_listed(paths)} of mode {narrow[0].mode:04o}: containers as other users cannot open them{group}"
        findings.append(Finding("nodes", WARN, seen, command("chmod", "0666", *paths)))
    if findings:
        return findings
    return [Finding("nodes", PASS, f"{len(wanted)}, with the driver's numbers and mode 0666")]


def rdma(adapters: list[str], modules: tuple[str, ...], is_open: bool, release: str) -> list[Finding]:
    """How adapters reach the GPUs' memory (GPUDirect RDMA); nothing where there is none.

    modules: the loaded ones; is_open: whether NVIDIA's is the open one; release: the kernel's.
    """
    if not adapters:
        return []
    whose = _listed(adapters)
    for name in _PEER_MEMORY:
        if name in modules:
            return [Finding("GPUDirect RDMA", PASS, f"by {name}, for {whose}")]
    is_new = _numbers(release) >= _DMA_BUF_KERNEL
    if is_open and is_new:
        seen = f"by dma-buf, for {whose}; programs that know nvidia_peermem alone copy through the host's memory"
        return [Finding("GPUDirect RDMA", PASS, seen)]
    why = "the kernel is older than 5.12" if is_open else "NVIDIA's module is not the open one"
    seen = f"{whose} cannot reach the GPUs' memory: nvidia_peermem is not loaded, and there is no dma-buf, as {why}"
    return [Finding("GPUDirect RDMA", WARN, seen, _LOAD_PEER_MEMORY)]


def inventory(saved: DriverInventory | None, state: State) -> list[Finding]:
    """The saved inventory.  Without it starts take longer, and nothing is known of what only NVML says."""
    check = "inventory"
    findings = folder(state)
    if findings:
        return findings
    if saved is None:
        seen = "what is saved is no longer true" if state.is_saved else "none is saved"
        return [Finding(check, WARN, f"{seen}: each start looks at the driver again", REFRESH)]
    if saved.unknown:
        return [Finding(check, WARN, f"not known: {saved.unknown[0]}", REFRESH)]
    return [Finding(check, PASS, f"saved, and true for driver {saved.driver_version}")]


def folder(state: State) -> list[Finding]:
    """What is wrong with the folder where inventories are saved."""
    check = "inventory"
    if not state.is_folder:
        seen = f"{state.folder} is no folder: nothing can be saved"
        return [Finding(check, WARN, seen, then(command("rm", state.folder), REFRESH))]
    if state.is_open:
        seen = f"others than root may write {state.folder}: nothing in it is trusted"
        return [Finding(check, WARN, seen, then(roots_alone(state.folder), REFRESH))]
    return []


def cdi_specs(specs: tuple[Spec, ...], version: str, mig_devices: tuple[MigDevice, ...] = ()) -> list[Finding]:
    """The CDI specs of the GPUs: each must be for the driver's version, and one folder must hold only one.

    mig_devices: the host's, with the names that NVML has for them now, or none: its spec must not name others.
    """
    findings = []
    for spec in specs:
        folder = spec.path.rpartition("/")[0]
        in_folder = [item for item in specs if item.path.rpartition("/")[0] == folder]
        others = [item.path for item in in_folder if item != spec]
        # The first one of ours is to stay.
        first_of_ours = next((item for item in in_folder if item.is_ours), None)
        generate = command("oci-gpu-hook", "cdi", "generate", "--output", spec.path)
        remove = command("rm", spec.path)
        stale = migspecs.stale_name(spec.devices, mig_devices)
        if spec.driver != version:
            seen = f"{spec.path} is for driver {spec.driver or 'unknown'}, the host has {version}"
            remedy = generate if spec.is_ours else remove
            findings.append(Finding("CDI", FAIL, seen, remedy))
        elif stale:
            # The names in a new spec are those of the saved inventory.
            remedy = then(REFRESH, generate) if spec.is_ours else remove
            findings.append(Finding("CDI", FAIL, f"{spec.path} {stale}", remedy))
        elif others and spec != first_of_ours:
            seen = f"{spec.path} and {others[0]} give the same devices, and engines take neither"
            findings.append(Finding("CDI", FAIL, seen, remove))
        elif spec.unread:
            seen = f"{spec.path} has a list of devices that cannot be read here, and may name stale ones"
            remedy = generate if spec.is_ours else remove
            findings.append(Finding("CDI", WARN, seen, remedy))
        elif not spec.is_ours:
            seen = f"{spec.path} was made by another program, which injects by itself what it names"
            findings.append(Finding("CDI", WARN, seen, remove))
        else:
            findings.append(Finding("CDI", PASS, f"{spec.path} is for driver {version}"))
    return findings or [Finding("CDI", PASS, "no spec: the hook needs none")]


def management_spec(spec: Spec, version: str) -> Finding:
    """What is to be said of a CDI spec of ours for management."""
    if spec.driver == version:
        return Finding("CDI", PASS, f"{spec.path} is for driver {version}")
    generate = command("oci-gpu-hook", "cdi", "generate", "--kind", "management", "--output", spec.path)
    return Finding("CDI", FAIL, f"{spec.path} is for driver {spec.driver}, the host has {version}", generate)


def spec_beside_gpus(path: str, family: str, fault: str) -> Finding:
    """The same of one for what is beside GPUs; fault: why it is out of date, "" if it is not."""
    if not fault:
        return Finding("CDI", PASS, f"{path} says what the host has of {family}")
    generate = command("oci-gpu-hook", "cdi", "generate", "--kind", family, "--output", path)
    return Finding("CDI", FAIL, f"{path}: {fault}", generate)


def vendors_spec(spec: Spec, fault: str, *, is_known: bool) -> Finding:
    """What is to be said of a CDI spec of another vendor's devices.

    fault: why it is out of date, "" if it is not; is_known: whether a vendor's file has its flag.
    """
    if not is_known:
        seen = f"{spec.path} is for {spec.flag}, which no vendor's file has"
        return Finding("CDI", FAIL, seen, command("rm", spec.path))
    if fault:
        words = ("--vendor", spec.flag, "--output", spec.path)
        remedy = command("oci-gpu-hook", "cdi", "generate", *words)
        return Finding("CDI", FAIL, f"{spec.path}: {fault}", remedy)
    return Finding("CDI", PASS, f"{spec.path} has what {spec.flag} has here")


def _made(wanted: tuple[DeviceNode, ...]) -> Remedy:
    """The command that makes the missing nodes.  -c names a GPU by its minor, -u means unified memory."""
    minors = [node.minor for node in wanted if node.gpu is not None and not node.family]
    each = [word for minor in minors for word in ("-c", str(minor))]
    return command("nvidia-modprobe", "-u", *each)


def _listed(paths: list[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdigit()]
