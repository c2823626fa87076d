# SPDX-License-Identifier: Apache-2.0
"""This host's GPUs as generic resources of Docker Swarm, which gives each task its own.  Must not write a file."""

from __future__ import annotations

from typing import Any

from oci_gpu_hook.driver.inventory import DriverInventory
from oci_gpu_hook.errors import ConfigError, DriverError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.engines import installed
from oci_gpu_hook.node.engines.installed import RESOURCES
from oci_gpu_hook.node.setup import daemonjson
from oci_gpu_hook.node.setup.configuration import Change
from oci_gpu_hook.node.setup.enginefile import EngineFile
from oci_gpu_hook.request.settings import SETTINGS, Settings
from oci_gpu_hook.request.sources import SWARM_VARIABLE


def with_resources(
    host: HostRoot, file: EngineFile, change: Change, settings: Settings, name: str, named: list[str]
) -> Change:
    """daemon.json with these devices as resources of this name too, and what else Swarm's tasks need."""
    values = daemonjson.values(file._replace(text=change.text))
    ours = [f"{name}={device}" for device in named]
    wanted = merged(values, file.path, name, ours)
    text = change.text if values.get(RESOURCES) == wanted else daemonjson.with_value(change.text, (RESOURCES,), wanted)
    return Change(text, (*change.told, *advice(host, values, settings, name), *_named_twice(wanted, ours)))


def devices(found: DriverInventory, shares: int | None) -> list[str]:
    """The names of all GPUs and MIG devices that a task can have; DriverError for one whose name is not known.

    First come the first shares of all GPUs: Swarm gives them away in this order, until some have come back.
    """
    whole, parts = list[str](), list[str]()
    for gpu in found.gpus:
        migs = [device for device in found.mig_devices if device.gpu == gpu.nvml_index]
        uuids = [device.uuid for device in migs] or [gpu.uuid]
        if not all(uuids):
            why = "MIG devices without a UUID" if migs else "no UUID before its first use"
            raise DriverError(f"GPU {gpu.nvml_index} has {why}", "run 'oci-gpu-hook inventory refresh'")
        (parts if migs else whole).extend(map(str, uuids))
    if not whole and not parts:
        raise DriverError("the NVIDIA driver is loaded but drives no GPU", "look at the kernel's log")
    if shares is not None:
        whole = [f"{uuid}-{number}" for number in range(shares) for uuid in whole]
    return [*parts, *whole]


def merged(values: dict[str, Any], path: str, name: str, ours: list[str]) -> list[str]:
    """The resources of the file with ours in the place of those that had this name; the others stay.

    ConfigError if dockerd would not read those that are there.
    """
    old = values.get(RESOURCES) or []
    if not isinstance(old, list) or not all(isinstance(item, str) for item in old):
        raise ConfigError(f"{RESOURCES} in {path} is not a list of strings", "fix it first")
    kinds = [item.partition("=")[0].strip() for item in old]
    place = kinds.index(name) if name in kinds else len(old)
    kept = [item for item, kind in zip(old[place:], kinds[place:]) if kind != name]
    return [*old[:place], *ours, *kept]


def advice(host: HostRoot, values: dict[str, Any], settings: Settings, name: str) -> list[str]:
    """What else is needed, a sentence each: our setting, and dockerd's runtime."""
    variable, listed = SWARM_VARIABLE + name.upper(), settings.swarm_resources
    told = [] if variable in listed else [f"set in {SETTINGS}: swarm-resources = {', '.join([*listed, variable])}"]
    runtimes = values.get("runtimes")
    default = runtimes.get(str(values.get("default-runtime"))) if isinstance(runtimes, dict) else None
    if not (isinstance(default, dict) and installed.is_ours(host, str(default.get("path")))):
        told.append("a service can name no runtime, and the default one is not ours: --set-as-default makes it so")
    return told


def _named_twice(wanted: list[str], ours: list[str]) -> list[str]:
    """A sentence if the file gives the same GPUs away under another name."""
    mine = {item.partition("=")[2][:40] for item in ours}
    others = [item for item in wanted if item not in ours and item.partition("=")[2][:40] in mine]
    return [f"{others[0]} is there too: Swarm would give that GPU away twice"] if others else []
