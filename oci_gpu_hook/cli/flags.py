# SPDX-License-Identifier: Apache-2.0
"""``flags``: the lines to paste that give this host's GPUs to containers, for each engine and spawner."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

import click

from oci_gpu_hook.cli import flaglines, onhost, planlines
from oci_gpu_hook.cli.flaglines import Asked
from oci_gpu_hook.cli.group import Group
from oci_gpu_hook.cli.options import config_file, host_root
from oci_gpu_hook.container import rootfs
from oci_gpu_hook.driver import inventory as saved_inventory
from oci_gpu_hook.driver import survey
from oci_gpu_hook.errors import RequestError, UsageError, quoted
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.diagnosis.remedy import is_name
from oci_gpu_hook.node.setup import cdispec as spec_of
from oci_gpu_hook.node.setup import drivervolume
from oci_gpu_hook.planning import selection
from oci_gpu_hook.planning.decide import decide
from oci_gpu_hook.request import selectors
from oci_gpu_hook.request.bundle import Bundle
from oci_gpu_hook.request.parse import Request
from oci_gpu_hook.request.settings import read_settings
from oci_gpu_hook.request.words import ALL, ANY, DEFAULT_CAPABILITIES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oci_gpu_hook.driver.inventory import DriverInventory
    from oci_gpu_hook.planning.plan import Plan
    from oci_gpu_hook.planning.selection import Selection

DRIVER_VOLUME = "driver-volume"
_SPAWNER_WAYS: dict[str, Callable[[Asked], str]] = {
    "runtime": flaglines.spawner_runtime,
    "device-requests": flaglines.spawner_requests,
    "by-user": flaglines.spawner_by_user,
    DRIVER_VOLUME: flaglines.spawner_driver_volume,
}

_COMPOSE_WAYS: dict[str, Callable[[Asked], str]] = {
    "reservations": flaglines.compose_reservations,
    "runtime": flaglines.compose_runtime,
    "environment": flaglines.compose_environment,
    "cdi": flaglines.compose_cdi,
}


class _Way(NamedTuple):
    """One way to ask an engine: what it needs, for people, and its words."""

    needs: str
    words: Callable[[Asked], list[str]]


_DOCKER_WAYS = {
    "gpus": _Way(
        "by --gpus: needs the package oci-gpu-hook-docker, or 'make install-docker', and a restart of dockerd",
        flaglines.docker_gpus,
    ),
    "runtime": _Way(f"by the runtime: daemon.json needs {flaglines.RUNTIMES}", flaglines.docker_runtime),
    "cdi": _Way(
        'by CDI, from Docker 28.2 on, and from 25 on with "features": {"cdi": true} in daemon.json; '
        "needs oci-gpu-hook cdi generate --output /etc/cdi/nvidia.yaml",
        flaglines.docker_cdi,
    ),
    DRIVER_VOLUME: _Way(
        "for images of nvidia-docker 1's time, without a hook: 'oci-gpu-hook volume create' makes the volume",
        flaglines.docker_driver_volume,
    ),
}
_PODMAN_WAYS = {
    "hook": _Way(
        f"by the hook; without root it needs --hooks-dir {flaglines.HOOKS_FOLDER} before 'run'",
        flaglines.podman_environment,
    ),
    "cdi": _Way("by CDI: oci-gpu-hook cdi generate --output /etc/cdi/nvidia.yaml", flaglines.docker_cdi),
}


def _gpus(command: Callable[..., Any]) -> Callable[..., Any]:
    """The devices, and whose they are."""
    return click.argument("gpus", metavar="[GPU]...", nargs=-1)(config_file(host_root(command)))


def _ways(names: Iterable[str], text: str, default: str | None = None) -> Callable[..., Any]:
    """``--way WORD``"""
    return click.option("--way", type=click.Choice([*names]), default=default, show_default=True, help=text)


@click.group(cls=Group)
def flags() -> None:
    """Print the lines that give GPUs to containers, to paste into a command or a configuration."""


@flags.command()
@_ways(_DOCKER_WAYS, "Print the words of this way alone, for docker run $(...).")
@_gpus
def docker(way: str | None, gpus: tuple[str, ...], config: str | None, host_root: str) -> None:
    """Options of docker run, in each way that Docker has.

    GPU is an index, a UUID or a MIG device, and 'all' where none is named.  With --way the words stand as they are, not
    quoted for a shell: docker run $(oci-gpu-hook flags docker --way gpus 0) IMAGE.  That of 'driver-volume' is what
    nvidia-docker 1 printed at /docker/cli.
    """
    _print_ways(_DOCKER_WAYS, way, _asked(gpus, config, host_root))


@flags.command()
@_ways(_PODMAN_WAYS, "Print the words of this way alone, for podman run $(...).")
@_gpus
def podman(way: str | None, gpus: tuple[str, ...], config: str | None, host_root: str) -> None:
    """Options of podman run, by the hook and by CDI.

    GPU is an index, a UUID or a MIG device, and 'all' where none is named.
    """
    _print_ways(_PODMAN_WAYS, way, _asked(gpus, config, host_root))


@flags.command()
@_ways(_SPAWNER_WAYS, "How notebooks get them.", "runtime")
@_gpus
def dockerspawner(way: str, gpus: tuple[str, ...], config: str | None, host_root: str) -> None:
    """Python lines of jupyterhub_config.py for DockerSpawner.

    GPU is an index, a UUID or a MIG device, and 'all' where none is named; or 'any', by which each user gets
    what has room (the setting gpu-holders).  With --way by-user each user gets one of them.
    """
    asked = _asked(gpus, config, host_root)
    if not asked.each and way in ("by-user", DRIVER_VOLUME):
        raise UsageError(f"--way {way} needs the names of GPUs", "any is for --way runtime and device-requests")
    others = ", ".join([name for name in _SPAWNER_WAYS if name != way])
    click.echo(f"{_SPAWNER_WAYS[way](asked)}{flaglines.SPAWNER_TELLS}# Other ways (--way): {others}.")


@flags.command()
@_ways(_COMPOSE_WAYS, "How the service gets them.", "reservations")
@_gpus
def compose(way: str, gpus: tuple[str, ...], config: str | None, host_root: str) -> None:
    """A compose file with one service.

    GPU is an index, a UUID or a MIG device, and 'all' where none is named.  The way 'environment' is for every Compose.
    """
    others = ", ".join([name for name in _COMPOSE_WAYS if name != way])
    click.echo(f"{_COMPOSE_WAYS[way](_asked(gpus, config, host_root))}# Other ways (--way): {others}.")


@flags.command()
@click.option("--name", metavar="NAME", default="GPU", show_default=True, help="The resource.")
@_gpus
def swarmspawner(name: str, gpus: tuple[str, ...], config: str | None, host_root: str) -> None:
    """Python lines of jupyterhub_config.py for SwarmSpawner.

    Each user gets as many GPUs, or shares, as are named here, one where none is: Swarm picks them.
    """
    count = len(_each(*_look(gpus, config, host_root)[1:])) if gpus else 1
    click.echo(flaglines.swarm_spawner(name, count), nl=False)


@flags.command()
@click.option(
    "--mode",
    type=click.Choice([*flaglines.KUBE_MODES]),
    default="none",
    show_default=True,
    help="How SELinux confines the pod.",
)
@_ways(("everybody", "profile"), "Who gets them: every user, or who picks a profile with GPUs.", "everybody")
@click.option("--scc", metavar="NAME", help="With --mode selinux on OpenShift: the constraints that set the type.")
@_gpus
def kubespawner(
    mode: str, way: str, scc: str | None, gpus: tuple[str, ...], config: str | None, host_root: str
) -> None:
    """Python lines of jupyterhub_config.py for KubeSpawner, in the three GPU modes.

    Each user gets as many GPUs and MIG devices as are named here, one GPU where none is: the device plugin picks them.
    With --way profile all else of a notebook without GPUs stays as it is, its SELinux type and its SCC too.
    """
    if scc is not None and (mode != "selinux" or not is_name(scc)):
        raise UsageError("--scc is the name of constraints, for --mode selinux", "such as nvidia-container")
    limits = _limits(*_look(gpus, config, host_root)) if gpus else {"nvidia.com/gpu": 1}
    click.echo(flaglines.kube(mode, limits, scc=scc or "", is_profile=way == "profile"), nl=False)


@flags.command()
@_gpus
def lxc(gpus: tuple[str, ...], config: str | None, host_root: str) -> None:
    """Lines of a container's configuration for LXC, privileged or not.

    They start nvidia-container-cli, of the package oci-gpu-hook-cli.  GPU is an index, a UUID or a MIG device, and
    'all' where none is named.
    """
    request = _request(gpus)
    click.echo("\n".join(planlines.lxc(_plan(request, "/", config, host_root), request)))


@flags.command()
@click.option("--directory", metavar="DIR", required=True, help="The container's root.")
@click.option("--way", type=click.Choice(["words", "file"]), default="words", show_default=True, help="What to print.")
@_gpus
def nspawn(directory: str, way: str, gpus: tuple[str, ...], config: str | None, host_root: str) -> None:
    """Words of systemd-nspawn, or its files, for a container with GPUs.

    GPU is an index, a UUID or a MIG device, and 'all' where none is named.  Print them anew after each update of the
    driver.  What cannot be said so is told on standard error.
    """
    plan = _plan(_request(gpus), os.path.abspath(directory), config, host_root)
    lines, unsaid = planlines.nspawn(plan, is_file=way == "file")
    click.echo("\n".join(lines) if way == "file" else flaglines.shell(lines))
    for sentence in (*unsaid, *plan.notes):
        click.echo(sentence, err=True)


def _plan(request: Request, folder: str, config: str | None, host_root: str) -> Plan:
    """What a container with this root would get."""
    root, host = rootfs.of_folder(folder), HostRoot(host_root)
    return decide(Bundle(folder, {}), request, read_settings(config, None), host, root, id="", process=None)


def _print_ways(ways: dict[str, _Way], way: str | None, asked: Asked) -> None:
    """One way's words as they are, or all ways, quoted for a shell, each below its comment."""
    if way:
        click.echo(" ".join(ways[way].words(asked)))
        return
    texts = [f"# {found.needs}\n{flaglines.shell(found.words(asked))}" for found in ways.values()]
    click.echo("\n".join(texts))


