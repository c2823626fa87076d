# SPDX-License-Identifier: Apache-2.0
"""``cdi``: a CDI spec of this host, for engines that inject devices by themselves."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

import click

from oci_gpu_hook import cdi as spec_of
from oci_gpu_hook import config as settings_of
from oci_gpu_hook import decision, hook, plan, provision, request, selection
from oci_gpu_hook.cli import cditext, whole
from oci_gpu_hook.cli.options import config_file, host_root
from oci_gpu_hook.errors import DriverError, RequestError, UsageError, quoted
from oci_gpu_hook.host import inventory as saved_inventory
from oci_gpu_hook.host import stamp, survey
from oci_gpu_hook.host.root import HostRoot

if TYPE_CHECKING:
    from oci_gpu_hook.config import Config
    from oci_gpu_hook.host.inventory import DriverInventory
    from oci_gpu_hook.plan import Plan


def door_of(file: str) -> str:
    """Our hook's program: below the prefix that this file is installed below, as packaging/install.sh has it."""
    prefix, library, _ = file.rpartition("/lib/oci-gpu-hook/oci_gpu_hook/")
    return f"{prefix if library else '/usr'}/libexec/oci/hooks.d/oci-gpu-hook"


DOOR = door_of(__file__)


@click.group()
def cdi() -> None:
    """Write a Container Device Interface spec of this host's GPUs."""


@cdi.command()
@click.option(
    "--output", metavar="FILE", help="Write to FILE, whole or not at all.  [default: stdout]"
)
@click.option(
    "--format",
    "form",
    type=click.Choice([cditext.YAML, cditext.JSON]),
    help="[default: by FILE's name, else yaml]",
)
@click.option(
    "--capabilities",
    metavar="LIST",
    default="all",
    show_default=True,
    help="Driver capabilities of every container that uses the spec: CDI cannot ask each.",
)
@click.option(
    "--hook", "door", metavar="PATH", default=DOOR, show_default=True, help="Our hook's program."
)
@config_file
@host_root
def generate(
    output: str | None,
    form: str | None,
    capabilities: str,
    door: str,
    config: str | None,
    host_root: str,
) -> None:
    """Write a spec of kind nvidia.com/gpu: devices by index, UUID and MIG name, and 'all'.

    Engines look in /etc/cdi and /var/run/cdi.  What a spec cannot say our hook does, which the spec starts: it must be
    written anew after a driver's upgrade and a change of MIG devices ('inventory watch --cdi-spec' does).
    """
    whole.check_name("--output", output)
    settings = settings_of.read(*hook.settings_file(config), {})
    started = hook_of(door, capabilities, settings, config)
    document, nameless = of_host(HostRoot(host_root), settings, started)
    if nameless:
        click.echo(f"{spec_of.PROGRAM}: {nameless}", err=True)
    by_name = cditext.JSON if (output or "").endswith(".json") else cditext.YAML
    text = cditext.write(document, form or by_name)
    if output is None:
        click.echo(text, nl=False)
        return
    write(output, text)
    click.echo(f"wrote {output}: {len(document['devices'])} devices")


def hook_of(door: str, capabilities: str, settings: Config, config: str | None) -> spec_of.Hook:
    """How the spec starts our hook; UsageError for what cannot be started."""
    if not door.startswith("/") or not door.isprintable():
        raise UsageError(f"--hook is {quoted(door)}, which is no absolute path")
    # The hook must read the settings that the spec was made by.
    file = os.path.abspath(config) if config else ""
    return spec_of.Hook(door, _granted(capabilities, settings), file)


def _granted(capabilities: str, settings: Config) -> tuple[str, ...]:
    """The capabilities that a person asked for, of those that the administrator allows."""
    try:
        asked = request.granted(capabilities)
    except RequestError as err:
        raise UsageError(f"{err.message} in --capabilities", err.hint) from err
    if not asked:
        raise UsageError(
            "--capabilities names none", f"choose from {', '.join(request.CAPABILITIES)} or all"
        )
    words = tuple([word for word in asked if word in settings.allowed_capabilities])
    if not words:
        raise UsageError(
            f"none of the capabilities {', '.join(asked)} is allowed",
            f"the administrator decides, in {hook.SETTINGS}",
        )
    return words


def of_host(root: HostRoot, settings: Config, started: spec_of.Hook) -> tuple[dict[str, Any], str]:
    """The spec of a host as it is now, and a sentence on what has no name in it, if anything.

    What only NVML knows is taken from the saved inventory where that is true.
    """
    now = stamp.now(root, settings.driver_root)
    found = saved_inventory.read_saved(root, now) or survey.survey(root, settings.driver_root)
    words = started.capabilities
    asked = request.Request("cdi-spec", (selection.ALL,), words)
    found = saved_inventory.with_nodes(
        root, found, selection.families(asked), driver_root=settings.driver_root
    )
    if not found.library_folder:
        raise DriverError(
            "the driver's libraries are not there", "install all parts of the driver first"
        )
    devices = [(name, _plan(found, settings, words, by)) for name, by in spec_of.names(found)]
    common = _plan(found, settings, words, selection.NONE)
    return spec_of.document(common, tuple(devices), started), spec_of.nameless(found)


def read(path: str) -> object:
    """The spec of ours in a file; None where the file holds something else.  OSError where it cannot be read."""
    with open(path, encoding="utf-8") as file:
        try:
            return cditext.read(file.read())
        except ValueError:
            return None


def write(path: str, text: str) -> None:
    """The spec as a file, whole or not at all: engines read it at any moment.

    Another's file is never written over: two specs of one kind would make its devices ambiguous, or none of ours
    should be there.
    """
    _check_ours(path)
    # Engines read what ends in .yaml or .json, and so never what it is staged as.
    whole.write(path, text)


def _check_ours(path: str) -> None:
    """Nothing there, an empty file or a spec of ours; else UsageError."""
    try:
        status = os.lstat(path)
        there = read(path) if stat.S_ISREG(status.st_mode) and status.st_size else None
    except FileNotFoundError:
        return
    except OSError as err:
        raise whole.failure(path, err) from err
    if not stat.S_ISREG(status.st_mode):
        raise UsageError(f"{path} is there and is no plain file", "give another --output")
    if status.st_size and not spec_of.driver_of(there):
        raise UsageError(f"{path} is there and is no CDI spec of ours", "move it away first")


def _plan(found: DriverInventory, settings: Config, words: tuple[str, ...], selector: str) -> Plan:
    """The hook's own plan for one device, in a container that is laid out as the host is."""
    asked = request.Request("cdi-spec", (selector,), words)
    container = decision.container_like_host(found.library_folder)
    chosen = selection.select(asked, found)
    anything = settings._replace(device_cgroup="auto")
    given = provision.make(container, asked, chosen, found)
    return plan.make(container, asked, given, anything, None)
