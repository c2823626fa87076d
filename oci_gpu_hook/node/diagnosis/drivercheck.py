# SPDX-License-Identifier: Apache-2.0
"""Findings about NVIDIA's driver: its module, its parts' versions, its GPUs and nodes, the saved inventory."""

from __future__ import annotations

from pathlib import PurePosixPath
from stat import S_ISVTX

from oci_gpu_hook.driver import nodes, proc, survey
from oci_gpu_hook.driver.inventory import SAVED, DriverInventory, of_this_host, with_nodes
from oci_gpu_hook.errors import DriverError
from oci_gpu_hook.formats.decimal import beginning
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.host.statefile import FOLDER
from oci_gpu_hook.kernel.filetypes import WRITABLE_BY_OTHERS, is_folder, is_open_to_others
from oci_gpu_hook.node.diagnosis import Finding, counted, failed, passed, warned
from oci_gpu_hook.node.diagnosis.remedy import KERNELS_LOG, REBOOT, REFRESH, Remedy, command, roots_alone, then
from oci_gpu_hook.node.gpus import hardware, holdercount
from oci_gpu_hook.node.gpus.nvml import Facts
from oci_gpu_hook.node.machine import kernelconfig
from oci_gpu_hook.node.machine.foreignfile import number
from oci_gpu_hook.planning import platforms
from oci_gpu_hook.planning.plan import some
from oci_gpu_hook.request.settings import SETTINGS
from oci_gpu_hook.vendors import platform, tegra

# In the sentences of `files.of_root`.
_LEFT_OUT = " is left out: "
# Which lets adapters reach GPUs' memory: NVIDIA's, and Mellanox's before it.
_PEER_MEMORY = frozenset(["nvidia_peermem", "nv_peer_mem"])
_LOAD_PEER_MEMORY = then(
    command("modprobe", "nvidia_peermem"),
    command("sh", "-c", "echo nvidia_peermem >/etc/modules-load.d/nvidia-peermem.conf"),
)

# By the distribution's package manager.
_INSTALL = {
    "dnf": command("dnf", "install", "nvidia-driver", "nvidia-driver-cuda"),
    "apt": command("apt", "install", "nvidia-driver", "nvidia-smi"),
}
# Ubuntu's packages have the branch in their names, and this program knows which serves the GPU.
_BY_UBUNTU = then(command("apt", "install", "ubuntu-drivers-common"), command("ubuntu-drivers", "install"))
# Where NVIDIA's GPU operator has the root of its driver container.
_OPERATORS = "/run/nvidia/driver"
_NODES = command("oci-gpu-hook", "inventory", "refresh", "--nodes")
_REINSTALL = command("dnf", "reinstall", "nvidia-*", "libnvidia-*")
# Packages of a driver, of whichever variant: libcuda1, libnvidia-tesla-470-cuda1; Ubuntu's libnvidia-compute-580, and
# libnvidia-compute-580-server, of the same version, which excludes it; empty ones of other branches are of it too.
_LIBRARIES = "^lib(cuda1|nvidia-(.*-)?(cuda1|ml1|compute-{}{}))$"
# dpkg keeps it while the package is installed; its folder of documents is left out on minimal hosts.
_SERVERS = "/var/lib/dpkg/info/nvidia-kernel-common-{}-server.md5sums"
_UPGRADE = {
    "dnf": command("dnf", "upgrade", "nvidia-*", "libnvidia-*"),
    "apt": command("apt", "install", "--only-upgrade", '?and(?installed,?name("^lib(cuda1|nvidia-)"))'),
}
# The folder that our command looks in last: of Debian's components contrib alone has python3-pynvml, and not every dnf
# has nvidia-ml-py.  What root's pip puts into /usr/local a Python of Red Hat's does not see if it is started by -I.
_VENDOR = f"{PurePosixPath(__file__).parents[3]}/vendor"
_BY_PIP = command("/usr/bin/python3", "-m", "pip", "install", "--target", _VENDOR, "nvidia-ml-py")
_PYNVML = {tool: then(command(tool, "install", "python3-pip"), _BY_PIP) for tool in ("dnf", "apt")}
# What fixes a host whose platform has a description of its driver in place of the module, by that platform.
_OF_PLATFORM = {
    "tegra": then(command("apt", "install", "--reinstall", "nvidia-l4t-init"), command("modprobe", "nvgpu")),
    "wsl": command("wsl.exe", "--shutdown"),
}


