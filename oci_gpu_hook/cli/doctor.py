# SPDX-License-Identifier: Apache-2.0
"""``doctor``: every precondition on this host, or why one container's GPU does or does not work.

Reads and tells; each line that is no pass has the command that mends it, which nobody runs but the reader.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import click

from oci_gpu_hook import config as settings_of
from oci_gpu_hook import ldso
from oci_gpu_hook.cli import examine
from oci_gpu_hook.cli.options import config_file, host_root, output_format, show
from oci_gpu_hook.diagnosis import FAIL, WARN, Finding, driver, engines, is_failed, system
from oci_gpu_hook.errors import ConfigError, DriverError
from oci_gpu_hook.hook import SETTINGS
from oci_gpu_hook.host import (
    cdispecs,
    kernel,
    libselinux,
    nodes,
    proc,
    registrations,
    stamp,
    survey,
)
from oci_gpu_hook.host import engines as host_engines
from oci_gpu_hook.host import inventory as saved_inventory
from oci_gpu_hook.host import saved as kept
from oci_gpu_hook.host.root import HostRoot

if TYPE_CHECKING:
    from oci_gpu_hook.host.inventory import DriverInventory

_WRITABLE_BY_OTHERS = 0o022


@click.command()
@output_format
@click.option(
    "--container",
    "word",
    metavar="ID|PID",
    help="Examine a running container: by its id, the beginning of it, its name, or a process in it.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@config_file
@host_root
def doctor(form: str, as_json: bool, word: str | None, config: str | None, host_root: str) -> int:
    """Check every precondition on this host, in order of cause; or one running container.

    Each line is a pass, a warning or a failure, with what was seen and the one command that mends it.  Nothing is
    changed.  Exit code 1 where anything failed.
    """
    root = HostRoot(host_root)
    findings = of_host(root, config) if word is None else examine.container(root, word, config)
    show("json" if as_json else form, document(findings), as_text(findings))
    return int(is_failed(findings))


def of_host(root: HostRoot, config: str | None) -> list[Finding]:
    """Everything, the causes before what follows from them."""
    tool = "dnf" if host_engines.has_program(root, "dnf") else "apt"
    found = kernel.look(root)
    installed = host_engines.installed(root)
    folders = {host_engines.VENDORS_FOLDER, host_engines.ADMINISTRATORS_FOLDER}
    folders.update([folder for engine in installed for folder in engine.folders])
    hooks = tuple([item for at in sorted(folders) for item in registrations.of_folder(root, at)])
    door = next((item.program for item in hooks if item.kind == registrations.OURS), "")
    ours = registrations.installation(root, door or registrations.DOOR, hooks)
    driver_root, settings = _settings(root, config)
    findings = [
        *system.kernel(found, tool),
        *engines.installation(ours, tool),
        *(system.python(ours.interpreter, ours.python, tool) if ours.library else ()),
        *settings,
        *_driver(root, driver_root, found, tool),
        *system.cgroups(found, installed),
        *system.ebpf(found, os.geteuid() == 0),
        *_selinux(root),
    ]
    for engine in installed:
        findings += engines.seen_by(engine, hooks, registrations.REGISTRATION, tool)
    findings += [] if installed else engines.none_installed(tool)
    findings += engines.rivals(installed, hooks, host_engines.shims(root))
    return [*findings, *_rootless(root, found)]


def document(findings: list[Finding]) -> dict[str, object]:
    """The same as the text."""
    return {
        "failed": len([item for item in findings if item.level == FAIL]),
        "warned": len([item for item in findings if item.level == WARN]),
        "findings": [item._asdict() for item in findings],
    }


def as_text(findings: list[Finding]) -> str:
    """A line a check, and below it what mends it; the sum in the end."""
    width = max([len(item.check) for item in findings], default=0) + 2
    lines = []
    for item in findings:
        lines.append(f"{item.level:6}{item.check:{width}}{item.seen}")
        if item.remedy:
            lines.append(f"{'':6}{'':{width}}mend it: {item.remedy}")
    counted = [
        f"{len([f for f in findings if f.level == level])} {level}" for level in (FAIL, WARN)
    ]
    return "\n".join([*lines, "", f"{len(findings)} checks: {', '.join(counted)}"])


def _settings(root: HostRoot, config: str | None) -> tuple[str, list[Finding]]:
    """The driver root that is set, and what is to say of the settings."""
    path = config or f"{root.path.rstrip('/')}{SETTINGS}"
    folder = f"{path}.d"
    drop_ins = [f"{folder}/{name}" for name in _names(folder)]
    open_ones = [file for file in (path, folder, *drop_ins) if _is_open(file)]
    error, driver_root = None, "/"
    try:
        driver_root = settings_of.read(path, config is None, {}).driver_root
    except ConfigError as err:
        error = err
    shown = open_ones[0] if open_ones else path
    return driver_root, system.settings(error, shown, bool(open_ones), os.path.exists(path))


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
    return status.st_uid != 0 or bool(status.st_mode & _WRITABLE_BY_OTHERS)


def _driver(root: HostRoot, driver_root: str, found: kernel.Kernel, tool: str) -> list[Finding]:
    try:
        have = survey.survey(root, driver_root)
    except DriverError as err:
        sign = driver.Absence(
            err.message,
            root.stat(nodes.CONTROL) is not None,
            "nvidia" in found.modules,
            "nouveau" in found.modules,
            root.stat(driver_root) is not None,
        )
        return driver.absent(sign, tool)
    have = saved_inventory.with_nodes(root, have)
    uvm = "nvidia-uvm" in proc.character_majors(root)
    saved = saved_inventory.read_saved(root, stamp.now(root, driver_root))
    return [
        *driver.parts(have, tool),
        *driver.firmware(have, _runs_firmware(root, have), tool),
        *driver.loader_cache(_cached_names(root, driver_root)),
        *driver.gpus(have),
        *driver.nodes(have.devices, _numbers(root, have), uvm),
        *driver.inventory(saved, _state(root)),
        *driver.cdi_specs(cdispecs.specs(root), have.driver_version),
    ]


def _state(root: HostRoot) -> driver.State:
    folder = root.stat(kept.FOLDER)
    return driver.State(
        folder=kept.FOLDER,
        is_folder=folder is None or stat.S_ISDIR(folder.st_mode),
        is_open=folder is not None
        and (folder.st_uid != 0 or bool(folder.st_mode & _WRITABLE_BY_OTHERS)),
        is_saved=root.stat(saved_inventory.SAVED) is not None,
    )


def _numbers(root: HostRoot, have: DriverInventory) -> dict[str, tuple[int, int] | None]:
    """The numbers that the host's /dev has at each path."""
    found: dict[str, tuple[int, int] | None] = {}
    for node in have.devices:
        status = root.stat(node.path)
        device = status.st_rdev if status is not None else 0
        found[node.path] = (os.major(device), os.minor(device)) if device else None
    return found


