# SPDX-License-Identifier: Apache-2.0
"""``containers``: which running container holds which GPU or other device, and which of them nobody holds."""

from __future__ import annotations

import datetime
import os
from typing import TYPE_CHECKING, Any

import click

from oci_gpu_hook.cli import onhost
from oci_gpu_hook.cli.options import config_file, host_root, output_format, show
from oci_gpu_hook.diagnosis import holders
from oci_gpu_hook.diagnosis.holders import Other, Share
from oci_gpu_hook.driver import inventory as saved_inventory
from oci_gpu_hook.driver import survey
from oci_gpu_hook.errors import DriverError
from oci_gpu_hook.host import contained, kernel
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.report.entry import printable
from oci_gpu_hook.request.settings import read_settings
from oci_gpu_hook.vendors import present

if TYPE_CHECKING:
    from oci_gpu_hook.diagnosis.holders import Division, Holder
    from oci_gpu_hook.driver.inventory import DriverInventory

_OTHERS = "OTHERS"
_HEADINGS = ("CONTAINER", "ID", "ENGINE", "RUNTIME", "GPU", _OTHERS, "SINCE")
_SHORT_ID = 12


@click.command()
@output_format
@config_file
@host_root
def containers(form: str, config: str | None, host_root: str) -> None:
    """Show which running container holds which GPU, and which GPUs nobody holds; other vendors' devices as well.

    It is read from the containers themselves, their device nodes, mounts and cgroups: no engine is asked, nothing is
    remembered, and no GPU is opened.  A container holds a GPU whose node it has and may open, whoever has given it.
    """
    root = HostRoot(host_root)
    vendors = present.look(root).vendors
    others = [item for vendor in vendors for item in holders.of_vendor(vendor)]
    gpus = _gpus(root, config, is_needed=not others)
    majors = tuple({major for item in gpus for major, _ in item.numbers})
    nodes = tuple(
        [(node.path, node.major, node.minor) for vendor in vendors for node in vendor.nodes()]
    )
    found = contained.look(root, majors, kernel.look(root).cgroups, nodes)
    holding, free = holders.holders((*gpus, *others), found.containers)
    text = as_text(holding, free, found.unseen, with_others=bool(others))
    show(form, document(holding, free, found.unseen), text, _painted)


def document(
    holding: tuple[Holder, ...], free: tuple[Share | Other, ...], unseen: int
) -> dict[str, object]:
    """The containers for JSON."""
    return {
        "containers": [_row(item) for item in holding],
        "free": _shares(free),
        "free_others": _others(free),
        "unseen_processes": unseen,
    }


def as_text(
    holding: tuple[Holder, ...],
    free: tuple[Share | Other, ...],
    unseen: int,
    *,
    with_others: bool = False,
) -> str:
    """One line for each container, then the devices that nobody holds, then what must be said of single ones.

    with_others: whether there are devices of other vendors, which get a column.
    """
    columns = [at for at, name in enumerate(_HEADINGS) if with_others or name != _OTHERS]
    rows = [[row[at] for at in columns] for row in (_HEADINGS, *map(_cells, holding))]
    widths = [max([len(row[at]) for row in rows]) for at in range(len(columns))]
    lines = [
        "  ".join([cell.ljust(width) for cell, width in zip(row, widths)]).rstrip() for row in rows
    ]
    is_partial = bool(unseen) and os.geteuid() != 0
    where = " that you may look into" if is_partial else ""
    if not holding:
        lines = [f"no container{where} holds a GPU{' or another device' if with_others else ''}"]
    names = ", ".join([share.name for share in free]) or "none"
    lines += [
        "",
        f"held by no container{where}: {names}" if is_partial else f"held by nobody: {names}",
    ]
    for item in holding:
        if item.denied:
            denied = ", ".join([_shown(share) for share in item.denied])
            text = f"{_name(item)} has the node of {denied}, and its device cgroup denies it"
            lines.append(f"{text}: oci-gpu-hook doctor --container {item.container.running.pid}")
    if not all([item.is_certain for item in holding]):
        lines.append("whether the device cgroups allow what is there cannot be read here")
    if is_partial:
        lines.append(f"{unseen} processes of other users could not be looked into: run it as root")
    return "\n".join(lines)


def _painted(line: str) -> str:
    """The headings stand out."""
    return click.style(line, bold=True) if line.split()[:4] == list(_HEADINGS[:4]) else line


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
        "pid": running.pid,
        "since": _time(item.container.since),
        "gpus": _shares(item.held),
        "denied": _shares(item.denied),
        "others": _others(item.held),
        "denied_others": _others(item.denied),
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
    return printable(running.shown) or f"process {running.pid}"


def _time(seconds: int) -> str:
    """Local time with its offset."""
    return datetime.datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")


def _shown(share: Share | Other) -> str:
    return f"GPU {share.name}" if isinstance(share, Share) else share.name


def _shares(shares: tuple[Share | Other, ...]) -> list[dict[str, Any]]:
    return [share._asdict() for share in shares if isinstance(share, Share)]


def _others(shares: tuple[Share | Other, ...]) -> list[dict[str, Any]]:
    return [
        {**share._asdict(), "names": list(share.names)}
        for share in shares
        if isinstance(share, Other)
    ]


def _gpus(root: HostRoot, config: str | None, *, is_needed: bool) -> tuple[Division, ...]:
    """What can be held of NVIDIA's; DriverError without its driver, unless there is something else to show."""
    driver_root = read_settings(config, {}, root.path.rstrip("/")).driver_root
    try:
        return holders.divisions(_inventory(root, driver_root))
    except DriverError:
        if is_needed:
            raise
        return ()


def _inventory(root: HostRoot, driver_root: str) -> DriverInventory:
    """The saved inventory while it is true, as only that knows MIG devices by number; nothing is saved here."""
    onhost.check_is_server(root)
    found = survey.current(root, driver_root)
    return saved_inventory.with_nodes(root, found, ("caps",), driver_root=driver_root)
