# SPDX-License-Identifier: Apache-2.0
"""``swarm``: this host's GPUs as generic resources of Docker Swarm, which gives each task its own."""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from typing import Any

import click

from oci_gpu_hook.cli.flaglines import RUNTIME, RUNTIMES
from oci_gpu_hook.cli.group import CommandGroup
from oci_gpu_hook.cli.options import config_file, host_root
from oci_gpu_hook.driver.inventory import DriverInventory
from oci_gpu_hook.errors import ConfigError, DriverError, UsageError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.gpus import leased, present
from oci_gpu_hook.node.setup import daemonjson, enginefile
from oci_gpu_hook.request.settings import SETTINGS, Settings, read_settings
from oci_gpu_hook.request.sources import SWARM_VARIABLE

KEY = "node-generic-resources"
_MOST_SHARES = 100
# Docker splits a resource at "=", and makes of its name a part of a variable's.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_REFRESH = "run 'oci-gpu-hook inventory refresh'"


@click.group(cls=CommandGroup)
def swarm() -> None:
    """Give this host's GPUs to Docker Swarm."""


@swarm.command()
@click.option(
    "--shares",
    metavar="N",
    type=click.IntRange(1, _MOST_SHARES),
    help="Name each GPU N times, for as many tasks to share it.",
)
@click.option(
    "--name", metavar="NAME", default="GPU", show_default=True, help="The resource's name: services ask for NAME=1."
)
@click.option("--write", "writes", is_flag=True, help="Write them into FILE.")
@click.argument("file", metavar="[FILE]", required=False)
@config_file
@host_root
def resources(
    shares: int | None, name: str, writes: bool, file: str | None, config: str | None, root: HostRoot
) -> None:
    """Print this host's GPUs as dockerd's node-generic-resources, or write them into its settings.

    GPUs are named by UUID, and those in MIG mode by their MIG devices.  With --shares N a GPU is named N times, as
    GPU-UUID-0 and so on; a MIG device is a share already, and is named once.  A task gets a whole name in
    DOCKER_RESOURCE_NAME, and so can tell which share it is.

    FILE is /etc/docker/daemon.json unless another is given, and all else in it stays as it is.  What else must
    be done is printed on stderr.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"--name is {name!r}, which is not a resource's name", "such as GPU")
    if file is not None and not writes:
        raise UsageError("FILE is for --write", "without it the resources are printed")
    path = os.path.abspath(file or daemonjson.PATH)
    settings = read_settings(config, None)
    here = present.nvidia(root, settings.driver_root)
    ours = [f"{name}={device}" for device in devices(here, shares)]
    told = [f"GPU {index} is not healthy: {why}" for index, why in leased.unhealthy_gpus(root, here).items()]
    if writes:
        found = enginefile.read_settings_file(root, path)
        values = daemonjson.values(found)
        wanted = merged(values, path, name, ours)
        is_new = values.get(KEY) != wanted
        if is_new:
            enginefile.write(root, found, daemonjson.with_value(found.text, (KEY,), wanted))
        counted = f"{len(ours)} {name} resource{'' if len(ours) == 1 else 's'}"
        click.echo(f"wrote {path}: {counted}" if is_new else f"{path} has these {counted} already")
        further = [*advice(values, settings, name, path), *_named_twice(wanted, ours)]
        told += [*further, *(["restart dockerd: systemctl restart docker"] if is_new or further else [])]
    else:
        click.echo(json.dumps({KEY: ours}, indent=4))
        values = {}
        # Printing must not depend on what the file says.
        with suppress(ConfigError):
            values = daemonjson.values(enginefile.read_settings_file(root, path))
        told += advice(values, settings, name, path)
        if values.get(KEY) != ours:
            told.append(f"put it into {path} (--write does), then restart dockerd: systemctl restart docker")
    for sentence in told:
        click.echo(sentence, err=True)


def devices(found: DriverInventory, shares: int | None) -> list[str]:
    """The names of all GPUs and MIG devices that a task can have; DriverError for one whose name is not known.

    First come the first shares of all GPUs: Swarm gives them away in this order, until some have come back.
    """
    whole, parts = [], []
    for gpu in found.gpus:
        migs = [device for device in found.mig_devices if device.gpu == gpu.nvml_index]
        if not migs and not gpu.uuid:
            raise DriverError(f"GPU {gpu.nvml_index} has no UUID before its first use", _REFRESH)
        if not all(device.uuid for device in migs):
            raise DriverError(f"GPU {gpu.nvml_index} has MIG devices without a UUID", _REFRESH)
        parts += [str(device.uuid) for device in migs]
        whole += [] if migs else [str(gpu.uuid)]
    if not whole and not parts:
        raise DriverError("the NVIDIA driver is loaded but drives no GPU", "look at the kernel's log")
    if shares is not None:
        whole = [f"{uuid}-{number}" for number in range(shares) for uuid in whole]
    return [*parts, *whole]


def merged(values: dict[str, Any], path: str, name: str, ours: list[str]) -> list[str]:
    """The resources of the file with ours in the place of those that had this name; the others stay.

    ConfigError if dockerd would not read those that are there.
    """
    old = values.get(KEY) or []
    if not isinstance(old, list) or not all(isinstance(item, str) for item in old):
        raise ConfigError(f"{KEY} in {path} is not a list of strings", "fix it first")
    kinds = [item.partition("=")[0].strip() for item in old]
    place = kinds.index(name) if name in kinds else len(old)
    kept = [item for item, kind in zip(old[place:], kinds[place:]) if kind != name]
    return [*old[:place], *ours, *kept]


def advice(values: dict[str, Any], settings: Settings, name: str, path: str) -> list[str]:
    """What else is needed, a sentence each: our setting, and dockerd's runtime."""
    variable = SWARM_VARIABLE + name.upper()
    told = []
    if variable not in settings.swarm_resources:
        value = ", ".join([*settings.swarm_resources, variable])
        told.append(f"set in {SETTINGS}: swarm-resources = {value}")
    if not _serves_by_default(values):
        told.append(f'set in {path}, as a service can name no runtime: "default-runtime": "{RUNTIME}", {RUNTIMES}')
    if values.get("live-restore") is True:
        told.append(f'remove "live-restore" from {path}: dockerd has either that or Swarm')
    if not variable.replace("_", "").isalnum():
        told.append(
            f"no shell shows a variable named {variable}: a script that must know its share needs another --name"
        )
    return told


def _serves_by_default(values: dict[str, Any]) -> bool:
    """Whether the default runtime, by whatever name, is ours."""
    runtimes, default = values.get("runtimes"), values.get("default-runtime")
    found = runtimes.get(default) if isinstance(runtimes, dict) else None
    path = found.get("path") if isinstance(found, dict) else None
    return isinstance(path, str) and path.rpartition("/")[2] == RUNTIME


def _named_twice(wanted: list[str], ours: list[str]) -> list[str]:
    """A sentence if the file gives the same GPUs away under another name."""
    mine = {item.partition("=")[2][:40] for item in ours}
    others = [item for item in wanted if item not in ours and item.partition("=")[2][:40] in mine]
    return [f"{others[0]} is there too: Swarm would give that GPU away twice"] if others else []
