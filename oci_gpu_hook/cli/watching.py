# SPDX-License-Identifier: Apache-2.0
"""``containers --watch``: the node's GPUs, how busy they are and who holds them, shown again and again until ^C.

On a terminal it is one screen, cut to its size; else one block for each look.  How busy a GPU is comes from what the
unit for GPUs' metrics has written last: no GPU is opened here.
"""

from __future__ import annotations

import datetime
import re
import shutil
import sys
import time
from typing import TYPE_CHECKING, Callable

import click

from oci_gpu_hook.cli import named
from oci_gpu_hook.cli.render import columns
from oci_gpu_hook.errors import LONGEST_LIST, plain
from oci_gpu_hook.node.diagnosis.holders import Share
from oci_gpu_hook.node.exporters.exposition import PREFIX

if TYPE_CHECKING:
    from oci_gpu_hook.node.diagnosis.holders import Holders, Other

_HEADINGS = ("DEVICE", "MODEL", "BUSY", "HELD BY")
_BUSY = re.compile(rf'^{PREFIX}gpu_utilization_ratio{{uuid="(GPU-[0-9a-f-]+)"}} ([0-9.e-]+)$', re.MULTILINE)
_LARGEST_METRICS = 4 << 20


def utilization(path: str) -> dict[str, float]:
    """How busy each GPU is, 0 to 1 by UUID, as the metrics file at `path` says; nothing without one."""
    try:
        text = named.content(path, _LARGEST_METRICS).decode("utf-8", "replace") if path else ""
        return {uuid: float(value) for uuid, value in _BUSY.findall(text)}
    except (OSError, ValueError):
        return {}


def table(held: Holders, busy: dict[str, float], name: Callable[..., str]) -> list[str]:
    """One line for each device, NVIDIA's first; `name` gives a holder's."""
    who: dict[Share | Other, list[str]] = {item: [] for item in (*held.free, *held.open)}
    for holder in held.holding:
        for item in holder.held:
            who.setdefault(item, []).append(name(holder))
    rows = [
        (
            item.name,
            item.model if isinstance(item, Share) else "",
            f"{busy[item.uuid]:.0%}" if isinstance(item, Share) and item.uuid in busy else "-",
            ", ".join(names) or "nobody",
        )
        for item, names in sorted(who.items(), key=lambda pair: _order(pair[0]))
    ]
    return columns((_HEADINGS, *rows))


def _order(item: Share | Other) -> tuple[list[int], str]:
    """GPU 2 before GPU 10, and behind it its MIG devices."""
    numbers = [int(word) for word in item.name.split(":")] if isinstance(item, Share) else [sys.maxsize]
    return numbers, item.name


def repeat(look: Callable[[], list[str]], seconds: float) -> None:
    """Show what `look` gives every so many seconds, until SIGINT."""
    try:
        while True:
            now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
            lines = [plain(line, LONGEST_LIST) for line in [now, *look()]]
            if sys.stdout.isatty():
                width, height = shutil.get_terminal_size()
                lines = [line[:width] for line in lines[: height - 1]]
                click.clear()
            click.echo("\n".join([*lines, ""]))
            time.sleep(seconds)
    except KeyboardInterrupt:
        click.echo()