def _asked(gpus: tuple[str, ...], config: str | None, host_root: str) -> Asked:
    """The devices named on the command line, as this host has them; ``any`` as it stands, which each start chooses."""
    if [name for name in gpus if name.partition(":")[0].lower() == ANY]:
        try:
            chosen = selectors.canonical_any([*gpus], "the command line", read_settings(config, None))
        except RequestError as err:
            raise UsageError(err.message, err.hint) from err
        return Asked((chosen,), (), (), "")
    request, found, selected = _look(gpus, config, host_root)
    nodes = dict.fromkeys([node for node, _ in selection.nodes(request, selected, found)])
    missing = [node.path for node in nodes if not node.present]
    if missing:
        click.echo(f"not there: {', '.join(missing)} ('oci-gpu-hook prepare' makes them)", err=True)
    return Asked(
        _spec_names(request, found),
        tuple(_each(found, selected)),
        tuple([node.path for node in nodes]),
        drivervolume.named_after(HostRoot(host_root)) or found.driver_version,
    )


def _look(gpus: tuple[str, ...], config: str | None, host_root: str) -> tuple[Request, DriverInventory, Selection]:
    root, driver_root = HostRoot(host_root), read_settings(config, None).driver_root
    onhost.check_is_server(root)
    found = survey.current(root, driver_root)
    request = _request(gpus)
    families = selection.families(request)
    found = saved_inventory.with_nodes(root, found, families, driver_root=driver_root)
    try:
        return request, found, selection.select(request, found)
    except RequestError as err:
        raise UsageError(err.message, "'oci-gpu-hook info' lists them") from err


