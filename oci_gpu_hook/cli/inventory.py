# SPDX-License-Identifier: Apache-2.0
"""``info`` and ``inventory``: what this host has, and the saved copy of it that hooks load."""

from __future__ import annotations

import os
import signal
import time
from errno import EDQUOT, ENOSPC, EROFS
from typing import TYPE_CHECKING, NoReturn

import click

from oci_gpu_hook.cli import cdi, features, onhost
from oci_gpu_hook.cli.group import Group
from oci_gpu_hook.cli.options import LONGEST_SECONDS, Seconds, config_file, host_root, nvml_timeout, output_format, show
from oci_gpu_hook.driver import inventory as saved_inventory
from oci_gpu_hook.driver import nodes, proc, survey
from oci_gpu_hook.errors import ApplyError, ConfigError, DriverError, HookError
from oci_gpu_hook.host import saved as saved_files
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.gpus import nvml, present, udev
from oci_gpu_hook.node.machine import whole
from oci_gpu_hook.node.setup import drivervolume
from oci_gpu_hook.request.settings import read_settings
from oci_gpu_hook.request.words import ALL
from oci_gpu_hook.vendors import platform
from oci_gpu_hook.vendors import vendorinventory as vendor_inventory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from oci_gpu_hook.cli.onhost import Found
    from oci_gpu_hook.driver.inventory import DriverInventory
    from oci_gpu_hook.driver.proc import Stamp
    from oci_gpu_hook.node.gpus.present import Present

_SETTLE_SECONDS = 2.0


@click.command()
@output_format
@config_file
@host_root
def info(form: str, config: str | None, host_root: str) -> None:
    """Show NVIDIA's driver, its GPUs, MIG devices and files, and what there is of other vendors, as it is now.

    What only NVML knows comes from the saved inventory, if that is still true.  Of a Jetson and of WSL 2, the devices
    and files that containers get there, and what proves the platform.  Of another vendor, the devices with the names
    that ask for them, what its file requires and the host has not, and what may be missing and is.
    """
    root, driver_root = HostRoot(host_root), _driver_root(config)

    def nvidia() -> DriverInventory:
        return _with_all_nodes(root, driver_root, survey.current(root, driver_root))

    found = onhost.look(root, present.look(root), nvidia)
    show(form, onhost.document(found), onhost.text(found))


@click.group(cls=Group)
def inventory() -> None:
    """Prepare, show or keep fresh the saved inventory that hooks load at a container's start."""


@inventory.command()
@nvml_timeout
@output_format
@config_file
@host_root
def refresh(nvml_timeout: float, form: str, config: str | None, host_root: str) -> None:
    """Survey the host, ask NVML what only it knows, and save the result for the hooks.

    A hook without a saved inventory that is still true surveys the host itself: the result is correct, but that takes
    longer, and NVML is not asked.  The same is done for each vendor's file; one that is wrong is told, and keeps none
    from being saved.  The driver's volume, if there is one, is brought up to date too.
    """
    root, driver_root = HostRoot(host_root, remember=True), _driver_root(config)
    path = ""

    def nvidia() -> DriverInventory:
        nonlocal path
        found, path = _refresh(root, driver_root, nvml_timeout)
        return found

    found = onhost.look(root, _refresh_vendors(root), nvidia)
    lines = [*([_summary(found.nvidia, path)] if found.nvidia else []), *_other_summaries(found)]
    text = "\n".join([*lines, *onhost.wrong_lines(found.wrong)])
    show(form, {"saved": path, **onhost.document(found)}, text)
    if found.nvidia:
        _refresh_volume(root, found.nvidia)
    elif found.error and present.expects_nvidia(root):
        raise found.error


@inventory.command("show")
@output_format
@config_file
@host_root
def show_saved(form: str, config: str | None, host_root: str) -> None:
    """Show what is saved, of NVIDIA's driver and of other vendors, as far as it is still true."""
    root, driver_root = HostRoot(host_root), _driver_root(config)

    def nvidia() -> DriverInventory:
        saved = saved_inventory.read_saved(root, proc.stamp(root, driver_root))
        if saved is None:
            raise DriverError(
                "there is no saved inventory, or it is no longer true", "run 'oci-gpu-hook inventory refresh'"
            )
        return _with_all_nodes(root, driver_root, saved)

    found = onhost.look(root, present.look(root, saved_only=True), nvidia)
    show(form, onhost.document(found), onhost.text(found))


