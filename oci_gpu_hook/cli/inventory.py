# SPDX-License-Identifier: Apache-2.0
"""``info`` and ``inventory``: what this host has, and the saved copy of it that hooks load."""

from __future__ import annotations

import math
import os
import signal
import time
from errno import EDQUOT, ENOSPC, EROFS
from typing import TYPE_CHECKING, Any, NoReturn

import click

from oci_gpu_hook import config as settings_of
from oci_gpu_hook import hook, render
from oci_gpu_hook.cli import cdi, cditext, whole
from oci_gpu_hook.cli.options import config_file, host_root, output_format, show
from oci_gpu_hook.errors import ApplyError, DriverError
from oci_gpu_hook.host import inventory as saved_inventory
from oci_gpu_hook.host import nodes, nvml, stamp, survey, udev
from oci_gpu_hook.host import saved as kept
from oci_gpu_hook.host.root import HostRoot

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from oci_gpu_hook.host.inventory import DriverInventory
    from oci_gpu_hook.host.stamp import Stamp

_SETTLE_SECONDS = 2.0
_LONGEST_SECONDS = 86400


class _Seconds(click.FloatRange):
    """A number of them, which NaN is not: it lies in every range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"{value} is no number of seconds", param, ctx)
        return found


nvml_timeout = click.option(
    "--nvml-timeout",
    metavar="SECONDS",
    type=_Seconds(0, _LONGEST_SECONDS),
    default=30.0,
    show_default=True,
    help="How long NVML may take to answer; 0 does not ask it.",
)


@click.command()
@output_format
@config_file
@host_root
def info(form: str, config: str | None, host_root: str) -> None:
    """Show the driver, the GPUs and MIG devices, and the files by capability, as they are now.

    What only NVML knows is taken from the saved inventory where that is still true.
    """
    root, driver_root = HostRoot(host_root), _driver_root(config)
    now = stamp.now(root, driver_root)
    found = saved_inventory.read_saved(root, now) or survey.survey(root, driver_root)
    found = _with_all_nodes(root, driver_root, found)
    show(form, render.inventory_document(found), render.inventory_text(found))


@click.group()
def inventory() -> None:
    """Prepare, show or keep fresh the saved inventory that hooks load at a container's start."""


@inventory.command()
@nvml_timeout
@output_format
@config_file
@host_root
def refresh(nvml_timeout: float, form: str, config: str | None, host_root: str) -> None:
    """Survey the host, ask NVML what only it knows, and save the result for the hooks.

    A hook that finds no saved inventory, or one that is no longer true, surveys by itself: correctly, only slower, and
    without NVML.
    """
    root, driver_root = HostRoot(host_root), _driver_root(config)
    found, path = _refresh(root, driver_root, nvml_timeout)
    show(form, {"saved": path, **render.inventory_document(found)}, _told(found, path))


@inventory.command("show")
@output_format
@config_file
@host_root
def show_saved(form: str, config: str | None, host_root: str) -> None:
    """Show the saved inventory, if it is still true."""
    root, driver_root = HostRoot(host_root), _driver_root(config)
    saved = saved_inventory.read_saved(root, stamp.now(root, driver_root))
    if saved is None:
        raise DriverError(
            "there is no saved inventory, or it is no longer true",
            "run 'oci-gpu-hook inventory refresh'",
        )
    found = _with_all_nodes(root, driver_root, saved)
    show(form, render.inventory_document(found), render.inventory_text(found))


