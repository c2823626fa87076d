# SPDX-License-Identifier: Apache-2.0
"""``inventory``: the saved copy of what this host has, which hooks load; and the device nodes that a boot lacks."""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from errno import EDQUOT, ENOSPC, EROFS

import click

from oci_gpu_hook.cli import accelerators, cdi, features, limit
from oci_gpu_hook.cli.options import config_and_host, nvml_timeout, output_format, seconds, show
from oci_gpu_hook.driver import proc, survey
from oci_gpu_hook.driver.inventory import SAVED, DriverInventory
from oci_gpu_hook.driver.nodes import DeviceNode
from oci_gpu_hook.errors import ApplyError, DriverError, HookError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.host.statefile import FOLDER
from oci_gpu_hook.kernel.descriptors import closing
from oci_gpu_hook.node.diagnosis import counted
from oci_gpu_hook.node.engines.installed import START
from oci_gpu_hook.node.gpus import hardware, missingnodes, nvml
from oci_gpu_hook.node.machine import childprocess, libselinux, outputfile
from oci_gpu_hook.request.settings import read_settings
from oci_gpu_hook.vendors import platform
from oci_gpu_hook.vendors.vendorinventory import PREFIX

_SETTLE_SECONDS = 2.0
# To load a module, and to label a node.
_MODULE_SECONDS = 60


@click.group()
def inventory() -> None:
    """Prepare the saved inventory that hooks load at a container's start, or keep it fresh."""


@inventory.command()
@click.option("--nodes", is_flag=True, help="Make the device nodes that a fresh boot lacks, and save nothing.")
@nvml_timeout
@output_format
@config_and_host
def refresh(nodes: bool, nvml_timeout: float, is_json: bool, config: str | None, host: HostRoot) -> None:
    """Survey the host, ask NVML what only it knows, and save the result for the hooks.

    A hook without a saved inventory that is still true surveys the host itself: the result is correct, but that takes
    longer, and NVML is not asked.  What each vendor's file finds is saved too; a wrong one is named, and the others are
    saved all the same.

    The nodes of --nodes are those of unified memory, mode setting and MIG capabilities; nvidia-uvm and nvidia-modeset
    are loaded first.  Root makes them, from what the driver says in /proc.  Existing nodes stay as they are, but a node
    is replaced if the driver has another number for it since it was loaded again.  With --host-root no program is
    started and no module is loaded.
    """
    if nodes:
        show(is_json, *_make_nodes(host))
        return
    host.remember = True
    driver_root = read_settings(config, None, host.path).driver_root
    with _saving():
        others = hardware.refresh(host)
    found = accelerators.find_accelerators(host, driver_root, others, lambda: _refresh(host, driver_root, nvml_timeout))
    lines = [*(_summary(host, found.nvidia) if found.nvidia else []), *_other_summaries(found)]
    document = {"saved": host.path.rstrip("/") + SAVED if found.nvidia else "", **accelerators.document(found)}
    show(is_json, document, [*lines, *accelerators.wrong_lines(found.wrong)])
    if found.error and hardware.expects_nvidia(host):
        raise found.error


@inventory.command()
@seconds("--interval", "How often to look without an event of udev: a change of MIG devices makes none.", 30.0)
@click.option("--cdi-spec", metavar="FILE", help="Write a CDI spec to FILE at each refresh as well.")
@nvml_timeout
@config_and_host
def watch(interval: float, cdi_spec: str | None, nvml_timeout: float, config: str | None, host: HostRoot) -> None:
    """Keep the saved inventory true: refresh it now, and whenever a driver, its devices or a vendor's file change.

    Runs until SIGTERM or SIGINT.  If there is no driver yet, or the disk is full, it waits.
    """
    outputfile.check_name("--cdi-spec", cdi_spec)
    limit.leave_at((signal.SIGTERM, signal.SIGINT), lambda _: 0)
    host.remember = True
    watching = _Watch(host, config, read_settings(config, None, host.path).driver_root, nvml_timeout, cdi_spec)
    for _ in _moments(interval):
        limit.allow(2 * nvml_timeout)
        watching.look()
        limit.allow(interval)


