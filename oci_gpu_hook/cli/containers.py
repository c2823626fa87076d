# SPDX-License-Identifier: Apache-2.0
"""``containers``: which running container holds which GPU, and which GPUs nobody holds."""

from __future__ import annotations

import datetime
import os
from typing import TYPE_CHECKING, Any

import click

from oci_gpu_hook.cli import onhost
from oci_gpu_hook.cli.options import config_file, host_root, output_format, show
from oci_gpu_hook.diagnosis import holders
from oci_gpu_hook.driver import inventory as saved_inventory
from oci_gpu_hook.driver import survey
from oci_gpu_hook.host import contained, kernel
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.report.entry import printable
from oci_gpu_hook.request.settings import read_settings

if TYPE_CHECKING:
    from oci_gpu_hook.diagnosis.holders import Holder, Share
    from oci_gpu_hook.driver.inventory import DriverInventory

_HEADINGS = ("CONTAINER", "ID", "ENGINE", "RUNTIME", "GPU", "SINCE")
_SHORT_ID = 12


@click.command()
@output_format
@config_file
@host_root
def containers(form: str, config: str | None, host_root: str) -> None:
    """Show which running container holds which GPU, and which GPUs nobody holds.

    It is read from the containers themselves, their device nodes, mounts and cgroups: no engine is asked, nothing is
    remembered, and no GPU is opened.  A container holds a GPU whose node it has and may open, whoever has given it.
    """
    root = HostRoot(host_root)
    inventory = _inventory(root, read_settings(config, {}, root.path.rstrip("/")).driver_root)
    divided = holders.divisions(inventory)
    majors = tuple({major for item in divided for major, _ in item.numbers})
    found = contained.look(root, majors, kernel.look(root).cgroups)
    holding, free = holders.holders(divided, found.containers)
    text = as_text(holding, free, found.unseen)
    show(form, document(holding, free, found.unseen), text, _painted)


def document(
    holding: tuple[Holder, ...], free: tuple[Share, ...], unseen: int
) -> dict[str, object]:
    """The containers for JSON."""
    return {
        "containers": [_row(item) for item in holding],
        "free": [share._asdict() for share in free],
        "unseen_processes": unseen,
    }


def as_text(holding: tuple[Holder, ...], free: tuple[Share, ...], unseen: int) -> str:
    """One line for each container, then the GPUs that nobody holds, then what must be said of single ones."""
    rows = [_HEADINGS, *[_cells(item) for item in holding]]
    widths = [max([len(row[at]) for row in rows]) for at in range(len(_HEADINGS))]
    lines = [
        "  ".join([cell.ljust(width) for cell, width in zip(row, widths)]).rstrip() for row in rows
    ]
    is_partial = bool(unseen) and os.geteuid() != 0
    where = " that you may look into" if is_partial else ""
    if not holding:
        lines = [f"no container{where} holds a GPU"]
    names = ", ".join([share.name for share in free]) or "none"
    lines += [
        "",
        f"held by no container{where}: {names}" if is_partial else f"held by nobody: {names}",
    ]
    for item in holding:
        if item.denied:
            denied = ", ".join([share.name for share in item.denied])
            text = f"{_name(item)} has the node of GPU {denied}, and its device cgroup denies it"
            lines.append(f"{text}: oci-gpu-hook doctor --container {item.container.running.pid}")
    if not all([item.is_certain for item in holding]):
        lines.append("whether the device cgroups allow what is there cannot be read here")
    if is_partial:
        lines.append(f"{unseen} processes of other users could not be looked into: run it as root")
    return "\n".join(lines)


def _painted(line: str) -> str:
    """The headings stand out."""
    return click.style(line, bold=True) if line.split() == list(_HEADINGS) else line


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
        "gpus": [share._asdict() for share in item.held],
        "denied": [share._asdict() for share in item.denied],
        "nodes": [node._asdict() for node in item.container.nodes],
    }


def _cells(item: Holder) -> tuple[str, ...]:
    running = item.container.running
    id = running.id[:_SHORT_ID] if running.id != running.shown else ""
    gpus = ",".join([share.name for share in item.held]) or "-"
    return (
        _name(item),
        id or "-",
        running.called.engine or "-",
        running.runtime or "-",
        gpus,
        _time(item.container.since),
    )


def _name(item: Holder) -> str:
    running = item.container.running
    return printable(running.shown) or f"process {running.pid}"


def _time(seconds: int) -> str:
    """Local time with its offset."""
    return datetime.datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")


def _inventory(root: HostRoot, driver_root: str) -> DriverInventory:
    """The saved inventory while it is true, as only that knows MIG devices by number; nothing is saved here."""
    onhost.check_is_server(root)
    found = survey.current(root, driver_root)
    return saved_inventory.with_nodes(root, found, ("caps",), driver_root=driver_root)