@inventory.command()
@click.option(
    "--interval",
    metavar="SECONDS",
    type=Seconds(0.1, LONGEST_SECONDS),
    default=30.0,
    show_default=True,
    help="How often to look without an event of udev: a change of MIG devices makes none.",
)
@click.option("--cdi-spec", metavar="FILE", help="Write a CDI spec to FILE at each refresh as well.")
@nvml_timeout
@config_file
@host_root
def watch(interval: float, cdi_spec: str | None, nvml_timeout: float, config: str | None, host_root: str) -> None:
    """Keep the saved inventory true: refresh it now, and whenever a driver, its devices or a vendor's file change.

    Runs until SIGTERM or SIGINT.  If there is no driver yet, or the disk is full, it waits.
    """
    whole.check_name("--cdi-spec", cdi_spec)
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, _leave)
    root, driver_root = HostRoot(host_root, remember=True), _driver_root(config)
    last_stamp: Stamp | None = None
    saved: DriverInventory | None = None
    spec_is_due = False
    trouble = ""
    told: object = None
    others = _Others(root)
    for event in _moments(interval):
        try:
            others.renew(event)
            now = proc.stamp(root, driver_root)
            # A hook that finds no saved inventory saves its own, without what NVML says.
            is_true = saved and now == last_stamp and saved_inventory.read_saved(root, now) == saved
            is_alone = others.stand_alone()
            seen = features.others(root)
            if seen != told and (is_true or is_alone or trouble):
                # Else what follows writes them.
                _renew_features(root, config, nvml_timeout)
            told = seen
            if (is_true and not spec_is_due) or is_alone:
                continue
            if not is_true:
                last_stamp, saved = now, None
                found, path = _refresh(root, driver_root, nvml_timeout)
                _refresh_volume(root, found)
                saved = found._replace(devices=(), links=(), ipc_paths=())
                click.echo(_summary(found, path) + (f" ({event})" if event else ""))
                _renew_features(root, config, nvml_timeout)
                spec_is_due = cdi_spec is not None
            if cdi_spec:
                _write_spec(root, cdi_spec, config)
                spec_is_due = False
            trouble = ""
        except (DriverError, ApplyError, ConfigError) as err:
            # Also in the middle of an upgrade: the kernel module is there and its libraries are not yet.
            is_drivers = isinstance(err, DriverError)
            waiting = f"waiting for the driver: {err.message}" if is_drivers else f"waiting to write: {err}"
            if waiting != trouble:
                click.echo(waiting)
                _renew_features(root, config, nvml_timeout)
            trouble = waiting


class _Others:
    """What `watch` knows of other vendors, and of a Jetson or WSL 2."""

    def __init__(self, root: HostRoot) -> None:
        self._root = root
        self._is_first = True
        self._said: list[str] = []
        self._are_here = False

    def stand_alone(self) -> bool:
        """Whether there is other hardware, and nothing of NVIDIA's driver to wait for."""
        return self._are_here and not present.expects_nvidia(self._root)

    def renew(self, event: str) -> None:
        """Save anew what is no longer true, and say what there is now; ApplyError if it cannot be saved."""
        root = self._root
        is_old = self._is_first or not present.is_saved(root)
        if not is_old and platform.look(root) not in onhost.PLATFORMS:
            return
        others = _refresh_vendors(root) if is_old else present.look(root)
        lines = onhost.wrong_lines(others.wrong)
        try:
            found = onhost.look(root, others, _no_driver)
            self._are_here = bool(found.instead or found.here())
            lines = [*_other_summaries(found), *lines]
        except DriverError:
            self._are_here = False
        if lines != self._said:
            click.echo("\n".join(filter(None, lines)) + (f" ({event})" if event else ""))
        self._said, self._is_first = lines, False


def _no_driver() -> DriverInventory:
    """NVIDIA's driver, where only others are looked for."""
    raise DriverError("NVIDIA's driver is looked at apart")


