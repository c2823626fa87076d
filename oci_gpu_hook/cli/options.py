# SPDX-License-Identifier: Apache-2.0
"""The options that several commands have, each defined once, and how they show what they have found."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any, Callable

import click

from oci_gpu_hook.cli import limit
from oci_gpu_hook.errors import LONGEST_LIST, plain
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.request.settings import SETTINGS

LONGEST_SECONDS = 86400
Row = tuple[str, ...]


def seconds(
    option: str, text: str, default: float, *, least: float = 0.1, most: float = LONGEST_SECONDS, times: int = 1
) -> Callable[..., Any]:
    """times: how often the command may take this time, beyond its own limit."""

    def allowed(context: click.Context, parameter: click.Parameter, value: float) -> float:
        # NaN passes every check of a range.
        if math.isnan(value):
            raise click.BadParameter(f"{value} is not a number of seconds")
        limit.allow(times * value)
        return value

    words: dict[str, Any] = {"metavar": "SECONDS", "default": default, "show_default": True, "help": text}
    return click.option(option, type=click.FloatRange(least, most), callback=allowed, **words)


nvml_timeout = seconds("--nvml-timeout", "How long NVML may take to answer; 0 does not ask it.", 30.0, least=0, times=2)


def output_format(command: Callable[..., Any]) -> Callable[..., Any]:
    """Whether to print JSON: --json, and --format json, which scripts have."""

    def asked(context: click.Context, parameter: click.Parameter, value: bool | str | None) -> bool:
        """Of either option: each is whether one of both asks."""
        context.meta["json"] = context.meta.get("json", False) or value in (True, "json")
        return bool(context.meta["json"])

    kind = click.Choice(["text", "json"])
    older = click.option("--format", type=kind, callback=asked, is_eager=True, expose_value=False, hidden=True)
    return click.option("--json", "is_json", is_flag=True, callback=asked, help="Print it as JSON.")(older(command))


_HOST_ROOT = "Read every path of the host below DIR."
host_root = click.option(
    "--host-root", "host", type=HostRoot, metavar="DIR", default="/", show_default=True, help=_HOST_ROOT
)
config_file = click.option("--config", metavar="FILE", help=f"The administrator's file.  [default: {SETTINGS}]")


def config_and_host(command: Callable[..., Any]) -> Callable[..., Any]:
    return config_file(host_root(command))


def show(is_json: bool, document: dict[str, object], lines: list[str], painted: Callable[[str], str] = str) -> None:
    """document: may have records; painted: gives a line its colours."""
    if is_json:
        click.echo(json.dumps(as_json(document), indent=2))
    else:
        show_lines(lines, painted)


def show_lines(lines: list[str], painted: Callable[[str], str] = str) -> None:
    # An image, a container and an engine have written some of it: that has no colours, and begins no line.
    click.echo("\n".join([painted(plain(line, LONGEST_LIST)) for line in lines]))


def as_json(value: Any) -> Any:
    """A value as JSON has it: a record is an object of its fields, and the mode of a file four octal digits."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        is_mode = isinstance(value.get("mode"), int)
        return {key: f"{item:04o}" if key == "mode" and is_mode else as_json(item) for key, item in value.items()}
    return [as_json(item) for item in value] if isinstance(value, (list, tuple)) else value


def section(title: str, rows: Iterable[Row], empty: str = "") -> list[str]:
    lines = [f"  {line}" for line in columns(rows)] or ([f"  {empty}"] if empty else [])
    return ["", title, *lines] if lines else []


def sentences(title: str, found: Iterable[str]) -> list[str]:
    return section(title, [(sentence,) for sentence in found])


def columns(rows: Iterable[Row]) -> list[str]:
    table = list(rows)
    count = max([len(row) for row in table], default=0)
    widths = [max([len(row[at]) for row in table if at < len(row)]) for at in range(count)]
    return ["  ".join([cell.ljust(width) for cell, width in zip(row, widths)]).rstrip() for row in table]