def _request(gpus: tuple[str, ...]) -> Request:
    return Request("flags", _names(gpus), DEFAULT_CAPABILITIES)


def _names(gpus: tuple[str, ...]) -> tuple[str, ...]:
    """The devices in canonical form, `ALL` alone for all."""
    if not gpus or ALL in gpus:
        if len(gpus) > 1:
            raise UsageError("'all' stands beside other devices")
        return (ALL,)
    found = []
    for item in gpus:
        try:
            found.append(selectors.canonical(item, "the command line"))
        except RequestError as err:
            hint = "name an index, a GPU-<uuid> or a MIG device, as 'oci-gpu-hook info' lists them"
            raise UsageError(f"{quoted(item)} is no GPU's name", hint) from err
    return tuple(dict.fromkeys(found))


def _spec_names(request: Request, found: DriverInventory) -> tuple[str, ...]:
    """The names of the request, those by PCI address by index: every way in, CDI's too, knows these."""
    known = {name for name, _ in spec_of.names(found)}
    indices = {gpu.bus_id: str(gpu.nvml_index) for gpu in found.gpus}
    return tuple([name if name in known else indices.get(name, name) for name in request.devices])


def _each(found: DriverInventory, selected: Selection) -> list[str]:
    """A name for each single device: UUIDs, which stay when GPUs are added, where they are known."""
    divided = {device.gpu for device, _ in selected.mig_devices}
    gpus = [gpu.uuid or str(gpu.nvml_index) for gpu, _ in selected.gpus if gpu.nvml_index not in divided]
    uuids = {gpu.nvml_index: gpu.uuid for gpu in found.gpus}
    migs = [it.uuid or f"MIG-{uuids[it.gpu]}/{it.gi}/{it.ci}" for it, _ in selected.mig_devices]
    return [*gpus, *migs]


def _limits(request: Request, found: DriverInventory, selected: Selection) -> dict[str, int]:
    """The device plugin's resources: a MIG device is one of its own kind (strategy "mixed")."""
    migs = [device for device, _ in selected.mig_devices]
    names = [
        f"nvidia.com/mig-{device.profile.replace('+', '.')}" if device.profile else "nvidia.com/gpu" for device in migs
    ]
    names += ["nvidia.com/gpu"] * (len(_each(found, selected)) - len(migs))
    return {name: names.count(name) for name in dict.fromkeys(names)}
