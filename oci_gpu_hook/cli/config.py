# SPDX-License-Identifier: Apache-2.0
"""``config``: the administrator's settings that are in force, and what NVIDIA's mean in ours."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

import click

from oci_gpu_hook import config as settings_of
from oci_gpu_hook import hook, nvidiaconfig
from oci_gpu_hook.cli import whole
from oci_gpu_hook.cli.options import config_file, host_root, output_format, show
from oci_gpu_hook.errors import ConfigError, HookError, UsageError
from oci_gpu_hook.host.root import HostRoot

if TYPE_CHECKING:
    from oci_gpu_hook.config import Setting
    from oci_gpu_hook.nvidiaconfig import Answer

NVIDIAS = "/etc/nvidia-container-runtime/config.toml"
_DEFAULT = "default"
_LARGEST = 1 << 20
# A pipe is not waited for.
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


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


@config.command(name="import")
@click.argument("file", metavar="[FILE]", required=False)
@click.option(
    "--output", metavar="FILE", help="Write to FILE, whole or not at all.  [default: stdout]"
)
@output_format
@host_root
def import_nvidias(file: str | None, output: str | None, form: str, host_root: str) -> None:
    """Say what NVIDIA's config.toml means in our settings, key by key.

    Without FILE, the host's /etc/nvidia-container-runtime/config.toml.  What is printed or written is a file of ours;
    a comment in it tells of each key that needs nothing here or is refused.  A good place for it is
    /etc/oci-gpu-hook.conf.d/10-nvidia.conf.
    """
    whole.check_name("--output", output)
    name = NVIDIAS if file is None else file
    data = _bytes(HostRoot(host_root), NVIDIAS) if file is None else _bytes(None, file)
    rows = nvidiaconfig.answers(_toml(data, _printable(name)), _printable(name))
    text = nvidiaconfig.as_settings(rows, name)
    if output is not None:
        _check_place(output)
        whole.write(output, text)
    document: dict[str, Any] = {
        "file": name,
        "output": output,
        "keys": [row._asdict() for row in rows],
    }
    show(form, document, text.rstrip("\n") if output is None else _told(rows, output))


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


def _told(rows: list[Answer], output: str) -> str:
    """What was written, and a line for each key that could not be."""
    counts = [
        f"{sum(row.answer == answer for row in rows)} {answer}"
        for answer in (nvidiaconfig.SERVED, nvidiaconfig.NEEDLESS, nvidiaconfig.REFUSED)
    ]
    refused = [
        f"  refused: {row.key} = {row.value}: {row.means}"
        for row in rows
        if row.answer == nvidiaconfig.REFUSED
    ]
    return "\n".join([f"wrote {_printable(output)}: {', '.join(counts)}", *refused])


def _check_place(path: str) -> None:
    """Refuse a drop-in that would never be read, and to write over what somebody else wrote."""
    folder, name = os.path.split(os.path.abspath(path))
    if folder.endswith(".conf.d") and (not name.endswith(".conf") or name.startswith(".")):
        raise UsageError(f"{_printable(path)} would not be read: a drop-in's name ends in .conf")
    try:
        with open(os.open(path, _FLAGS), "rb") as there:
            ours = there.readline(_LARGEST).startswith(nvidiaconfig.MARK.encode())
    except FileNotFoundError:
        return
    except OSError as err:
        raise UsageError(f"cannot write {_printable(path)}: {err.strerror}") from err
    if not ours:
        raise UsageError(
            f"{_printable(path)} is there, and 'config import' has not written it",
            "move it away, or name another",
        )


def _bytes(root: HostRoot | None, path: str) -> bytes:
    try:
        fd = os.open(path, _FLAGS) if root is None else root.open(path, _FLAGS)
        with open(fd, "rb") as file:
            data = file.read(_LARGEST + 1)
    except OSError as err:
        raise ConfigError(f"cannot read {_printable(path)}: {err.strerror}") from err
    if len(data) > _LARGEST:
        raise ConfigError(f"cannot read {_printable(path)}: it is larger than {_LARGEST >> 20} MiB")
    return data


def _toml(data: bytes, name: str) -> dict[str, Any]:
    """The parsed file; whatever the parser dislikes is one ConfigError."""
    parser = _toml_parser()
    try:
        document: dict[str, Any] = parser.loads(data.decode())
    except UnicodeDecodeError as err:
        raise ConfigError(f"cannot read {name}: it is no UTF-8 text") from err
    except RecursionError as err:
        raise ConfigError(f"{name} is no TOML that could be read: it is nested too deep") from err
    except ValueError as err:
        why = str(err).encode("ascii", "backslashreplace").decode()[:200]
        raise ConfigError(f"{name} is no TOML: {why[:1].lower()}{why[1:]}") from err
    return document


def _toml_parser() -> Any:
    """tomllib, which Python has from 3.11 on; tomli, the same one, before."""
    for name in ("tomllib", "tomli"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise HookError("'config import' needs tomli, which this Python lacks", "install python3-tomli")
