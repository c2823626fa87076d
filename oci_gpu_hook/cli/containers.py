# SPDX-License-Identifier: Apache-2.0
"""``containers``: which container holds which GPU or other device, and which are free.  No GPU is opened."""

from __future__ import annotations

import datetime
import os
from typing import Any

import click

from oci_gpu_hook.cli import accelerators
from oci_gpu_hook.cli.options import columns, config_and_host, output_format, show
from oci_gpu_hook.driver.inventory import DriverInventory
from oci_gpu_hook.errors import DriverError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.diagnosis import holders
from oci_gpu_hook.node.diagnosis.holders import HeldShare, Holder, Holders
from oci_gpu_hook.node.engines import containerdevices
from oci_gpu_hook.node.engines.containerdevices import AllContainers, ContainerDevices
from oci_gpu_hook.node.engines.containers import SHORT_ID
from oci_gpu_hook.node.gpus import hardware, holdercount
from oci_gpu_hook.planning.plan import some
from oci_gpu_hook.report.records import printable
from oci_gpu_hook.request.settings import read_settings

FAMILIES = ("caps", "dri", "modeset")  # whose nodes tell who can compute or draw
_HEADINGS = ("CONTAINER", "ID", "ENGINE", "RUNTIME", "GPU", "OTHERS", "SINCE")


@click.command()
@output_format
@config_and_host
def containers(is_json: bool, config: str | None, host: HostRoot) -> None:
    """Show which running container holds which GPU, and which GPUs are free; other vendors' devices as well.

    It is read from the containers themselves, their device nodes, mounts and cgroups: no engine is asked, nothing is
    remembered, and no GPU is opened.  A container holds a GPU that it may open, if it has the node or if its device
    cgroup was written for that GPU, no matter who gave it.  One that may open no node to compute or draw by, such as a
    device plugin, only watches it.
    """
    settings = read_settings(config, None, host.path)
    nvidia, most = accelerators.NOTHING, settings.gpu_holders
    try:
        nvidia = accelerators.of_server(host, settings.driver_root, FAMILIES)
    except DriverError:
        if not any([it.nodes() for it in hardware.proven(host)]):
            raise
    held, found = find_holders(host, nvidia)
    counted = holdercount.count_holders(host, nvidia, most)
    room = [it.title for it in counted if it.has_room]
    leases = [_leased(it) for it in counted]
    lines = [f"{it['device']} is not healthy: {it['unhealthy']}" for it in leases if it["unhealthy"]]
    of_each = f", of {most} {'holder' if most == 1 else 'holders'} each" if most else ""
    if most or any([it.leases for it in counted]):
        lines.append(f"devices with room{of_each}: {', '.join(room) or 'none'}")
    lines += [f"{it['device']} is leased by {', '.join(map(_leaser, it['holders']))}" for it in leases if it["holders"]]
    more = {"gpu_holders": most, "leases": leases}
    show(is_json, {**document(held, found), **more}, [*lines_of(held, found), *lines])


def find_holders(host: HostRoot, nvidia: DriverInventory) -> tuple[Holders, AllContainers]:
    """nvidia: with the nodes of `FAMILIES`."""
    vendors = hardware.proven(host)
    others = [item for vendor in vendors for item in holders.of_vendor(vendor)]
    divided, uses = (*holders.divisions(nvidia), *others), holders.to_use(nvidia)
    nodes = tuple([(node.path, node.major, node.minor) for vendor in vendors for node in vendor.nodes()])
    found = containerdevices.find_devices(host, holders.what_to_find(divided, nodes, uses))
    return holders.holders(divided, found.containers, uses), found


def _leased(it: holdercount.Counted) -> dict[str, Any]:
    found = [(lease.id, lease.pid, _time(lease.since), dict(lease.memory).get(it.key, 0)) for lease in it.leases]
    found_holders = [dict(zip(("id", "pid", "since", "memory"), row)) for row in found]
    return {"device": it.title, "holders": found_holders, "unhealthy": it.unhealthy}


def _leaser(lease: dict[str, Any]) -> str:
    memory = f" ({lease['memory'] >> 20} MiB)" if lease["memory"] else ""
    return f"{lease['id'][:SHORT_ID]} since {lease['since']}{memory}"


