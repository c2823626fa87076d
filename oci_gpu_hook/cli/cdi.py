# SPDX-License-Identifier: Apache-2.0
"""``cdi``: a CDI spec of this host, for engines that inject devices by themselves."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from oci_gpu_hook.cli import accelerators, cditext
from oci_gpu_hook.cli.group import Group
from oci_gpu_hook.cli.options import config_file, host_root
from oci_gpu_hook.container import layout
from oci_gpu_hook.errors import ConfigError, DriverError, HookError, UsageError, quoted
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel.filetypes import is_regular
from oci_gpu_hook.node.machine import whole
from oci_gpu_hook.node.setup import cdispec as spec_of
from oci_gpu_hook.planning import carriedout, provision, selection
from oci_gpu_hook.request.parse import Request
from oci_gpu_hook.request.settings import Settings, read_settings
from oci_gpu_hook.request.words import ADMINISTRATOR, ALL, CAPABILITIES, NONE, items
from oci_gpu_hook.vendors import current
from oci_gpu_hook.vendors import vendorhost as on_host

if TYPE_CHECKING:
    from oci_gpu_hook.driver.inventory import DriverInventory
    from oci_gpu_hook.planning.plan import Provision


_CHOICE = f"choose from {', '.join(CAPABILITIES)} or all"
_OWN = "a vendor's file says in driver_feature what containers get"


def entry_of(file: str) -> str:
    """The path of the entry script that belongs to this file, by the prefix of the installation."""
    prefix, library, _ = file.rpartition("/lib/oci-gpu-hook/oci_gpu_hook/")
    return f"{prefix if library else '/usr'}/libexec/oci/hooks.d/oci-gpu-hook"


ENTRY = entry_of(__file__)


@click.group(cls=Group)
def cdi() -> None:
    """Write a Container Device Interface spec of this host's devices."""


@cdi.command()
@click.option(
    "--vendor", "flag", metavar="FLAG", help="The devices of this vendor's file, such as OCI_AMD.  [default: NVIDIA's]"
)
@click.option("--output", metavar="FILE", help="Write to FILE, whole or not at all.  [default: stdout]")
@click.option(
    "--format", "form", type=click.Choice([cditext.YAML, cditext.JSON]), help="[default: by FILE's name, else yaml]"
)
@click.option(
    "--capabilities",
    metavar="LIST",
    help="NVIDIA's driver capabilities of every container that uses the spec: with CDI, none can ask for its own."
    "  [default: all]",
)
@click.option("--hook", "entry", metavar="PATH", default=ENTRY, show_default=True, help="The hook's program.")
@config_file
@host_root
def generate(
    flag: str | None,
    output: str | None,
    form: str | None,
    capabilities: str | None,
    entry: str,
    config: str | None,
    host_root: str,
) -> None:
    """Write a spec of kind nvidia.com/gpu: devices by index, UUID and MIG name, and 'all'.

    With --vendor it is of the kind that the vendor's file names: devices by index, PCI address, the names of their
    nodes and further names, and 'all'.

    Engines look for specs in /etc/cdi and /var/run/cdi.  The spec starts the hook, which does what a spec cannot
    express.  It must be written again after an upgrade of the driver and after a change of MIG devices: 'inventory
    watch' does that with --cdi-spec for NVIDIA's.
    """
    whole.check_name("--output", output)
    settings = read_settings(config, None)
    root = HostRoot(host_root)
    if flag is None:
        hook = hook_of(entry, granted(ALL if capabilities is None else capabilities, settings), config)
        document, nameless = of_host(root, settings, hook)
        if nameless:
            click.echo(f"{spec_of.PROGRAM}: {nameless}", err=True)
    elif capabilities is not None:
        raise UsageError("--capabilities is of NVIDIA's driver, which --vendor is not for", _OWN)
    else:
        document = of_vendor(root, settings, hook_of(entry, (), config, flag))
    text = cditext.write(document, form or cditext.form_of(output or ""))
    if output is None:
        click.echo(text, nl=False)
        return
    write(output, text, flag or "")
    click.echo(f"wrote {output}: {len(document['devices'])} devices")


def hook_of(entry: str, capabilities: tuple[str, ...], config: str | None, flag: str = "") -> spec_of.Hook:
    """How a spec starts the hook; UsageError for a path that no spec can have."""
    if not entry.startswith("/") or not entry.isprintable():
        raise UsageError(f"--hook is {quoted(entry)}, which is no absolute path")
    # The hook must read the same settings as this command.
    file = os.path.abspath(config) if config else ""
    return spec_of.Hook(entry, capabilities, file, flag)


def granted(capabilities: str, settings: Settings) -> tuple[str, ...]:
    """Those of the named capabilities that the administrator allows; UsageError if there is none."""
    words = items(capabilities)
    for word in words:
        if word not in CAPABILITIES and word != ALL:
            raise UsageError(f"unknown capability {quoted(word)} in --capabilities", _CHOICE)
    named = [name for name in CAPABILITIES if name in words or ALL in words]
    if not named:
        raise UsageError("--capabilities names none", _CHOICE)
    granted = tuple([name for name in named if name in settings.allowed_capabilities])
    if not granted:
        raise UsageError(f"none of the capabilities {', '.join(named)} is allowed", ADMINISTRATOR)
    return granted