def check_driver(
    host: HostRoot, driver_root: str, tool: str, *, others: bool = False
) -> tuple[list[Finding], DriverInventory | None]:
    """Also what was found, if its module is loaded; others: whether another vendor's hardware is here."""
    kind, proof = platform.prove(host)
    if kind in (platform.TEGRA, platform.WSL):
        return of_platform(host, kind, proof), None
    try:
        found = of_this_host(host, survey.survey(host, driver_root))
    except DriverError as err:
        modules = kernelconfig.modules(host)
        if others and not {"nvidia", "nouveau"}.intersection(modules) and not hardware.expects_nvidia(host):
            return [passed("driver", "no GPU of NVIDIA's: other vendors' hardware is here"), *folder(host)], None
        return [absent(host, modules, err, tool)], None
    devices = with_nodes(host, found, ("modeset", "caps", "imex")).devices
    numbered = tuple([node for node in devices if node.present or not node.family])
    return [*_parts(host, driver_root, found, tool), *_gpus(host, found), *_nodes(host, numbered)], found


def absent(host: HostRoot, modules: tuple[str, ...], err: DriverError, tool: str) -> Finding:
    """The one finding where no driver is loaded: all others would follow from it; err: the survey's."""
    if "nouveau" in modules:
        why = "the kernel's nouveau drives the GPUs, and NVIDIA's module cannot"
        return failed("driver", why, then(command("modprobe", "-r", "nouveau"), command("modprobe", "nvidia")))
    if "driver-root" in err.hint:
        return failed("driver", err.message, command("oci-gpu-hook", "info", "--settings", note="driver-root"))
    if host.stat(nodes.CONTROL) is not None or "nvidia" in modules:
        return failed("driver", err.message, "modprobe", "nvidia")
    return failed("driver", err.message, _BY_UBUNTU if "ubuntu" in host.text("/etc/os-release") else _INSTALL[tool])


def of_platform(host: HostRoot, kind: str, proof: str) -> list[Finding]:
    found = passed("platform", f"{platform.NAMES[kind]}, by {proof}")
    try:
        left_out = tegra.vendor(host, everything=True)[1] if kind == platform.TEGRA else ()
        platforms.platform_state(host, kind, everything=True)
    except DriverError as err:
        return [found, failed("driver", err.message, _OF_PLATFORM[kind])]
    # What is left out is of every board, and more than a container may have: there is nothing to fix.
    return [found, passed("driver", "; ".join(left_out) or "all that it says of containers' files and devices serves")]


def nvml(found: DriverInventory, facts: Facts) -> list[Finding]:
    """Whether NVML says what the kernel says of version, GPUs and MIG devices; found: the inventory with its facts."""
    if facts.driver_version != found.driver_version:
        seen = f"NVML is of version {facts.driver_version}, the kernel module of {found.driver_version}"
        return [failed("NVML", seen, REBOOT)]
    kernels = {**dict.fromkeys(found.unlisted), **{gpu.bus_id: gpu.uuid for gpu in found.gpus}}
    theirs = {gpu.bus_id: gpu.uuid for gpu in facts.gpus}
    wrong = [f"NVML lacks {bus_id}, which the kernel has" for bus_id in kernels if bus_id not in theirs]
    for bus_id, uuid in theirs.items():
        if bus_id not in kernels:
            wrong.append(f"NVML lists {bus_id}, which the kernel does not")
        elif kernels[bus_id] not in (None, "", uuid):
            wrong.append(f"{bus_id} is {uuid} for NVML, {kernels[bus_id]} for the kernel")
    if unnamed := len([device for device in found.mig_devices if device.uuid is None]):
        wrong.append(f"NVML lacks {unnamed} of the kernel's MIG devices")
    if wrong:
        return [failed("NVML", sentence, KERNELS_LOG) for sentence in wrong]
    known = counted((len(kernels), "GPU", "GPUs"), (len(found.mig_devices), "MIG device", "MIG devices"))
    return [passed("NVML", f"CUDA {facts.cuda_version}; it knows what the kernel knows: {known}")]


