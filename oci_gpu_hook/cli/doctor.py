# SPDX-License-Identifier: Apache-2.0
"""``doctor``: check every precondition on this host, or why one container's GPU does or does not work.

Changes nothing: each warning and failure names the command that fixes it, and the reader decides whether to run it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from oci_gpu_hook.cli import cdi, examine, podmanversion
from oci_gpu_hook.cli.options import config_file, host_root, json_format, output_format, show
from oci_gpu_hook.driver import inventory as saved_inventory
from oci_gpu_hook.driver import nodes, proc, survey
from oci_gpu_hook.errors import LONGEST_LIST, ConfigError, DriverError, plain
from oci_gpu_hook.host import saved as saved_files
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel.filetypes import is_folder, is_open_to_others
from oci_gpu_hook.node.diagnosis import FAIL, PASS, WARN, Finding, drivercheck, enginecheck, is_failed, systemcheck
from oci_gpu_hook.node.diagnosis import dockercheck as judged_docker
from oci_gpu_hook.node.diagnosis import podmancheck as judged_podman
from oci_gpu_hook.node.diagnosis import vendorcheck as judged_vendors
from oci_gpu_hook.node.engines import cdispecs, dockerd, registrations, states
from oci_gpu_hook.node.engines import installed as host_engines
from oci_gpu_hook.node.gpus import leased, present
from oci_gpu_hook.node.machine import kernelconfig, libselinux
from oci_gpu_hook.request import settingsfile
from oci_gpu_hook.request.settings import SETTINGS, files, read_settings
from oci_gpu_hook.vendors import folders, platform, tegra, vendorhost, wsl
from oci_gpu_hook.vendors import vendorinventory as vendor_inventory

if TYPE_CHECKING:
    from oci_gpu_hook.driver.inventory import DriverInventory
    from oci_gpu_hook.vendors.vendorhost import VendorState

# click leaves them out where the output is no terminal.
_STYLES: dict[str, dict[str, Any]] = {
    PASS: {"fg": "green"},
    WARN: {"fg": "yellow", "bold": True},
    FAIL: {"fg": "red", "bold": True},
}


@click.command()
@output_format
@click.option(
    "--container",
    "word",
    metavar="ID|NAME|PID",
    help="Examine a running container: by its id, the beginning of it, its name, its pod's, or a process in it.",
)
@json_format
@config_file
@host_root
def doctor(form: str, as_json: bool, word: str | None, config: str | None, host_root: str) -> int:
    """Check every precondition on this host, in order of cause; or one running container.

    Each line is a pass, a warning or a failure, with what was seen and the one command that fixes it.  Nothing is
    changed.  The exit code is 1 if anything failed.
    """
    root = HostRoot(host_root)
    findings = of_host(root, config) if word is None else examine.container(root, word, config)
    show("json" if as_json else form, document(findings), as_text(findings), painted)
    return int(is_failed(findings))


def of_host(root: HostRoot, config: str | None) -> list[Finding]:
    """The findings about the host, causes before what follows from them."""
    tool = "dnf" if host_engines.has_program(root, "dnf") else "apt"
    found = kernelconfig.look(root)
    installed = host_engines.installed(root)
    unread = host_engines.unread(root)
    unknown = {file.engine for file in unread}
    # Of the rest nobody knows where they look for hooks.
    known = tuple([engine for engine in installed if engine.name not in unknown])
    folders = {host_engines.VENDORS_FOLDER, host_engines.ADMINISTRATORS_FOLDER}
    folders.update([folder for engine in installed for folder in engine.folders])
    hooks = tuple([item for at in sorted(folders) for item in registrations.of_folder(root, at)])
    entry = next((item.program for item in hooks if item.kind == registrations.OURS), "")
    ours = registrations.installation(root, entry or registrations.ENTRY, hooks)
    driver_root, settings = _settings(root, config)
    others = present.look(root)
    here = tuple([item for item in others.vendors if present.hardware(root, item)])
    findings = [
        *systemcheck.kernel(found, tool),
        *enginecheck.installation(ours, tool),
        *(systemcheck.python(ours.interpreter, ours.python, tool) if ours.library else ()),
        *settings,
        *_sections(root, config, installed),
        *_driver(root, driver_root, found, tool, others=bool(here)),
        *judged_vendors.judge(others, tuple([_here(root, item) for item in here]), tool),
        *_vendors_specs(root),
        *_other_specs(root),
        *systemcheck.cgroups(found, known),
        *systemcheck.ebpf(found, os.geteuid() == 0),
        *_selinux(root, found.cgroups, tool),
    ]
    for engine in known:
        findings += enginecheck.seen_by(engine, hooks, registrations.REGISTRATION, tool)
        if engine.name == "podman":
            has_crun = host_engines.has_program(root, "crun")
            findings += judged_podman.images(engine, podmanversion.read(root), has_crun=has_crun)
    findings += enginecheck.unread(unread, tool)
    docker = dockerd.look(root)
    containerd = host_engines.containerd(root)
    if containerd is not None and "containerd" not in unknown:
        is_alone = not installed and docker is None
        findings += enginecheck.containerd(containerd, tool, is_alone=is_alone)
    if not installed and docker is None and containerd is None:
        findings += enginecheck.none_installed(tool)
    by_link = docker is not None and judged_docker.is_ours(docker, root.real(ours.entry))
    findings += judged_docker.docker(docker, root.real(ours.entry), tool) if docker else []
    findings += enginecheck.other_hooks(installed, hooks, host_engines.shims(root), by_link)
    findings += enginecheck.callers(*host_engines.callers(root), root.real(ours.entry), tool)
    return [*findings, *_rootless(root, found, tool)]


def document(findings: list[Finding]) -> dict[str, object]:
    """The findings for JSON."""
    return {
        "failed": len([item for item in findings if item.level == FAIL]),
        "warned": len([item for item in findings if item.level == WARN]),
        "findings": [item._asdict() for item in findings],
    }


def as_text(findings: list[Finding]) -> str:
    """One line for each finding, below it the command that fixes it; the counts at the end."""
    counted = [f"{len([f for f in findings if f.level == level])} {level}" for level in (FAIL, WARN)]
    return "\n".join([*lines(findings), "", f"{len(findings)} checks: {', '.join(counted)}"])


def lines(findings: list[Finding]) -> list[str]:
    """One line for each finding, below it the command that fixes it.

    What was seen may be a text of a container's or a user's: none of it becomes a line of its own.
    """
    width = max([len(item.check) for item in findings], default=0) + 2
    found = []
    for item in findings:
        found.append(f"{item.level:6}{item.check:{width}}{item.seen}")
        if item.remedy:
            found.append(f"{'':6}{'':{width}}fix: {item.remedy}")
    return [plain(line, LONGEST_LIST) for line in found]


def painted(line: str) -> str:
    """A line of the text, with its first word in colour if that is a finding's level."""
    level, gap, rest = line.partition("  ")
    return f"{click.style(level, **_STYLES[level])}{gap}{rest}" if level in _STYLES else line