def of_host(root: HostRoot, settings: Settings, hook: spec_of.Hook) -> tuple[dict[str, Any], str]:
    """The spec of a host as it is now, and a sentence on the devices without a name, "" for none."""
    capabilities = hook.capabilities
    families = selection.families(Request("cdi-spec", (ALL,), capabilities))
    found = accelerators.of_server(root, settings.driver_root, families)
    if not found.library_folder:
        raise DriverError("the driver's libraries are not there", "install all parts of the driver first")
    devices = [(name, _provision(found, capabilities, selector)) for name, selector in spec_of.names(found)]
    common = _provision(found, capabilities, NONE)
    return spec_of.document(common, tuple(devices), hook), spec_of.nameless(found)


def of_vendor(root: HostRoot, settings: Settings, hook: spec_of.Hook) -> dict[str, Any]:
    """The spec of another vendor's devices on a host as it is now."""
    flag = hook.vendor
    known = current.known(root)
    found = next((vendor for vendor in known if vendor.flag == flag), None)
    if found is None:
        flags = [vendor.flag for vendor in known if vendor.flag]
        hint = f"choose from {', '.join(flags)}" if flags else "there is no vendor's file"
        if len(flags) < len(known):
            hint += "; 'oci-gpu-hook vendors list' shows the files that are wrong"
        raise UsageError(f"no vendor's file of this host has the flag {quoted(flag)}", hint)
    if found.fault:
        raise ConfigError(found.fault, ADMINISTRATOR)
    if not found.kind:
        raise UsageError(f"{found.file} names no kind of CDI devices", "add kind to it, such as vendor.com/gpu")
    if ALL not in settings.allowed_vendors and flag not in settings.allowed_vendors:
        raise UsageError(f"{flag} is not allowed", ADMINISTRATOR)
    inventory = current.vendor_inventory(root, flag, found.file)
    folder, _ = layout.library_folder(root.fd)
    like_host = layout.like_host(folder)
    return spec_of.of_vendor(on_host.look(root, inventory), like_host, hook)


def stale(root: HostRoot, path: str, flag: str) -> str:
    """Why a spec of ours for another vendor's devices is out of date, in a sentence; "" if it is not."""
    try:
        now = of_vendor(root, Settings(), spec_of.Hook("", (), "", flag))
        found = cditext.read((root.read(path) or b"").decode("utf-8", "replace"))
    except HookError as err:
        return err.message
    except ValueError:
        return "somebody has changed the CDI spec"
    different = carriedout.misfit(spec_of.driver_of(found), spec_of.driver_of(now))
    if different or _without_hooks(found) == _without_hooks(now):
        return different
    return "the CDI spec does not say what the host has now"


def _without_hooks(spec: object) -> list[object]:
    """What a spec says of devices and files: how it starts the hook depends on who wrote it."""
    document = spec if isinstance(spec, dict) else {}
    edits = document.get("containerEdits")
    kept = {key: edits[key] for key in edits if key != "hooks"} if isinstance(edits, dict) else {}
    return [document.get("kind"), document.get("devices"), kept]


def read(path: str) -> object:
    """The spec in a file; None if we have not written its text.  OSError if it cannot be read."""
    with open(path, encoding="utf-8") as file:
        try:
            return cditext.read(file.read())
        except ValueError:
            return None


def write(path: str, text: str, flag: str = "") -> None:
    """Write the spec to a file, whole or not at all: engines may read it at any moment.

    flag: of the vendor whose spec it is, "" for NVIDIA's.  UsageError if the file is not ours, or a spec of another
    vendor's devices: it is never replaced.
    """
    _check_ours(path, flag)
    # Engines read only names that end in .yaml or .json, and so not the temporary file.
    whole.write(path, text)


def _check_ours(path: str, flag: str) -> None:
    """UsageError unless `path` does not exist, or is an empty file or a spec of ours for the same devices."""
    try:
        status = os.lstat(path)
        found = read(path) if is_regular(status) and status.st_size else None
    except FileNotFoundError:
        return
    except OSError as err:
        raise whole.failure(path, err) from err
    if not is_regular(status):
        raise UsageError(f"{path} is there and is no plain file", "give another --output")
    if not status.st_size:
        return
    other = spec_of.vendor_of(found)
    if not other and not spec_of.driver_of(found):
        raise UsageError(f"{path} is there and is no CDI spec of ours", "move it away first")
    if other != flag:
        whose = f"of {quoted(other)}" if other else "of NVIDIA's GPUs"
        raise UsageError(f"{path} is there and is the CDI spec {whose}", "give another --output")


def _provision(found: DriverInventory, capabilities: tuple[str, ...], selector: str) -> Provision:
    """What a container with the host's layout gets for one device."""
    request = Request("cdi-spec", (selector,), capabilities)
    selected = selection.select(request, found)
    return provision.make(layout.like_host(found.library_folder), request, selected, found)