def _write_spec(root: HostRoot, path: str, config: str | None) -> None:
    settings = read_settings(config, None)
    hook = cdi.hook_of(cdi.ENTRY, cdi.granted(ALL, settings), config, settings)
    document, nameless = cdi.of_host(root, settings, hook)
    cdi.write(path, document)
    click.echo(f"wrote {path}{f': {nameless}' if nameless else ''}")


def _renew_features(root: HostRoot, config: str | None, seconds: float) -> None:
    """Write or remove the feature file, where there is a setting for it."""
    try:
        said = features.renew(root, read_settings(config, None), seconds)
    except HookError as err:
        said = f"cannot write the feature file yet: {err}"
    if said:
        click.echo(said)


def _moments(interval: float) -> Iterator[str]:
    """Yield at once, and then whenever it is time to look again: the event of udev, or "" if there was none."""
    yield ""
    try:
        yield from udev.changes(_SETTLE_SECONDS, interval)
    except (udev.UdevUnavailable, ImportError, OSError) as err:
        click.echo(f"{err}; looking every {interval:g} seconds")
    while True:
        time.sleep(interval)
        yield ""


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)


def _refresh(root: HostRoot, driver_root: str, seconds: float) -> tuple[DriverInventory, str]:
    """Survey the host with what NVML says, and save the inventory; gives it and its path."""
    now = proc.stamp(root, driver_root)
    found = survey.survey(root, driver_root)
    facts, why_none = None, "NVML was not asked: --nvml-timeout 0"
    if seconds:
        try:
            facts = nvml.facts(nvml.library(root, found), seconds)
        except nvml.NvmlUnavailable as err:
            why_none = str(err)
    if facts is not None:
        found = survey.survey(root, driver_root, facts)
    else:
        found = found._replace(unknown=(why_none, *found.unknown))
    try:
        path = survey.save(root, now, found)
    except OSError as err:
        raise _unsaved(err) from err
    return _with_all_nodes(root, driver_root, found), path


def _refresh_vendors(root: HostRoot) -> Present:
    """What other vendors have here, saved anew."""
    try:
        return present.refresh(root)
    except OSError as err:
        raise _unsaved(err) from err


def _refresh_volume(root: HostRoot, found: DriverInventory) -> None:
    """Bring the driver's volume up to date, where there is one: containers that need it name no driver."""
    if drivervolume.is_ours(root) and drivervolume.make(root, found):
        click.echo(f"brought {drivervolume.PATH} up to date", err=True)


def _unsaved(err: OSError) -> ApplyError:
    """The error for an inventory that cannot be saved."""
    folder = saved_files.FOLDER
    hint = f"no hook would trust what is there: move it away, or 'chown root: {folder} && chmod go-w {folder}'"
    if os.geteuid():
        hint = "run it as root"
    elif err.errno in (ENOSPC, EDQUOT, EROFS):
        hint = f"make room in {folder}, and have it writable"
    return ApplyError(f"cannot save the inventory in {folder}: {err.strerror}", hint)


def _with_all_nodes(root: HostRoot, driver_root: str, found: DriverInventory) -> DriverInventory:
    return saved_inventory.with_nodes(root, found, nodes.FAMILIES, driver_root=driver_root)


def _driver_root(config: str | None) -> str:
    return read_settings(config, None).driver_root


def _summary(found: DriverInventory, path: str) -> str:
    """What was saved, on one line, and below it what is not known."""
    parts = [f"driver {found.driver_version}", _counted(len(found.gpus), "GPU")]
    if found.mig_devices:
        parts.append(_counted(len(found.mig_devices), "MIG device"))
    lines = [f"saved {path}: {', '.join(parts)}"]
    return "\n".join([*lines, *[f"  not known: {sentence}" for sentence in found.unknown]])


def _other_summaries(found: Found) -> list[str]:
    """A line for each vendor whose hardware is here, and for a Jetson or WSL 2."""
    prefix = f"{saved_files.FOLDER}/{vendor_inventory.PREFIX}"
    lines = [f"saved {prefix}{found.platform[0]}: {found.instead[0]['driver_version']}"] if found.instead else []
    return lines + [f"saved {prefix}{item.inventory.flag}: {onhost.summary(item)}" for item in found.here()]


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
