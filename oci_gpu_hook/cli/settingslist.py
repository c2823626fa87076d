# SPDX-License-Identifier: Apache-2.0
"""``info --settings``: the administrator's settings that are in force."""

from __future__ import annotations

from typing import Any

from oci_gpu_hook.cli.render import columns
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.request import settingsfile
from oci_gpu_hook.request.settings import Settings, files
from oci_gpu_hook.request.words import ALL, CAPABILITIES


def list_settings(config: str | None, host: HostRoot) -> tuple[dict[str, Any], list[str]]:
    lines = settingsfile.read_files(files(config, host.path.rstrip("/")))
    rows = {key: _row(key, value, "default") for key, value in Settings()._asdict().items() if key != "unmatched"}
    rows |= {key: _row(key, line.value, line.where) for key, line in settingsfile.decisive(lines).items()}
    rules = [{line.scope: line.pattern, **_row(line.field, line.value, line.where)} for line in lines if line.scope]
    document = {"settings": [*rows.values()], "rules": rules}
    return document, _as_text(document)


def _row(field: str, value: object, where: str) -> dict[str, Any]:
    return {"key": field.replace("_", "-"), "value": value, "from": where}


def _as_text(document: dict[str, Any]) -> list[str]:
    rows = document["settings"] + document["rules"]
    cells = [(row["key"], text_of(row["value"]), row["from"]) for row in rows]
    lines, heading = [], ""
    for row, text in zip(rows, columns(cells)):
        scope = next((word for word in settingsfile.SCOPES[1:] if word in row), "")
        under = f"[{scope} {row[scope]}]" if scope else ""
        if under != heading:
            lines += ["", under]
            heading = under
        lines.append(text)
    return lines


def text_of(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value == CAPABILITIES:
        return ALL
    return ", ".join(value) if isinstance(value, tuple) else str(value)
