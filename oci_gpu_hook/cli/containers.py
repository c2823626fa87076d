# SPDX-License-Identifier: Apache-2.0
"""``containers``: which running container holds which GPU or other device, and which of them nobody holds."""

from __future__ import annotations

import datetime
import os
from typing import TYPE_CHECKING, Any

import click

from oci_gpu_hook.cli import onhost, watching
from oci_gpu_hook.cli.options import LONGEST_SECONDS, Seconds, config_file, host_root, output_format, show
from oci_gpu_hook.cli.render import columns, joined
from oci_gpu_hook.driver import survey
from oci_gpu_hook.errors import DriverError, UsageError
from oci_gpu_hook.host.leases import has_room
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.diagnosis import holders, listed
from oci_gpu_hook.node.diagnosis.holders import Other, Share
from oci_gpu_hook.node.engines import containerdevices
from oci_gpu_hook.node.gpus import leased, present
from oci_gpu_hook.report.entry import printable
from oci_gpu_hook.request.settings import read_settings

if TYPE_CHECKING:
    from oci_gpu_hook.node.diagnosis.holders import Division, Holder, Holders
    from oci_gpu_hook.node.engines.containerdevices import ContainerDevices, Found
    from oci_gpu_hook.node.gpus.leased import Counted

_OTHERS = "OTHERS"
_HEADINGS = ("CONTAINER", "ID", "ENGINE", "RUNTIME", "GPU", _OTHERS, "SINCE")
_SHORT_ID = 12


@click.command()
@click.option(
    "--watch",
    "seconds",
    metavar="SECONDS",
    type=Seconds(0.1, LONGEST_SECONDS),
    help="Show each device, how busy it is and who holds it, again every so many seconds.",
)
@output_format
@config_file
@host_root
def containers(seconds: float | None, form: str, config: str | None, host_root: str) -> None:
    """Show which running container holds which GPU, and which GPUs nobody holds; other vendors' devices as well.

    It is read from the containers themselves, their device nodes, mounts and cgroups: no engine is asked, nothing is
    remembered, and no GPU is opened.  A container holds a GPU whose node it has and may open, whoever has given it.
    With --watch, what the metrics of GPUs say of their use is shown too, if their timer runs; ^C ends it.
    """
    root = HostRoot(host_root)
    if seconds is None:
        held, found, with_others = _look(root, config)
        counted, most = _counted(root, config)
        told = _told(counted, most)
        text = as_text(held, found, with_others=with_others) + (f"\n{joined(told)}" if told else "")
        show(form, {**document(held, found), **_documented(counted, most)}, text, _painted)
        return
    if form != "text":
        raise UsageError("--watch shows lines for people: without it --format json gives one look")
    metrics = read_settings(config, None, root.path.rstrip("/")).gpu_metrics
    watching.repeat(lambda: watching.table(_look(root, config)[0], watching.utilization(metrics), _name), seconds)


def _look(root: HostRoot, config: str | None) -> tuple[Holders, Found, bool]:
    """Who holds what, what was looked at, and whether there are other vendors' devices."""
    vendors = present.look(root).vendors
    others = [item for vendor in vendors for item in holders.of_vendor(vendor)]
    gpus = _gpus(root, config, is_needed=not others)
    nodes = tuple([(node.path, node.major, node.minor) for vendor in vendors for node in vendor.nodes()])
    wanted = holders.wanted((*gpus, *others), nodes)
    found = containerdevices.look(root, wanted)
    return holders.holders((*gpus, *others), found.containers), found, bool(others)


def _counted(root: HostRoot, config: str | None) -> tuple[tuple[Counted, ...], int]:
    """The leases and the health of this host's devices, and the setting gpu-holders."""
    settings = read_settings(config, None, root.path.rstrip("/"))
    try:
        found = survey.current(root, settings.driver_root)
    except DriverError:
        found = None
    return leased.look(root, found, settings.gpu_holders), settings.gpu_holders


def _told(counted: tuple[Counted, ...], most: int) -> list[str]:
    """What must be said of leases, if holders are counted, and of GPUs that are not healthy."""
    lines = [f"{it.title} is not healthy: {it.unhealthy}" for it in counted if it.unhealthy]
    room = [it.title for it in counted if has_room([*it.leases], most) and not it.unhealthy]
    if most:
        lines.append(f"devices with room, of {most} holders each: {', '.join(room) or 'none'}")
    for it in counted:
        who = ", ".join([f"{lease.id[:_SHORT_ID]} since {_time(lease.since)}" for lease in it.leases])
        lines += [f"{it.title} is leased by {who}"] if who else []
    return lines


def _documented(counted: tuple[Counted, ...], most: int) -> dict[str, object]:
    rows = [
        {
            "device": it.title,
            "holders": [{"id": lease.id, "pid": lease.pid, "since": _time(lease.since)} for lease in it.leases],
            "unhealthy": it.unhealthy,
        }
        for it in counted
    ]
    return {"gpu_holders": most, "leases": rows}