def unasked(why: str, tool: str) -> Finding:
    """NVML has not answered; why: `NvmlUnavailable`.  Without pynvml all but what NVML alone knows is known."""
    return warned("NVML", why, _PYNVML[tool]) if "no pynvml" in why else failed("NVML", why, KERNELS_LOG)


def _parts(host: HostRoot, driver_root: str, found: DriverInventory, tool: str) -> list[Finding]:
    kernel = found.driver_version
    findings = [passed("driver", f"the kernel module is of version {kernel}")]
    # Of a folder that others may write to no file is looked at.
    left_out = next((sentence for sentence in found.unknown if _LEFT_OUT in sentence), "")
    for misfit in found.misfits:
        if why := misfit.why or ("" if misfit.found else left_out):
            findings.append(failed("libraries", why, _owners(host, why)))
            continue
        if not misfit.found:
            remedy = _of_version(host, tool, kernel, _INSTALL["dnf"])
            if driver_root == "/" and host.stat(f"{_OPERATORS}/usr"):
                remedy = command("vi", SETTINGS, note=f"driver-root = {_OPERATORS}")
            seen = f"of version {kernel} is missing: {misfit.capability} is not served"
        elif misfit.found == kernel:
            remedy = _of_version(host, tool, kernel, _REINSTALL, "--reinstall")
            seen = f"of version {kernel} is cut off or no library: its installation did not end"
        else:
            # After an upgrade the files are new, and the loaded module is still the old one.
            remedy = REBOOT if beginning(misfit.found) > beginning(kernel) else _UPGRADE[tool]
            seen = f"is of version {misfit.found}, the kernel module of {kernel}"
        findings.append(failed("libraries", f"{misfit.name} {seen}", remedy))
    if not found.misfits:
        findings.append(passed("libraries", f"{len(found.libraries)} are of the module's version"))
    # Several libraries of one folder have one fault.
    return [*dict.fromkeys(findings)]


def _of_version(host: HostRoot, tool: str, version: str, by_dnf: Remedy, *options: str) -> Remedy:
    """The command that installs the libraries' packages that are of the module's version, and of no other driver."""
    branch, number = version.partition(".")[0], version.replace(".", "[.]")
    names = _LIBRARIES.format(branch, "-server" if host.stat(_SERVERS.format(branch)) is not None else "")
    # apt-patterns(7).
    pattern = f'?and(?name("{names}"),?version("^{number}"))'
    return command("apt", "install", *options, pattern) if tool == "apt" else by_dnf


def _gpus(host: HostRoot, found: DriverInventory) -> list[Finding]:
    if not found.gpus:
        return [failed("GPUs", "the driver is loaded and drives no GPU", KERNELS_LOG)]
    seen = f"{len(found.gpus)}, the first is {found.gpus[0].model}"
    if found.mig_devices:
        seen += f"; {counted((len(found.mig_devices), 'MIG device', 'MIG devices'))}"
    if found.elsewhere:
        seen += f"; {some(found.elsewhere)} without a node here, as this host is a container"
    unhealthy = holdercount.unhealthy_gpus(host, found).items()
    health = [warned("health", f"GPU {index}: {why}", "oci-gpu-hook", "validate") for index, why in unhealthy]
    return [passed("GPUs", seen), *health]


def _nodes(host: HostRoot, wanted: tuple[nodes.DeviceNode, ...]) -> list[Finding]:
    findings, missing = [], []
    if "nvidia-uvm" not in proc.character_majors(host):
        findings.append(failed("nodes", "nvidia-uvm is not loaded: CUDA cannot start", "modprobe", "nvidia-uvm"))
    for node in wanted:
        status = host.stat(node.path)
        if status is None or not status.st_rdev:
            missing.append(node.path)
        elif number(status) != (node.major, node.minor):
            major, minor = number(status)
            seen = f"{node.path} is device {major}:{minor}, the driver's is {node.major}:{node.minor}"
            findings.append(failed("nodes", seen, then(command("rm", node.path), _NODES)))
    if missing:
        # The hook makes nodes in containers, but in a user namespace it must bind the host's.
        seen = f"{some(missing, most=1)} missing: rootless containers cannot have them"
        findings.append(warned("nodes", seen, _NODES))
    if narrow := [n for n in wanted if n.present and not n.family and n.mode & 0o666 != 0o666]:
        paths = [node.path for node in narrow]
        # The hook gives their group by itself; a rootless engine, and CDI before 0.7, do not.
        seen = f"{some(paths, most=1)} of mode {narrow[0].mode:04o}: containers as other users need --group-add"
        findings.append(warned("nodes", seen, "chmod", "0666", *paths))
    return findings or [passed("nodes", f"{len(wanted)}, with the driver's numbers, and usable by all")]