@inventory.command()
@click.option(
    "--interval",
    metavar="SECONDS",
    type=_Seconds(0.1, _LONGEST_SECONDS),
    default=30.0,
    show_default=True,
    help="How often to look where udev tells nothing: a change of MIG devices makes no event.",
)
@click.option(
    "--cdi-spec", metavar="FILE", help="Write a CDI spec to FILE at each refresh as well."
)
@nvml_timeout
@config_file
@host_root
def watch(
    interval: float, cdi_spec: str | None, nvml_timeout: float, config: str | None, host_root: str
) -> None:
    """Keep the saved inventory true: refresh it now, and whenever the driver or its devices change.

    Runs until it is told to end (SIGTERM, SIGINT).  A driver that is not there yet is waited for, and so is a disk that
    is full.
    """
    whole.check_name("--cdi-spec", cdi_spec)
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, _leave)
    root, driver_root = HostRoot(host_root), _driver_root(config)
    known: Stamp | None = None
    kept: DriverInventory | None = None
    spec_is_due = False
    trouble = ""
    for word in _moments(interval):
        now = stamp.now(root, driver_root)
        # A hook that finds no saved inventory saves its own, without what NVML says.
        is_true = kept and now == known and saved_inventory.read_saved(root, now) == kept
        if is_true and not spec_is_due:
            continue
        try:
            if not is_true:
                known, kept = now, None
                found, path = _refresh(root, driver_root, nvml_timeout)
                kept = found._replace(devices=(), links=(), ipc_paths=())
                click.echo(_told(found, path) + (f" ({word})" if word else ""))
                spec_is_due = cdi_spec is not None
            if cdi_spec:
                _write_spec(root, cdi_spec, config)
                spec_is_due = False
            trouble = ""
        except (DriverError, ApplyError) as err:
            # An upgrade that is half done, too: the kernel module is there and its libraries are not yet.
            waiting = _waiting(err)
            if waiting != trouble:
                click.echo(waiting)
            trouble = waiting


def _waiting(err: DriverError | ApplyError) -> str:
    if isinstance(err, DriverError):
        return f"waiting for the driver: {err.message}"
    return f"waiting to write: {err}"


def _write_spec(root: HostRoot, path: str, config: str | None) -> None:
    settings = settings_of.read(*hook.settings_file(config), {})
    started = cdi.hook_of(cdi.DOOR, "all", settings, config)
    document, nameless = cdi.of_host(root, settings, started)
    form = cditext.JSON if path.endswith(".json") else cditext.YAML
    cdi.write(path, cditext.write(document, form))
    click.echo(f"wrote {path}{f': {nameless}' if nameless else ''}")


def _moments(interval: float) -> Iterator[str]:
    """The first moment, and each at which to look again."""
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
    """Survey with what NVML says, and save."""
    now = stamp.now(root, driver_root)
    found = survey.survey(root, driver_root)
    facts, silence = None, "NVML was not asked: --nvml-timeout 0"
    if seconds:
        try:
            facts = nvml.ask(_nvml_library(root, found), seconds)
        except nvml.NvmlUnavailable as err:
            silence = str(err)
    if facts is not None:
        found = survey.survey(root, driver_root, facts)
    else:
        found = found._replace(unknown=(silence, *found.unknown))
    try:
        path = survey.save(root, now, found)
    except OSError as err:
        raise _unsaved(err) from err
    return _with_all_nodes(root, driver_root, found), path


def _unsaved(err: OSError) -> ApplyError:
    """Why the inventory cannot be saved, and what mends it."""
    folder = kept.FOLDER
    hint = f"no hook would trust what is there: move it away, or 'chown root: {folder} && chmod go-w {folder}'"
    if os.geteuid():
        hint = "run it as root"
    elif err.errno in (ENOSPC, EDQUOT, EROFS):
        hint = f"make room in {folder}, and have it writable"
    return ApplyError(f"cannot save the inventory in {folder}: {err.strerror}", hint)


def _nvml_library(root: HostRoot, found: DriverInventory) -> str:
    """The file of libnvidia-ml; "" where there is none."""
    for library in found.libraries:
        if library.bits == 64 and library.file.startswith("libnvidia-ml.so."):
            return root.path.rstrip("/") + library.path
    return ""


def _with_all_nodes(root: HostRoot, driver_root: str, found: DriverInventory) -> DriverInventory:
    return saved_inventory.with_nodes(root, found, nodes.FAMILIES, driver_root=driver_root)


def _driver_root(config: str | None) -> str:
    return settings_of.read(*hook.settings_file(config), {}).driver_root


def _told(found: DriverInventory, path: str) -> str:
    """What was saved, on one line, and below it what is not known."""
    parts = [f"driver {found.driver_version}", _counted(len(found.gpus), "GPU")]
    if found.mig_devices:
        parts.append(_counted(len(found.mig_devices), "MIG device"))
    lines = [f"saved {path}: {', '.join(parts)}"]
    return "\n".join([*lines, *[f"  not known: {sentence}" for sentence in found.unknown]])


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
