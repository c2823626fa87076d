# SPDX-License-Identifier: Apache-2.0
"""``flags``: the lines to paste that give this host's GPUs to containers, for each engine."""

from __future__ import annotations

import os
import shlex
from typing import NamedTuple

import click

from oci_gpu_hook.cli import accelerators, flaglines
from oci_gpu_hook.cli.options import config_file, host_root
from oci_gpu_hook.container import rootfs
from oci_gpu_hook.errors import RequestError, UsageError, quoted
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.machine import kernelconfig
from oci_gpu_hook.node.setup import cdispec, enginefile
from oci_gpu_hook.planning import selection
from oci_gpu_hook.planning.decide import decide
from oci_gpu_hook.planning.plan import Plan
from oci_gpu_hook.request import selectors
from oci_gpu_hook.request.bundle import Bundle
from oci_gpu_hook.request.containercli import CONTAINER_CLI
from oci_gpu_hook.request.parse import Request
from oci_gpu_hook.request.settings import Settings, read_settings
from oci_gpu_hook.request.state import State
from oci_gpu_hook.request.words import ALL, ANY, DEFAULT_CAPABILITIES

_WHERE = "the command line"
# Of each engine; what docker's and podman's need, and their words.
_WAYS: dict[str, dict[str, tuple[str, str]]] = {
    "docker": flaglines.DOCKER,
    "podman": flaglines.PODMAN,
    "lxc": {},
    "nspawn": dict.fromkeys(("words", "file"), ("", "")),
}
# No hook stands behind it, which would choose the devices at each start.
_NAMED_ONLY = "cdi"


class _Named(NamedTuple):
    gpus: tuple[str, ...]
    config: str | None
    host: HostRoot

    def settings(self, state: State | None = None) -> Settings:
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

    def on_host(self) -> tuple[str, ...]:
        """The names as this host has them, UsageError for one that it has not; ``any``, which each start chooses."""
        try:
            if chosen := selectors.any_of(self.gpus, _WHERE, self.settings()):
                return (chosen.written(),)
        except RequestError as err:
            raise UsageError(err.message, err.hint) from err
        request = self.request()
        found = accelerators.of_server(self.host, self.settings().driver_root, selection.families(request))
        try:
            selection.select(request, found)
        except RequestError as err:
            raise UsageError(err.message, "'oci-gpu-hook info' lists them") from err
        # Names by PCI address become indices: every way in, CDI's too, knows these.
        known = cdispec.names(found)
        indices = {gpu.bus_id: str(gpu.nvml_index) for gpu in found.gpus}
        return tuple([name if name in known else indices.get(name, name) for name in request.devices])

    def plan(self, request: Request, folder: str) -> Plan:
        """What a container with this root would get from somebody who makes no cache for its loader."""
        inside, bundle = rootfs.of_folder(folder), Bundle(folder, {})
        return decide(bundle, request, self.settings(), self.host, inside, id="", process=None, caches=False)


@click.command()
@click.argument("engine", type=click.Choice([*_WAYS]))
@click.argument("gpus", metavar="[GPU]...", nargs=-1)
@click.option(
    "--way",
    type=click.Choice([*dict.fromkeys([way for ways in _WAYS.values() for way in ways])]),
    help="Print this way alone: for docker run $(...) and podman run $(...), as words or as a file for nspawn.",
)
@click.option("--directory", metavar="DIR", help="The container's root, which nspawn needs.")
@click.option("--write", "file", metavar="FILE", help="Write LXC's lines into FILE, in place of those that it has.")
@config_file
@host_root
def flags(
    engine: str,
    gpus: tuple[str, ...],
    way: str | None,
    directory: str | None,
    file: str | None,
    config: str | None,
    host: HostRoot,
) -> None:
    """Print the lines that give GPUs to containers, to paste into a command or a configuration.

    GPU is an index, a UUID or a MIG device, and 'all' if none is named.

    For docker and podman they are options of run, in each way that there is.  With --way the words stand as they are,
    not quoted for a shell: docker run $(oci-gpu-hook flags docker --way gpus 0) IMAGE.

    For lxc they are lines of a container's configuration, privileged or not, and start nvidia-container-cli, of the
    package oci-gpu-hook-cli.  For nspawn they are words of systemd-nspawn, or its files: print them again after each
    update of the driver.  What they cannot express is printed on standard error.
    """
    if way is not None and way not in _WAYS[engine]:
        raise UsageError(f"{engine} has no --way {way}", f"it has {', '.join(_WAYS[engine]) or 'one way'}")
    if file is not None and engine != "lxc":
        raise UsageError(f"{engine} has no --write", "lxc has")
    if (directory is not None) != (engine == "nspawn"):
        raise UsageError("nspawn needs --directory, and others have none")
    named = _Named(gpus, config, host)
    if engine == "lxc":
        _lxc(named, file)
    elif directory is not None:
        _nspawn(named, directory, is_file=way == "file")
    else:
        _print_words(_WAYS[engine], way, named.on_host())


def _lxc(named: _Named, file: str | None) -> None:
    request = named.request()
    version = kernelconfig.cgroup_version(named.host)
    lines = flaglines.lxc(named.plan(request, "/"), request, version)
    if file is None:
        click.echo("\n".join(lines))
    else:
        found = enginefile.read_settings_file(named.host, os.path.abspath(file))
        if found.status is None:
            raise UsageError(f"{quoted(file)} is not there", "name the configuration of a container that was made")
        enginefile.write(named.host, found, flaglines.with_lxc(found.text, lines))
        click.echo(f"wrote {quoted(file)}: a hook and {len(lines) - 1} rules, from the container's next start on")
    if named.settings(State(caller=CONTAINER_CLI)).gpu_holders:
        note = "gpu-holders is set, and LXC's containers are not counted: they get no GPU but by a section"
        click.echo(f"{note} [caller {CONTAINER_CLI}] of the settings", err=True)


def _nspawn(named: _Named, directory: str, *, is_file: bool) -> None:
    plan = named.plan(named.request(), os.path.abspath(directory))
    lines, unsaid = flaglines.nspawn(plan, is_file=is_file)
    click.echo("\n".join(lines) if is_file else shlex.join(lines))
    for sentence in (*unsaid, *plan.notes):
        click.echo(sentence, err=True)


def _print_words(ways: dict[str, tuple[str, str]], way: str | None, names: tuple[str, ...]) -> None:
    left_out = _NAMED_ONLY if names[0].startswith(ANY) else ""
    if way and way == left_out:
        raise UsageError(f"--way {way} needs the names of GPUs", "any is for ways by which the hook chooses")
    if way:
        click.echo(flaglines.filled(ways[way][1], names))
        return
    for needs, words in [found for name, found in ways.items() if name != left_out]:
        click.echo(f"# {needs}\n{shlex.join(flaglines.filled(words, names).split())}")