def document(held: Holders, found: AllContainers) -> dict[str, object]:
    return {
        "containers": [_row(item) for item in held.holding],
        **_kinds("free", "free_others", held.free),
        **_kinds("open", "open_others", held.open),
        "privileged": [{"id": it.running.id, "name": _called(it), "pid": it.running.pid} for it in held.privileged],
        "unseen_processes": found.unseen,
        "unlooked_containers": found.unlooked,
    }


def _kinds(name: str, others: str, shares: tuple[HeldShare, ...]) -> dict[str, object]:
    return {
        name: [dict(zip(("name", "gpu", "mig", "uuid", "model"), share)) for share in shares if not share.flag],
        others: [{"name": it.name, "flag": it.flag, "names": it.names} for it in shares if it.flag],
    }


def lines_of(held: Holders, found: AllContainers) -> list[str]:
    holding, unseen = held.holding, found.unseen
    is_partial = bool(unseen) and os.geteuid() != 0
    where = " that you may look into" if is_partial else ""
    cells = zip(_HEADINGS, *map(_cells, holding))
    table = [column for column in cells if column[0] != "OTHERS" or {*column[1:]} != {"-"}]
    lines = columns(zip(*table)) if holding else [f"no container{where} holds a device"]
    lines += ["", f"held by no container{where}: {_list(held.free)}"]
    who = some([printable(_called(item)) for item in held.privileged])
    if held.open:
        lines += [f"held by no container, and open to privileged containers ({who}): {_list(held.open)}"]
    lines += [note for item in holding for note in _notes(item)]
    if not all([item.is_certain for item in holding]):
        lines.append("whether the device cgroups allow what is there cannot be read here")
    if is_partial:
        lines.append(f"{unseen} processes of other users could not be looked into: run it as root")
    if found.unlooked:
        lines.append(f"there was no time for {found.unlooked} more containers: their devices are not known")
    return lines


def _notes(item: Holder) -> list[str]:
    lines = []
    more = f": oci-gpu-hook doctor --container {item.container.running.pid}"
    if item.denied:
        lines.append(f"{_name(item)} has the node of {_shown(item.denied)}, and its device cgroup denies it{more}")
    if item.hidden:
        lines.append(f"{_name(item)} may open {_shown(item.hidden)}, and no node of it was found in its /dev{more}")
    if item.watches and (held := [share for share in item.held if not share.flag]):
        lines.append(f"{_name(item)} watches {_shown(tuple(held))}, and can compute on none")
    for use in item.container.memory:
        peak = f", had {use.peak >> 20} at most" if use.peak else ""
        limit = f", may have {use.limit >> 20}" if use.limit else ""
        address = use.address.removeprefix("0000")
        lines.append(f"{_name(item)} has {use.used >> 20} MiB of the memory of {address}{peak}{limit}")
    if not item.container.is_whole:
        lines.append(f"{_name(item)} has more in its /dev than was looked at")
    return lines


def _list(shares: tuple[HeldShare, ...]) -> str:
    return ", ".join([share.name for share in shares]) or "none"


def _called(container: ContainerDevices) -> str:
    return container.running.shown or f"process {container.running.pid}"


def _row(item: Holder) -> dict[str, object]:
    running = item.container.running
    return {
        "id": running.id,
        **{name: getattr(running.called, name) for name in ("name", "pod", "namespace", "engine")},
        "runtime": running.runtime,
        "user": running.owner,
        "pid": running.pid,
        "since": _time(item.container.since),
        **_kinds("gpus", "others", item.held),
        **_kinds("denied", "denied_others", item.denied),
        **_kinds("hidden", "hidden_others", item.hidden),
        "watches": item.watches,
        "nodes": item.container.nodes,
        "memory": item.container.memory,
    }


def _cells(item: Holder) -> tuple[str, ...]:
    running = item.container.running
    id = running.id[:SHORT_ID] if running.id != running.shown else ""
    gpus = ",".join([share.name for share in item.held if not share.flag])
    others = " ".join([share.name for share in item.held if share.flag])
    found = (_name(item), id, running.called.engine, running.runtime, gpus, others, _time(item.container.since))
    return tuple([cell or "-" for cell in found])


def _name(item: Holder) -> str:
    whose = item.container.running.of_user
    return printable(_called(item.container)) + (f" ({whose})" if whose else "")


def _time(seconds: int) -> str:
    return datetime.datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")


def _shown(shares: tuple[HeldShare, ...]) -> str:
    return ", ".join([share.name if share.flag else f"GPU {share.name}" for share in shares])