def document(held: Holders, found: Found) -> dict[str, object]:
    """The containers for JSON."""
    return {
        "containers": [_row(item) for item in held.holding],
        "free": _shares(held.free),
        "free_others": _others(held.free),
        "open": _shares(held.open),
        "open_others": _others(held.open),
        "privileged": [_named(item) for item in held.privileged],
        "unseen_processes": found.unseen,
        "unlooked_containers": found.unlooked,
        "all_named": found.all_named,
    }


def as_text(held: Holders, found: Found, *, with_others: bool = False) -> str:
    """One line for each container, then the devices that nobody holds, then what must be said of single ones.

    with_others: whether there are devices of other vendors, which get a column.
    """
    holding, unseen = held.holding, found.unseen
    shown = [at for at, name in enumerate(_HEADINGS) if with_others or name != _OTHERS]
    rows = [tuple([row[at] for at in shown]) for row in (_HEADINGS, *map(_cells, holding))]
    lines = columns(rows)
    is_partial = bool(unseen) and os.geteuid() != 0
    where = " that you may look into" if is_partial else ""
    if not holding:
        lines = [f"no container{where} holds a GPU{' or another device' if with_others else ''}"]
    lines += ["", f"held by {'no container' + where if is_partial else 'nobody'}: {_list(held.free)}"]
    if held.open:
        who = listed([printable(_named(item)["name"]) for item in held.privileged])
        lines.append(f"held by nobody, and open to privileged containers ({who}): {_list(held.open)}")
    for item in holding:
        lines += _notes(item)
    if not all([item.is_certain for item in holding]):
        lines.append("whether the device cgroups allow what is there cannot be read here")
    if is_partial:
        lines.append(f"{unseen} processes of other users could not be looked into: run it as root")
    if found.unlooked:
        lines.append(f"there was no time for {found.unlooked} more containers: their devices are not known")
    if not found.all_named:
        lines.append("there was no time for all files of users: names of their containers may be missing")
    return joined(lines)


def _notes(item: Holder) -> list[str]:
    """What must be said of one container."""
    lines = []
    more = f": oci-gpu-hook doctor --container {item.container.running.pid}"
    if item.denied:
        lines.append(f"{_name(item)} has the node of {_shown(item.denied)}, and its device cgroup denies it{more}")
    if item.hidden:
        lines.append(f"{_name(item)} may open {_shown(item.hidden)}, and no node of it was found in its /dev{more}")
    if not item.container.is_whole:
        lines.append(f"{_name(item)} has more in its /dev than was looked at")
    return lines


def _list(shares: tuple[Share | Other, ...]) -> str:
    return ", ".join([share.name for share in shares]) or "none"


def _painted(line: str) -> str:
    """The headings stand out."""
    return click.style(line, bold=True) if line.split()[:4] == list(_HEADINGS[:4]) else line


def _named(container: ContainerDevices) -> dict[str, Any]:
    running = container.running
    return {
        "id": running.id,
        "name": running.called.shown or running.id or f"process {running.pid}",
        "pid": running.pid,
    }


def _row(item: Holder) -> dict[str, Any]:
    running = item.container.running
    called = running.called
    return {
        "id": running.id,
        "name": called.name,
        "pod": called.pod,
        "namespace": called.namespace,
        "engine": called.engine,
        "runtime": running.runtime,
        "user": running.owner,
        "pid": running.pid,
        "since": _time(item.container.since),
        "gpus": _shares(item.held),
        "denied": _shares(item.denied),
        "hidden": _shares(item.hidden),
        "others": _others(item.held),
        "denied_others": _others(item.denied),
        "hidden_others": _others(item.hidden),
        "nodes": [node._asdict() for node in item.container.nodes],
    }


def _cells(item: Holder) -> tuple[str, ...]:
    running = item.container.running
    id = running.id[:_SHORT_ID] if running.id != running.shown else ""
    gpus = ",".join([share.name for share in item.held if isinstance(share, Share)]) or "-"
    others = " ".join([share.name for share in item.held if isinstance(share, Other)]) or "-"
    return (
        _name(item),
        id or "-",
        running.called.engine or "-",
        running.runtime or "-",
        gpus,
        others,
        _time(item.container.since),
    )


def _name(item: Holder) -> str:
    running = item.container.running
    whose = f" ({running.of_user})" if running.of_user else ""
    return (printable(running.shown) or f"process {running.pid}") + whose


def _time(seconds: int) -> str:
    """Local time with its offset."""
    return datetime.datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")


def _shown(shares: tuple[Share | Other, ...]) -> str:
    return ", ".join([f"GPU {share.name}" if isinstance(share, Share) else share.name for share in shares])


def _shares(shares: tuple[Share | Other, ...]) -> list[dict[str, Any]]:
    return [share._asdict() for share in shares if isinstance(share, Share)]


def _others(shares: tuple[Share | Other, ...]) -> list[dict[str, Any]]:
    return [{**share._asdict(), "names": list(share.names)} for share in shares if isinstance(share, Other)]


def _gpus(root: HostRoot, config: str | None, *, is_needed: bool) -> tuple[Division, ...]:
    """What can be held of NVIDIA's; DriverError without its driver, unless there is something else to show."""
    driver_root = read_settings(config, None, root.path.rstrip("/")).driver_root
    try:
        return holders.divisions(onhost.of_server(root, driver_root, ("caps",)))
    except DriverError:
        if is_needed:
            raise
        return ()
