# SPDX-License-Identifier: Apache-2.0
"""``config``: show the administrator's settings that are in force, and translate NVIDIA's into ours."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import click

from oci_gpu_hook.cli import named
from oci_gpu_hook.cli.group import CommandGroup
from oci_gpu_hook.cli.options import config_file, host_root, output_format, show
from oci_gpu_hook.cli.render import columns
from oci_gpu_hook.errors import ConfigError, HookError, UsageError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.machine import toml, whole
from oci_gpu_hook.node.setup import nvidiaconfig
from oci_gpu_hook.node.setup.nvidiaconfig import KeyMeaning
from oci_gpu_hook.request import settingsfile
from oci_gpu_hook.request.settings import Settings, files
from oci_gpu_hook.request.settingsfile import Setting
from oci_gpu_hook.request.words import ALL, CAPABILITIES

NVIDIAS = "/etc/nvidia-container-runtime/config.toml"
_LARGEST = 1 << 20


@click.group(cls=CommandGroup)
def config() -> None:
    """Show what the administrator has set, and translate what was set for NVIDIA's hook."""


@config.command(name="show")
@output_format
@config_file
def show_settings(form: str, config: str | None) -> None:
    """Show every setting in force, and where it comes from.

    First come those for every container, then those below headings.
    """
    document = in_force(settingsfile.read_files(files(config)))
    show(form, document, _as_text(document))


@config.command(name="import")
@click.argument("file", metavar="[FILE]", required=False)
@click.option("--output", metavar="FILE", help="Write to FILE, whole or not at all.  [default: stdout]")
@output_format
@host_root
def import_nvidias(file: str | None, output: str | None, form: str, root: HostRoot) -> None:
    """Translate NVIDIA's config.toml into our settings, key by key.

    Without FILE, the host's /etc/nvidia-container-runtime/config.toml is read.  The output is a file of our settings; a
    comment in it explains each key that needs no setting or is refused.  A good place for it is
    /etc/oci-gpu-hook.conf.d/10-nvidia.conf.
    """
    whole.check_name("--output", output)
    name = NVIDIAS if file is None else file
    try:
        data = named.content(name, _LARGEST, root if file is None else None)
    except OSError as err:
        raise ConfigError(f"cannot read {_printable(name)}: {err.strerror}") from err
    try:
        document = toml.parse_toml(data)
    except toml.MalformedToml as err:
        raise ConfigError(f"{_printable(name)} is not TOML: {err}") from err
    except toml.NoParser as err:
        raise HookError(f"'config import' cannot read TOML: {err}", "install python3-tomli") from err
    rows = nvidiaconfig.answers(document, _printable(name))
    text = nvidiaconfig.as_settings(rows, name)
    if output is not None:
        _check_place(output)
        whole.write(output, text)
    told = text.rstrip("\n").split("\n") if output is None else _summary(rows, output)
    show(form, {"file": name, "output": output, "keys": rows}, told)


def in_force(lines: list[Setting]) -> dict[str, Any]:
    """Each setting for every container, and each line below a heading, with its file and line."""
    rows = {key: _row(key, value, "default") for key, value in Settings()._asdict().items() if key != "unmatched"}
    rows |= {key: _row(key, line.value, line.where) for key, line in settingsfile.decisive(lines).items()}
    rules = [{line.scope: line.pattern, **_row(line.field, line.value, line.where)} for line in lines if line.scope]
    return {"settings": [*rows.values()], "rules": rules}


def _row(field: str, value: object, where: str) -> dict[str, Any]:
    return {"key": field.replace("_", "-"), "value": value, "from": where}


def _as_text(document: dict[str, Any]) -> list[str]:
    """One line for each setting: key, value, file and line; rules below their headings, in the order of the files."""
    rows = document["settings"] + document["rules"]
    cells = [(row["key"], written(row["value"]), row["from"]) for row in rows]
    lines, heading = [], ""
    for row, text in zip(rows, columns([tuple(map(_printable, row)) for row in cells])):
        scope = next((word for word in settingsfile.SCOPES[1:] if word in row), "")
        under = f"[{scope} {_printable(row[scope])}]" if scope else ""
        if under != heading:
            lines += ["", under]
            heading = under
        lines.append(text)
    return lines


def _printable(text: str) -> str:
    return text if text.isascii() and text.isprintable() else ascii(text)


def _summary(rows: list[KeyMeaning], output: str) -> list[str]:
    numbers = Counter([row.answer for row in rows])
    counts = [f"{numbers[it]} {it}" for it in (nvidiaconfig.SERVED, nvidiaconfig.NEEDLESS, nvidiaconfig.REFUSED)]
    refused = [f"  refused: {row.key} = {row.value}: {row.means}" for row in rows if row.answer == nvidiaconfig.REFUSED]
    return [f"wrote {_printable(output)}: {', '.join(counts)}", *refused]


def _check_place(path: str) -> None:
    """UsageError for a drop-in that would not be read, and for a file that 'config import' has not written."""
    folder, name = os.path.split(os.path.abspath(path))
    if folder.endswith(".conf.d") and (not name.endswith(".conf") or name.startswith(".")):
        raise UsageError(f"{_printable(path)} would not be read: a drop-in's name ends in .conf")
    try:
        ours = named.content(path, _LARGEST).startswith(nvidiaconfig.MARK.encode())
    except FileNotFoundError:
        return
    except OSError as err:
        raise UsageError(f"cannot write {_printable(path)}: {err.strerror}") from err
    if not ours:
        raise UsageError(
            f"{_printable(path)} is there, and 'config import' has not written it", "move it away, or name another"
        )


def written(value: object) -> str:
    """A field's value as a line of a file has it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value == CAPABILITIES:
        return ALL
    return ", ".join(value) if isinstance(value, tuple) else str(value)
