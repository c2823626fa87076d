# SPDX-License-Identifier: Apache-2.0
"""``cdi``: a CDI spec of this host, for engines that inject devices by themselves."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import click

from oci_gpu_hook import cdi as spec_of
from oci_gpu_hook import config as settings_of
from oci_gpu_hook import hook, plan, request, selection
from oci_gpu_hook.cli.options import config_file, host_root
from oci_gpu_hook.errors import ApplyError, DriverError
from oci_gpu_hook.host import inventory as saved_inventory
from oci_gpu_hook.host import survey
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.operations import Labels

if TYPE_CHECKING:
    from oci_gpu_hook.config import Config
    from oci_gpu_hook.host.inventory import DriverInventory
    from oci_gpu_hook.plan import Plan

DOOR = "/usr/libexec/oci/hooks.d/oci-gpu-hook"


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
    type=click.Choice(["yaml", "json"]),
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
    settings = settings_of.read(*hook.settings_file(config), {})
    document = of_host(HostRoot(host_root), settings, capabilities, door)
    by_name = "json" if (output or "").endswith(".json") else "yaml"
    text = as_text(document, form or by_name)
    if output is None:
        click.echo(text, nl=False)
        return
    write(output, text)
    click.echo(f"wrote {output}: {len(document['devices'])} devices")


def of_host(root: HostRoot, settings: Config, capabilities: str, door: str) -> dict[str, Any]:
    """The spec of a host as it is now; what only NVML knows is taken from the saved inventory where that is true."""
    now = saved_inventory.stamp(root, settings.driver_root)
    found = saved_inventory.read_saved(root, now) or survey.survey(root, settings.driver_root)
    words = request.granted(capabilities)
    asked = request.Request("cdi", ("all",), words)
    found = saved_inventory.with_nodes(root, found, selection.families(asked))
    if not found.library_folder:
        raise DriverError(
            "the driver's libraries are not there", "install all parts of the driver first"
        )
    devices = [(name, _plan(found, settings, words, by)) for name, by in spec_of.names(found)]
    common = _plan(found, settings, words, selection.NONE)
    return spec_of.document(common, tuple(devices), spec_of.Hook(door, words))


def as_text(document: dict[str, Any], form: str) -> str:
    """The spec as JSON, or as YAML of the same lines: every JSON value is a YAML value."""
    if form == "json":
        return json.dumps(document, indent=2) + "\n"
    return "\n".join(["---", *_yaml(document, "")]) + "\n"


def write(path: str, text: str) -> None:
    """The file, mode 0644, beside its name and then in its place: engines read it at any moment."""
    staged = f"{path}.{os.getpid()}"
    try:
        os.makedirs(os.path.dirname(os.path.abspath(path)), mode=0o755, exist_ok=True)
        fd = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        with open(fd, "w", encoding="utf-8") as file:
            os.fchmod(fd, 0o644)
            file.write(text)
        os.rename(staged, path)
    except OSError as err:
        raise ApplyError(f"cannot write {path}: {err.strerror}", "run it as root") from err


def _plan(found: DriverInventory, settings: Config, words: tuple[str, ...], selector: str) -> Plan:
    """The hook's own plan for one device, in a container that is laid out as the host is."""
    asked = request.Request("cdi-spec", (selector,), words)
    container = hook.container_like_host(found.library_folder)
    chosen = selection.select(asked, found)
    anything = settings._replace(device_cgroup="auto")
    return plan.make(container, asked, chosen, found, anything, Labels("", (), ()))


def _yaml(value: Any, indent: str) -> list[str]:
    """Block YAML; scalars as JSON has them, which YAML 1.2 takes, so that no word is taken for something else."""
    lines = []
    if isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, (dict, list)) and item:
                lines += [f"{indent}{key}:", *_yaml(item, indent + "  ")]
            else:
                lines.append(f"{indent}{key}: {json.dumps(item)}")
        return lines
    for item in value:
        if isinstance(item, dict):
            first, *rest = _yaml(item, indent + "  ")
            lines += [f"{indent}- {first.lstrip()}", *rest]
        else:
            lines.append(f"{indent}- {json.dumps(item)}")
    return lines