@dataclass
class _Watch:
    host: HostRoot
    config: str | None
    driver_root: str
    seconds: float
    cdi_spec: str | None
    saved: DriverInventory | None = None
    is_spec_due = are_features_due = are_others_here = False
    trouble = ""
    others_said: list[str] | None = None
    beside: object = None
    instead: object = None

    def look(self) -> None:
        before, self.trouble = self.trouble, ""
        try:
            self._renew_others()
            # Else there is other hardware, and nothing of NVIDIA's driver to wait for.
            if not self.are_others_here or hardware.expects_nvidia(self.host):
                self._renew_nvidia()
            self._renew_spec()
        except HookError as err:
            # Also in the middle of an upgrade, before its libraries are there; and what lies at the spec's path and is
            # not ours: who can write to that folder must not end the service.
            is_drivers = isinstance(err, DriverError)
            self.trouble = f"waiting for the driver: {err.message}" if is_drivers else f"waiting to write: {err}"
        if self.trouble not in ("", before):
            click.echo(self.trouble)
            self.are_features_due = True
        beside = features.others(self.host)
        if self.are_features_due or beside != self.beside:
            self.beside, self.are_features_due = beside, False
            try:
                said = features.renew(self.host, read_settings(self.config, None, self.host.path))
            except HookError as err:
                said = f"cannot write the feature file yet: {err}"
            if said:
                click.echo(said)

    def _renew_nvidia(self) -> None:
        # A hook may have saved its own, without what NVML says.
        if not self.saved or survey.read_true(self.host, self.driver_root) != self.saved:
            self.saved = None
            self.saved = _refresh(self.host, self.driver_root, self.seconds)
            click.echo("\n".join(_summary(self.host, self.saved)))
            self.is_spec_due = self.are_features_due = True

    def _renew_spec(self) -> None:
        if self.cdi_spec and self.is_spec_due:
            # Here "-" is a file's name, too.
            path = os.path.abspath(self.cdi_spec)
            asked = {"flag": None, "kind": None, "capabilities": None, "entry": START, "output": path}
            click.get_current_context().invoke(cdi.generate, config=self.config, host=self.host, **asked)
            self.is_spec_due = False

    def _renew_others(self) -> None:
        host = self.host
        is_old = self.others_said is None or not hardware.is_saved(host)
        if not is_old and platform.platform_of(host) not in accelerators.PLATFORMS:
            return
        with _saving():
            others = hardware.refresh(host) if is_old else hardware.find_vendors(host)
        found = accelerators.find_accelerators(host, self.driver_root, others, None)
        self.are_others_here = bool(found.instead or found.here())
        # A Jetson's GPU, or that of WSL 2.
        self.is_spec_due |= bool(found.instead and found.instead != self.instead)
        self.instead = found.instead
        lines = [*_other_summaries(found), *accelerators.wrong_lines(found.wrong)]
        if lines != (self.others_said or []):
            click.echo("\n".join(filter(None, lines)))
        self.others_said = lines


def _moments(interval: float) -> Iterator[None]:
    """Yields at once, and then at each event of udev, or if there was none for the interval."""
    yield
    try:
        yield from hardware.udev_events(_SETTLE_SECONDS, interval)
    except (ImportError, OSError) as err:
        click.echo(f"udev cannot be asked: {err}; looking every {interval:g} seconds")
    while True:
        time.sleep(interval)
        yield


def _refresh(host: HostRoot, driver_root: str, seconds: float) -> DriverInventory:
    now = proc.stamp(host, driver_root)
    found = survey.survey(host, driver_root)
    try:
        if not seconds:
            raise nvml.NvmlUnavailable("NVML was not asked: --nvml-timeout 0")
        found = nvml.with_facts(found, nvml.facts(host, found, seconds))
    except nvml.NvmlUnavailable as err:
        found = found._replace(unknown=(str(err), *found.unknown))
    with _saving():
        survey.save(host, now, found)
    return found


