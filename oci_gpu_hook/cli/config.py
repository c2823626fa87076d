# SPDX-License-Identifier: Apache-2.0
"""``config``: the administrator's settings that are in force, and what NVIDIA's mean in ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from oci_gpu_hook import config as settings_of
from oci_gpu_hook import hook
from oci_gpu_hook.cli.options import config_file, output_format, show

if TYPE_CHECKING:
    from oci_gpu_hook.config import Setting

_DEFAULT = "default"


@click.group()
def config() -> None:
    """Show what the administrator has set, and translate what was set for NVIDIA's hook."""


@config.command(name="show")
@output_format
@config_file
def show_settings(form: str, config: str | None) -> None:
    """Show every setting in force, and where it comes from.

    First those of every container, then what is said of single namespaces and images.
    """
    lines = settings_of.settings(*hook.settings_file(config))
    document = in_force(lines)
    show(form, document, _as_text(document))


def in_force(lines: list[Setting]) -> dict[str, Any]:
    """Each setting of every container, and each line below a heading, with file and line."""
    said = settings_of.decisive(lines, {})
    defaults = settings_of.Config()._asdict()
    return {
        "settings": [
            _row(field, said[field].value, said[field].where)
            if field in said
            else _row(field, default, _DEFAULT)
            for field, default in defaults.items()
        ],
        "rules": [
            {line.scope: line.pattern, **_row(line.field, line.value, line.where)}
            for line in lines
            if line.scope
        ],
    }


def _row(field: str, value: object, where: str) -> dict[str, Any]:
    return {"key": field.replace("_", "-"), "value": value, "from": where}


def _as_text(document: dict[str, Any]) -> str:
    """A line each: setting, value, where it is said; rules below their headings, in the order of the files."""
    rows = document["settings"] + document["rules"]
    cells = [(row["key"], _printable(settings_of.written(row["value"]))) for row in rows]
    left, middle = [max(len(cell[column]) for cell in cells) for column in (0, 1)]
    lines, heading = [], ""
    for row, (key, value) in zip(rows, cells):
        scope = next((word for word in ("image", "namespace") if word in row), "")
        under = f"[{scope} {_printable(row[scope])}]" if scope else ""
        if under != heading:
            lines += ["", under]
            heading = under
        lines.append(f"{key:{left}}  {value:{middle}}  {_printable(row['from'])}")
    return "\n".join(lines)


def _printable(text: str) -> str:
    """As it is, or where a terminal would take it for something else, with its letters spelt."""
    return text if text.isascii() and text.isprintable() else ascii(text)