def _settings(root: HostRoot, config: str | None) -> tuple[str, list[Finding]]:
    """The driver root from the settings, and the findings about the settings."""
    path = config or f"{root.path.rstrip('/')}{SETTINGS}"
    folder = f"{path}.d"
    drop_ins = [f"{folder}/{name}" for name in _names(folder)]
    open_ones = [file for file in (path, folder, *drop_ins) if _is_open(file)]
    error, driver_root = None, "/"
    try:
        driver_root = read_settings(config, None, root.path.rstrip("/")).driver_root
    except ConfigError as err:
        error = err
    shown = open_ones[0] if open_ones else path
    return driver_root, systemcheck.settings(error, shown, bool(open_ones), os.path.exists(path))


def _sections(root: HostRoot, config: str | None, installed: tuple[host_engines.Engine, ...]) -> list[Finding]:
    """Whether the engines say of which sections of the settings a container is; nothing if these cannot be read."""
    try:
        lines = settingsfile.read(files(config, root.path.rstrip("/")))
    except ConfigError:
        return []
    docker = ["Docker"] if host_engines.has_program(root, "dockerd") else []
    names = [*[engine.name for engine in installed], *docker]
    return systemcheck.sections({line.scope for line in lines}, names)


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _is_open(path: str) -> bool:
    try:
        status = os.stat(path)
    except OSError:
        return False
    return is_open_to_others(status)