def rdma(host: HostRoot, modules: tuple[str, ...]) -> list[Finding]:
    adapters = hardware.rdma_adapters(host)
    # mlx5 takes memory by dma-buf; NVIDIA's proprietary module gives none.
    is_open = b" Open Kernel Module " in (host.read(proc.VERSION) or b"")
    if not adapters or is_open or _PEER_MEMORY.intersection(modules):
        return []
    why = "nvidia_peermem is not loaded, and there is no dma-buf, as NVIDIA's module is not the open one"
    seen = f"{some(adapters, most=1)} cannot reach the GPUs' memory: {why}"
    return [warned("GPUDirect RDMA", seen, _LOAD_PEER_MEMORY)]


def inventory(host: HostRoot, saved: DriverInventory | None, tool: str) -> Finding:
    if wrong := folder(host):
        return wrong[0]
    if saved is None:
        seen = "none is saved" if host.stat(SAVED) is None else "what is saved is no longer true"
        return warned("inventory", f"{seen}: each start looks at the driver again", REFRESH)
    paths = [*[it.path for it in saved.libraries], *[it.path for it in saved.binaries]]
    if gone := [path for path in paths if host.stat(path) is None]:
        return failed("inventory", f"{gone[0]}, which each start would give, is not there any more", REFRESH)
    if saved.unlisted and not nodes.is_container(host):
        seen = f"NVML did not list {some(saved.unlisted)}, which the kernel module has: no container gets it"
        # NVML may list it since it was asked.
        return failed("inventory", seen, then(REFRESH, KERNELS_LOG))
    if saved.unknown:
        first = saved.unknown[0]
        if _LEFT_OUT in first:
            return warned("inventory", first, _owners(host, first))
        # Asked again, NVML says the same until that is changed.
        remedy = then(_PYNVML[tool], REFRESH) if "no pynvml" in first else REFRESH
        return warned("inventory", f"not known: {first}", KERNELS_LOG if "cannot be asked: NVML" in first else remedy)
    return passed("inventory", f"saved, and true for driver {saved.driver_version}")


def _owners(host: HostRoot, left_out: str) -> Remedy:
    """What takes a file of the driver's, and root's folders above it, from all but root; if another has one, who."""
    path = left_out.partition(_LEFT_OUT)[0]
    real = host.real(path)
    found = {place: host.stat(place) for place in (real, *[str(it) for it in PurePosixPath(real).parents])}
    owned = {place: status.st_mode for place, status in found.items() if status and status.st_uid in host.roots}
    # In a sticky folder, such as /tmp, each file is its owner's.
    wide = [place for place, mode in owned.items() if mode & WRITABLE_BY_OTHERS and not mode & S_ISVTX]
    if wide and len(owned) == len(found):
        return then(command("chmod", "go-w", *wide), REFRESH)
    look = command("namei", "--owners", "--modes", path, note="take it from others than root, then again")
    return then(REFRESH, look)


def folder(host: HostRoot) -> list[Finding]:
    status = host.stat(FOLDER)
    if status is None:
        return []
    if not is_folder(status):
        seen = f"{FOLDER} is not a folder: nothing can be saved"
        return [warned("inventory", seen, then(command("rm", FOLDER), REFRESH))]
    seen = f"others than root may write {FOLDER}: nothing in it is trusted"
    return [warned("inventory", seen, then(roots_alone(FOLDER), REFRESH))] if is_open_to_others(status) else []
