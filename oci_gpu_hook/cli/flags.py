# SPDX-License-Identifier: Apache-2.0
"""``flags``: the lines to paste that give this host's GPUs to containers, for each engine."""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Iterable
from typing import Any, Callable, NamedTuple

import click

from oci_gpu_hook.cli import flaglines, onhost
from oci_gpu_hook.cli.flaglines import WantedDevices
from oci_gpu_hook.cli.group import CommandGroup
from oci_gpu_hook.cli.options import config_file, host_root
from oci_gpu_hook.container import rootfs
from oci_gpu_hook.driver.inventory import DriverInventory
from oci_gpu_hook.errors import RequestError, UsageError, quoted
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.machine import kernelconfig
from oci_gpu_hook.node.setup import cdispec, enginefile
from oci_gpu_hook.planning import selection
from oci_gpu_hook.planning.decide import decide
from oci_gpu_hook.planning.plan import Plan
from oci_gpu_hook.planning.selection import Selection
from oci_gpu_hook.request import selectors
from oci_gpu_hook.request.bundle import Bundle
from oci_gpu_hook.request.containercli import CONTAINER_CLI
from oci_gpu_hook.request.parse import Request
from oci_gpu_hook.request.settings import Settings, read_settings
from oci_gpu_hook.request.state import State
from oci_gpu_hook.request.words import ALL, DEFAULT_CAPABILITIES

_WHERE = "the command line"
# Ways that no hook stands behind, which would choose the devices at each start.
_NAMED_ONLY = ("cdi", flaglines.DRIVER_VOLUME)


class _Named(NamedTuple):
    """The devices that a command line names, and whose they are."""

    gpus: tuple[str, ...]
    config: str | None
    root: HostRoot

    def settings(self, state: State | None = None) -> Settings:
        """The administrator's, for a container if a state is given."""
        return read_settings(self.config, state)

    def request(self) -> Request:
        """What a container that gets them asks for; UsageError for what does not name a device."""
        if ALL in self.gpus and len(self.gpus) > 1:
            raise UsageError("'all' cannot be given with other devices")
        names = []
        for item in self.gpus or (ALL,):
            try:
                names.append(item if item == ALL else selectors.canonical(item, _WHERE))
            except RequestError as err:
                hint = "name an index, a GPU-<uuid> or a MIG device, as 'oci-gpu-hook info' lists them"
                raise UsageError(f"{quoted(item)} is not a GPU's name", hint) from err
        return Request("flags", tuple(dict.fromkeys(names)), DEFAULT_CAPABILITIES)

    def on_host(self) -> tuple[Request, DriverInventory, Selection]:
        """The request, this host, and what it has of them; UsageError for what it has not."""
        request = self.request()
        found = onhost.of_server(self.root, self.settings().driver_root, selection.families(request))
        try:
            return request, found, selection.select(request, found)
        except RequestError as err:
            raise UsageError(err.message, "'oci-gpu-hook info' lists them") from err

    def asked(self, way: str | None) -> WantedDevices:
        """The devices as this host has them; ``any`` as it stands, which each start chooses."""
        try:
            chosen = selectors.canonical_any(self.gpus, _WHERE, self.settings())
        except RequestError as err:
            raise UsageError(err.message, err.hint) from err
        if chosen and way in _NAMED_ONLY:
            raise UsageError(f"--way {way} needs the names of GPUs", "any is for ways by which the hook chooses")
        if chosen:
            return WantedDevices((chosen,), (), "")
        request, found, selected = self.on_host()
        nodes = dict.fromkeys([node for node, _ in selection.nodes(request, selected, found)])
        if missing := [node.path for node in nodes if not node.present]:
            click.echo(f"not there: {', '.join(missing)} ('inventory refresh --nodes' makes them)", err=True)
        # Names by PCI address become indices: every way in, CDI's too, knows these.
        known = cdispec.names(found)
        indices = {gpu.bus_id: str(gpu.nvml_index) for gpu in found.gpus}
        return WantedDevices(
            tuple([name if name in known else indices.get(name, name) for name in request.devices]),
            tuple([node.path for node in nodes]),
            found.driver_version,
        )

    def plan(self, request: Request, folder: str) -> Plan:
        """What a container with this root would get from somebody who makes no cache for its loader."""
        inside, bundle = rootfs.of_folder(folder), Bundle(folder, {})
        return decide(bundle, request, self.settings(), self.root, inside, id="", process=None, caches=False)