def of_platform(root: HostRoot, kind: str, proof: str) -> list[Finding]:
    """The findings about a Jetson's or WSL's driver, which is no kernel module with GPUs below /proc."""
    error = ""
    left_out: tuple[str, ...] = ()
    try:
        if kind == platform.TEGRA:
            _, left_out = tegra.vendor(root, everything=True)
        else:
            wsl.vendor(root)
    except DriverError as err:
        error = err.message
    return drivercheck.platform(kind, platform.NAMES[kind], proof, error, left_out)


def _here(root: HostRoot, found: VendorState) -> judged_vendors.Here:
    """What is to be judged of a vendor whose hardware is here."""
    what = found.inventory
    kind = boolean = ""
    if libselinux.is_there(root):
        is_on = libselinux.boolean(root, what.selinux_boolean) if what.selinux_boolean else True
        boolean = "" if is_on else judged_vendors.MISSING if is_on is None else judged_vendors.OFF
        kind = "" if _knows_type(what.selinux_type) else judged_vendors.MISSING
    return judged_vendors.Here(
        found,
        root.stat(f"{saved_files.FOLDER}/{vendor_inventory.PREFIX}{what.flag}") is not None,
        vendor_inventory.read_saved(root, what.flag, what.file) is not None,
        tuple([name for name in what.modules if not vendorhost.is_loaded(root, name)]),
        kind,
        boolean,
    )


def _knows_type(name: str) -> bool:
    """Whether SELinux's policy knows a type, also where nothing can be asked."""
    library = libselinux.imported()
    return library is None or not name or libselinux.knows_type(library, name)


def _driver(root: HostRoot, driver_root: str, found: kernelconfig.Kernel, tool: str, *, others: bool) -> list[Finding]:
    """The findings about NVIDIA's driver; others: whether another vendor's hardware is here."""
    kind, proof = platform.prove(root)
    if kind in (platform.TEGRA, platform.WSL):
        return of_platform(root, kind, proof)
    try:
        inventory = survey.survey(root, driver_root)
    except DriverError as err:
        absence = absence_of(root, driver_root, found, err)
        is_expected = absence.has_module or absence.nouveau or present.expects_nvidia(root)
        if others and not is_expected:
            seen = "no GPU of NVIDIA's: other vendors' hardware is here"
            return [Finding("driver", PASS, seen), *drivercheck.folder(_state(root))]
        return drivercheck.absent(absence, tool)
    saved = saved_inventory.read_saved(root, proc.stamp(root, driver_root))
    # By NVML's names where it was asked, and nothing has made a doubt of its answer since.
    mig_devices = (saved or inventory).mig_devices
    return [
        *of_driver(root, driver_root, inventory, tool),
        *(_rdma(root, found) if inventory.gpus else ()),
        *drivercheck.inventory(saved, _state(root)),
        *drivercheck.cdi_specs(cdispecs.specs(root), inventory.driver_version, mig_devices),
    ]


def _rdma(root: HostRoot, found: kernelconfig.Kernel) -> list[Finding]:
    return drivercheck.rdma(present.rdma_adapters(root), found.modules, present.is_open_module(root), found.release)


