# SPDX-License-Identifier: Apache-2.0
"""``flags``: the lines to paste that give this host's GPUs to containers, for each engine; LXC's it writes as well."""

from __future__ import annotations

import os
import re
import shlex
from string import Template
from typing import NamedTuple

import click

from oci_gpu_hook.cli import accelerators
from oci_gpu_hook.cli.options import config_and_host
from oci_gpu_hook.container import rootfs
from oci_gpu_hook.errors import RequestError, UsageError, quoted
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.engines.installed import HOOKS_FOLDER, PROGRAM, RUNTIME
from oci_gpu_hook.node.machine import kernelconfig
from oci_gpu_hook.node.setup import cdispec, enginefile
from oci_gpu_hook.operations import Device, Mount, OpenCgroup, Service
from oci_gpu_hook.planning import selection
from oci_gpu_hook.planning.decide import decide
from oci_gpu_hook.planning.plan import Plan
from oci_gpu_hook.request.bundle import Bundle
from oci_gpu_hook.request.selectors import Request, any_of, canonical
from oci_gpu_hook.request.settings import Settings, read_settings
from oci_gpu_hook.request.words import ALL, ANY, DEFAULT_CAPABILITIES, VISIBLE_DEVICES

_SPEC = "oci-gpu-hook cdi generate --output /run/cdi/oci-gpu-hook.yaml"

# What systemd-nspawn cannot do, if the plan does it.
_NOT_BY_NSPAWN = {
    "Tmpfs": "every GPU of this host shows in the container's /proc/driver/nvidia",
    "LimitMemory": "no limit holds its GPUs' memory",
    "Symlink": "links beside the device nodes are not made",
}
_WHERE = "the command line"
# Of each engine its ways: what docker's and podman's need, and their words with the placeholders of `filled`.
_WAYS: dict[str, dict[str, tuple[str, str]]] = {
    "docker": {
        "gpus": ("by --gpus: needs the package oci-gpu-hook-docker, and a restart of dockerd", "--gpus $csv"),
        "runtime": (
            f'by the runtime: daemon.json needs "runtimes": {{"{RUNTIME}": {{"path": "{PROGRAM}"}}}}',
            f"--runtime {RUNTIME} --env {VISIBLE_DEVICES}=$names",
        ),
        "cdi": (f"by CDI, as oci-gpu-hook-docker(7) says for each Docker; needs {_SPEC}", "$cdi_options"),
    },
    "podman": {
        "hook": (
            "by the hook; without root too, by podman 4.3; one that looks for hooks elsewhere needs "
            f"--hooks-dir {HOOKS_FOLDER}",
            f"--env {VISIBLE_DEVICES}=$names",
        ),
        "cdi": (f"by CDI; needs {_SPEC}", "$cdi_options"),
    },
    "lxc": {},
    "nspawn": dict.fromkeys(("words", "file"), ("", "")),
}
# Our lines for LXC; only \n ends one.  A rule that somebody else has put there ends in rwm, as in LXC's own files.
_OF_LXC = re.compile(r"^lxc\.hook\.mount.*nvidia-container-cli.*\n(?:lxc\.cgroup.* rw\n)*", re.MULTILINE)
_ALL_WAYS = [*dict.fromkeys([way for ways in _WAYS.values() for way in ways])]


class _Named(NamedTuple):
    gpus: tuple[str, ...]
    settings: Settings
    host: HostRoot

    def request(self) -> Request:
        """What a container that gets them asks for; UsageError for what does not name a device."""
        if ALL in self.gpus and len(self.gpus) > 1:
            raise UsageError("'all' cannot be given with other devices")
        names = []
        for item in self.gpus or (ALL,):
            try:
                names.append(item if item == ALL else canonical(item, _WHERE))
            except RequestError as err:
                hint = "name an index, a GPU-<uuid> or a MIG device, as 'oci-gpu-hook info' lists them"
                raise UsageError(f"{quoted(item)} is not a GPU's name", hint) from err
        return Request("flags", tuple(dict.fromkeys(names)), DEFAULT_CAPABILITIES)

    def on_host(self) -> tuple[str, ...]:
        """The names as this host has them, UsageError for one that it has not; ``any``, which each start chooses."""
        try:
            if chosen := any_of(self.gpus, _WHERE, self.settings):
                return (chosen.written(),)
        except RequestError as err:
            raise UsageError(err.message, err.hint) from err
        request = self.request()
        found = accelerators.of_server(self.host, self.settings.driver_root, selection.families(request))
        try:
            selected = selection.select(request, found)
        except RequestError as err:
            raise UsageError(err.message, "'oci-gpu-hook info' lists them") from err
        # Names by PCI address become indices, and MIG's older ones too: every way in, CDI's too, knows these.
        known = cdispec.names(found)
        others = {gpu.bus_id: str(gpu.nvml_index) for gpu in found.gpus}
        others.update({name: selection.name_of(device, found) for device, name in selected.mig_devices})
        return tuple([name if name in known else others.get(name, name) for name in request.devices])

    def plan(self, request: Request, folder: str) -> Plan:
        """What a container with this root would get from somebody who makes no cache for its loader."""
        inside, bundle = rootfs.of_folder(folder), Bundle(folder, {})
        return decide(bundle, request, self.settings, self.host, inside, id="", process=None, caches=False)


