# SPDX-License-Identifier: Apache-2.0
"""Records as JSON, and rows as aligned lines.  Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Row = tuple[str, ...]


def as_json(value: Any) -> Any:
    """A value as JSON has it: a record is an object of its fields, and the mode of a file four octal digits."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        is_mode = isinstance(value.get("mode"), int)
        return {key: f"{item:04o}" if key == "mode" and is_mode else as_json(item) for key, item in value.items()}
    return [as_json(item) for item in value] if isinstance(value, (list, tuple)) else value


def section(title: str, rows: Iterable[Row], empty: str = "") -> list[str]:
    lines = aligned(rows) or ([f"  {empty}"] if empty else [])
    return ["", title, *lines] if lines else []


def sentences(title: str, found: Iterable[str]) -> list[str]:
    return section(title, [(sentence,) for sentence in found])


def aligned(rows: Iterable[Row]) -> list[str]:
    return [f"  {line}" for line in columns(rows)]


def columns(rows: Iterable[Row]) -> list[str]:
    table = list(rows)
    count = max([len(row) for row in table], default=0)
    widths = [max([len(row[at]) for row in table if at < len(row)]) for at in range(count)]
    return ["  ".join([cell.ljust(width) for cell, width in zip(row, widths)]).rstrip() for row in table]