def absence_of(root: HostRoot, driver_root: str, found: kernelconfig.Kernel, err: DriverError) -> drivercheck.Absence:
    """What is there where a survey says that there is no driver."""
    return drivercheck.Absence(
        err.message,
        root.stat(nodes.CONTROL) is not None,
        "nvidia" in found.modules,
        "nouveau" in found.modules,
        root.stat(driver_root) is not None,
    )


def of_driver(root: HostRoot, driver_root: str, found: DriverInventory, tool: str) -> list[Finding]:
    """The findings about the parts of NVIDIA's driver, its GPUs and nodes; found: without nodes."""
    found = saved_inventory.with_nodes(root, found)
    uvm = "nvidia-uvm" in proc.character_majors(root)
    return [
        *drivercheck.parts(found, tool),
        *drivercheck.firmware(found, _runs_firmware(root, found), tool),
        *drivercheck.loader_cache(examine.cached_names(root.read(f"{driver_root.rstrip('/')}{proc.LD_SO_CACHE}"))),
        *drivercheck.gpus(found, leased.unhealthy_gpus(root, found)),
        *drivercheck.nodes(found.devices, _numbers(root, found), uvm),
    ]


def _vendors_specs(root: HostRoot) -> list[Finding]:
    """The findings about our CDI specs of other vendors' devices."""
    specs = cdispecs.of_vendors(root)
    flags = {vendor.flag for vendor in folders.known(root)} if specs else set()
    return [
        drivercheck.vendors_spec(
            spec, cdi.stale(root, spec.path, spec.flag) if spec.flag in flags else "", is_known=spec.flag in flags
        )
        for spec in specs
    ]


def _other_specs(root: HostRoot) -> list[Finding]:
    """The findings about our CDI specs of management, and of what is beside GPUs."""
    version = survey.driver_version(root) or "none"
    findings = [drivercheck.management_spec(spec, version) for spec in cdispecs.of_management(root)]
    for path, family in cdispecs.beside_gpus(root):
        fault = cdi.stale_beside_gpus(root, path, family) if family in cdi.FAMILIES else "its kind is unknown"
        findings.append(drivercheck.spec_beside_gpus(path, family, fault))
    return findings


def _state(root: HostRoot) -> drivercheck.State:
    folder = root.stat(saved_files.FOLDER)
    return drivercheck.State(
        folder=saved_files.FOLDER,
        is_folder=folder is None or is_folder(folder),
        is_open=folder is not None and is_open_to_others(folder),
        is_saved=root.stat(saved_inventory.SAVED) is not None,
    )


def _numbers(root: HostRoot, inventory: DriverInventory) -> dict[str, tuple[int, int] | None]:
    """The device numbers of each node's path in the host's /dev; None if there is no device."""
    found: dict[str, tuple[int, int] | None] = {}
    for node in inventory.devices:
        status = root.stat(node.path)
        device = status.st_rdev if status is not None else 0
        found[node.path] = (os.major(device), os.minor(device)) if device else None
    return found


def _runs_firmware(root: HostRoot, inventory: DriverInventory) -> bool:
    """Whether the system processor of any GPU runs the driver's firmware, as the kernel module says."""
    fields = [proc.information(root, f"{proc.GPUS}/{gpu.proc}/information") for gpu in inventory.gpus]
    return any([gpu.get("GPU Firmware", "N/A") != "N/A" for gpu in fields])


def _selinux(root: HostRoot, cgroups: str, tool: str) -> list[Finding]:
    is_there = libselinux.is_there(root)
    library = libselinux.imported() if is_there else None
    status = libselinux.status(library, root) if library else None
    return systemcheck.selinux(status, is_there, cgroups, tool)


def _rootless(root: HostRoot, found: kernelconfig.Kernel, tool: str) -> list[Finding]:
    subids = all([root.read(f"/etc/{name}") for name in ("subuid", "subgid")])
    newuidmap = host_engines.has_program(root, "newuidmap")
    return systemcheck.rootless(found, subids, newuidmap, states.is_used(root), tool)