@contextmanager
def _saving() -> Iterator[None]:
    try:
        yield
    except OSError as err:
        hint = f"no hook would trust what is there: move it away, or 'chown root: {FOLDER} && chmod go-w {FOLDER}'"
        hint = f"make room in {FOLDER}, and have it writable" if err.errno in (ENOSPC, EDQUOT, EROFS) else hint
        hint = "run it as root" if os.geteuid() else hint
        raise ApplyError(f"cannot save the inventory in {FOLDER}: {err.strerror}", hint) from err


def _summary(host: HostRoot, found: DriverInventory) -> list[str]:
    there = counted((len(found.gpus), "GPU", "GPUs"), (len(found.mig_devices), "MIG device", "MIG devices"))
    path = host.path.rstrip("/") + SAVED
    lines = [f"  not listed by NVML, and given to no container: {address}" for address in found.unlisted]
    lines += [f"  not known: {sentence}" for sentence in found.unknown]
    return [f"saved {path}: driver {found.driver_version}, {there}", *lines]


def _other_summaries(found: accelerators.Accelerators) -> list[str]:
    lines = [f"{found.platform[0]}: {found.instead[0]['driver_version']}"] if found.instead else []
    lines += [f"{item.inventory.flag}: {accelerators.summary(item)}" for item in found.here()]
    return [f"saved {FOLDER}/{PREFIX}{line}" for line in lines]


def _make_nodes(host: HostRoot) -> tuple[dict[str, object], list[str]]:
    """As nvidia-modprobe makes them; not one that has the right numbers: its mode is the administrator's choice."""
    missing = missingnodes.missing_nodes(host)
    for name in missingnodes.unloaded(host) if host.path == "/" else ():
        _start("modprobe", "-q", name)
        missing = missingnodes.missing_nodes(host)
    for node in missing:
        _make_node(host, node)
    made, unloaded = [node.path for node in missing], missingnodes.unloaded(host)
    if made and host.path == "/" and libselinux.is_there(host):
        # A node that a program makes gets the label device_t: udev labels only those that the kernel makes.
        _start("restorecon", *made)
    lines = [f"made {', '.join(made)}" if made else "no node is lacking"]
    lines += [f"not loaded: {', '.join(unloaded)}"] if unloaded else []
    return {"made": made, "unloaded": unloaded}, lines


def _start(*words: str) -> None:
    """A failure is only told: what the command was to make is looked for in any case."""
    limit.allow(_MODULE_SECONDS)
    try:
        done = childprocess.program([*words], _MODULE_SECONDS)
        why = (done.stderr or done.stdout).strip().rpartition("\n")[2] if done.returncode else ""
    except FileNotFoundError:
        return
    except OSError as err:
        why = str(err)
    if why:
        click.echo(f"{words[0]} failed: {why}", err=True)


def _make_node(host: HostRoot, node: DeviceNode) -> None:
    """Its mode is that of `node` whatever the umask.  If another program makes it first, that node stays."""
    folder, _, name = node.path.rpartition("/")
    parent, _, folders_name = folder.rpartition("/")
    flags = os.O_RDONLY | os.O_DIRECTORY
    try:
        if parent and host.stat(folder) is None:
            with suppress(FileExistsError), closing(host.open(parent, flags)) as fd:
                os.mkdir(folders_name, 0o755, dir_fd=fd)
                os.chmod(folders_name, 0o755, dir_fd=fd)
        with suppress(FileExistsError), closing(host.open(folder, flags)) as fd:
            if node.present:
                os.unlink(name, dir_fd=fd)
            # It has no permissions until it has its owner, so no user opens it before.
            os.mknod(name, stat.S_IFCHR, os.makedev(node.major, node.minor), dir_fd=fd)
            os.chown(name, node.uid, node.gid, dir_fd=fd, follow_symlinks=False)
            os.chmod(name, node.mode, dir_fd=fd)
    except OSError as err:
        raise ApplyError(f"cannot make {node.path}: {err.strerror}", "run it as root") from err