def _runs_firmware(root: HostRoot, have: DriverInventory) -> bool:
    """Whether a GPU's own processor runs firmware of the driver's, which the kernel tells of each."""
    texts = [root.read(f"{proc.GPUS}/{gpu.proc}/information") or b"" for gpu in have.gpus]
    told = [proc.information(text).get("GPU Firmware", "N/A") for text in texts]
    return any([word != "N/A" for word in told])


def _cached_names(root: HostRoot, driver_root: str) -> frozenset[str] | None:
    data = root.read(f"{driver_root.rstrip('/')}{stamp.LD_SO_CACHE}")
    try:
        return frozenset([entry.soname.decode() for entry in ldso.parse(data or b"").entries])
    except (ldso.MalformedCache, UnicodeDecodeError):
        return None


def _selinux(root: HostRoot) -> list[Finding]:
    if not libselinux.is_there(root):
        return system.selinux(None, False)
    try:
        import selinux as library
    except ImportError:
        return system.selinux(None, True)
    return system.selinux(libselinux.status(library, root), True)


def _rootless(root: HostRoot, found: kernel.Kernel) -> list[Finding]:
    subids = all([root.read(f"/etc/{name}") for name in ("subuid", "subgid")])
    return system.rootless(found, subids, host_engines.has_program(root, "newuidmap"))