def _gpus(command: Callable[..., Any]) -> Callable[..., Any]:
    """The devices, and whose they are: the command gets them as `_Named`."""

    @click.argument("gpus", metavar="[GPU]...", nargs=-1)
    @config_file
    @host_root
    @functools.wraps(command)
    def with_devices(gpus: tuple[str, ...], config: str | None, root: HostRoot, **options: Any) -> Any:
        return command(_Named(gpus, config, root), **options)

    return with_devices


def _choice(option: str, words: Iterable[str], text: str, default: str | None = None) -> Callable[..., Any]:
    return click.option(option, type=click.Choice([*words]), default=default, show_default=True, help=text)


@click.group(cls=CommandGroup)
def flags() -> None:
    """Print the lines that give GPUs to containers, to paste into a command or a configuration."""


@flags.command()
@_choice("--way", flaglines.DOCKER, "Print the words of this way alone, for docker run $(...).")
@_gpus
def docker(named: _Named, way: str | None) -> None:
    """Options of docker run, in each way that Docker has.

    GPU is an index, a UUID or a MIG device, and 'all' if none is named.  With --way the words stand as they are, not
    quoted for a shell: docker run $(oci-gpu-hook flags docker --way gpus 0) IMAGE.  Those of 'driver-volume' are what
    nvidia-docker 1 printed at /docker/cli.
    """
    _print_words(flaglines.DOCKER, way, named.asked(way))


@flags.command()
@_choice("--way", flaglines.PODMAN, "Print the words of this way alone, for podman run $(...).")
@_gpus
def podman(named: _Named, way: str | None) -> None:
    """Options of podman run, by the hook and by CDI.

    GPU is an index, a UUID or a MIG device, and 'all' if none is named.
    """
    _print_words(flaglines.PODMAN, way, named.asked(way))


@flags.command()
@click.option("--write", "file", metavar="FILE", help="Write them into this configuration, in place of those it has.")
@_gpus
def lxc(named: _Named, file: str | None) -> None:
    """Lines of a container's configuration for LXC, privileged or not.

    They start nvidia-container-cli, of the package oci-gpu-hook-cli.  GPU is an index, a UUID or a MIG device, and
    'all' if none is named.
    """
    request = named.request()
    version = kernelconfig.cgroup_version(named.root)
    lines = flaglines.lxc(named.plan(request, "/"), request, version)
    if file is None:
        click.echo("\n".join(lines))
    else:
        found = enginefile.read_settings_file(named.root, os.path.abspath(file))
        if found.status is None:
            raise UsageError(f"{quoted(file)} is not there", "name the configuration of a container that was made")
        enginefile.write(named.root, found, flaglines.with_lxc(found.text, lines))
        click.echo(f"wrote {quoted(file)}: a hook and {len(lines) - 1} rules, from the container's next start on")
    if named.settings(State(caller=CONTAINER_CLI)).gpu_holders:
        note = "gpu-holders is set, and LXC's containers are not counted: they get no GPU but by a section"
        click.echo(f"{note} [caller {CONTAINER_CLI}] of the settings", err=True)


@flags.command()
@click.option("--directory", metavar="DIR", required=True, help="The container's root.")
@_choice("--way", ("words", "file"), "What to print.", "words")
@_gpus
def nspawn(named: _Named, directory: str, way: str) -> None:
    """Words of systemd-nspawn, or its files, for a container with GPUs.

    GPU is an index, a UUID or a MIG device, and 'all' if none is named.  Print them again after each update of the
    driver.  What they cannot express is printed on standard error.
    """
    plan = named.plan(named.request(), os.path.abspath(directory))
    lines, unsaid = flaglines.nspawn(plan, is_file=way == "file")
    click.echo("\n".join(lines) if way == "file" else shlex.join(lines))
    for sentence in (*unsaid, *plan.notes):
        click.echo(sentence, err=True)


def _print_words(ways: dict[str, tuple[str, str]], way: str | None, asked: WantedDevices) -> None:
    """One way's words as they are, or all ways, quoted for a shell, each below its comment."""
    if way:
        click.echo(flaglines.filled(ways[way][1], asked))
        return
    for needs, words in [found for name, found in ways.items() if asked.driver or name not in _NAMED_ONLY]:
        click.echo(f"# {needs}\n{shlex.join(flaglines.filled(words, asked).split())}")