@click.command()
@click.argument("engine", type=click.Choice([*_WAYS]))
@click.argument("gpus", metavar="[GPU]...", nargs=-1)
@click.option("--way", type=click.Choice(_ALL_WAYS), help="Print this way alone; for nspawn as words or as a file.")
@click.option("--directory", metavar="DIR", help="The container's root, which nspawn needs.")
@click.option("--write", "file", metavar="FILE", help="Write LXC's lines into FILE, in place of those that it has.")
@config_and_host
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
    named = _Named(gpus, read_settings(config, None, host.path), host)
    if engine == "lxc":
        _lxc(named, file)
    elif directory is not None:
        _nspawn(named, directory, is_file=way == "file")
    else:
        _print_words(_WAYS[engine], way, named.on_host())


def _lxc(named: _Named, file: str | None) -> None:
    request = named.request()
    words = ["--user", "configure", "--no-cgroups", f"--device={','.join(request.devices)}"]
    words += [f"--{name}" for name in request.capabilities]
    # LXC appends words of its own, which are the shell's then.
    script = f'exec {shlex.join(["nvidia-container-cli", *words])} "$LXC_ROOTFS_MOUNT"'
    opened = [it for it in named.plan(request, "/").operations if isinstance(it, OpenCgroup)]
    # For privileged containers, too: LXC's monitor sets the device cgroup.  With v2 LXC 7 refuses lines of v1.
    group = "cgroup2" if kernelconfig.cgroup_version(named.host) == "v2" else "cgroup"
    rules = [f"lxc.{group}.devices.allow = c {rule.major}:{rule.minor} rw" for it in opened for rule in it.rules]
    lines = [f"lxc.hook.mount = /bin/sh -c {shlex.quote(script)}", *rules]
    if file is None:
        click.echo("\n".join(lines))
    else:
        found = enginefile.read_settings_file(named.host, source_of(named.host, os.path.abspath(file)))
        if found.status is None:
            raise UsageError(f"{quoted(file)} is not there", "name the configuration of a container that was made")
        enginefile.write(named.host, found, with_lxc(found.text, lines))
        click.echo(f"wrote {quoted(found.path)}: a hook and {len(rules)} rules, from the container's next start on")


def source_of(host: HostRoot, path: str) -> str:
    """What Proxmox VE makes this configuration of, at each start; the path itself for any other."""
    made = re.fullmatch(r"/var/lib/lxc/(\d+)/config", path)
    source = f"/etc/pve/lxc/{made[1]}.conf" if made else ""
    return source if source and host.stat(source) is not None else path


def _nspawn(named: _Named, directory: str, *, is_file: bool) -> None:
    plan = named.plan(named.request(), os.path.abspath(directory))
    nodes = [it.path for it in plan.operations if isinstance(it, Device)]
    pairs: list[tuple[str, str, str]] = [("Bind", path, path) for path in nodes]
    for it in plan.operations:
        if isinstance(it, Mount) and not it.source.startswith("/proc/"):
            pairs += [("BindReadOnly", it.source, path) for path in it.paths()]
        elif isinstance(it, Service):
            pairs.append(("Bind", it.source, it.target))
    # systemd-nspawn(1): a backslash keeps a colon in a path.
    binds = [(key, ":".join(path.replace(":", "\\:") for path in paths)) for key, *paths in pairs]
    if is_file:
        files = ["# systemd.nspawn(5)", "[Files]", *[f"{key}={value}" for key, value in binds]]
        unit = ["", "# systemd-nspawn@.service.d/gpus.conf", "[Service]"]
        click.echo("\n".join([*files, *unit, *[f"DeviceAllow={path} rw" for path in nodes]]))
    else:
        options = {"Bind": "--bind", "BindReadOnly": "--bind-ro"}
        rules = [f"--property=DeviceAllow={path} rw" for path in nodes]
        click.echo(shlex.join([*rules, *[f"{options[key]}={value}" for key, value in binds]]))
    kinds = {type(it).__name__ for it in plan.operations}
    for sentence in (*[said for kind, said in _NOT_BY_NSPAWN.items() if kind in kinds], *plan.notes):
        click.echo(sentence, err=True)


def _print_words(ways: dict[str, tuple[str, str]], way: str | None, names: tuple[str, ...]) -> None:
    # No hook stands behind a CDI spec, which would choose the devices at each start.
    left_out = "cdi" if names[0].startswith(ANY) else ""
    if way and way == left_out:
        raise UsageError(f"--way {way} needs the names of GPUs", "any is for ways by which the hook chooses")
    if way:
        click.echo(filled(ways[way][1], names))
        return
    for needs, words in [found for name, found in ways.items() if name != left_out]:
        click.echo(f"# {needs}\n{shlex.join(filled(words, names).split())}")


def filled(text: str, names: tuple[str, ...]) -> str:
    """Words of the tables above for these devices; no name in a request has a letter that needs an escape."""
    listed = ",".join(names)
    value = ALL if listed == ALL else f"device={listed}"
    return Template(text).substitute(
        names=listed,
        # Docker reads it as a line of CSV, so more than one device must stand in quotes there.
        csv=f'"{value}"' if "," in value else value,
        cdi_options=" ".join([f"--device nvidia.com/gpu={name}" for name in names]),
    )


def with_lxc(text: str, lines: list[str]) -> str:
    """A configuration with these lines in the place of those that were made before; else at the end of what is live."""
    ours = "".join([f"{line}\n" for line in lines])
    text = text if text.endswith("\n") or not text else f"{text}\n"
    # What Proxmox VE has below a heading is a snapshot.
    live, *snapshots = re.split(r"^(?=\[)", text, maxsplit=1, flags=re.MULTILINE)
    *before, after = _OF_LXC.split(live)
    return "".join([*([*before, ours, after] if before else [after, ours]), *snapshots])
