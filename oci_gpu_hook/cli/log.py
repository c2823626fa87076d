# SPDX-License-Identifier: Apache-2.0
"""``log``: show the records of starts, from the journal."""

from __future__ import annotations

import datetime
import json
import shutil
import subprocess
from typing import Any

import click

from oci_gpu_hook.cli.options import output_format, show
from oci_gpu_hook.errors import ApplyError, HookError, UsageError
from oci_gpu_hook.report.entry import MESSAGE_ID, PREFIX, STEPS, printable

# Fields that a record may have more than once.
_LISTS = ("device", "relabelled", "note")
_MOST_DIGITS = 19


@click.command()
@click.option("--since", metavar="TIME", help="Only those since TIME, as journalctl takes it.")
@click.option("--container", metavar="ID", help="Only those of the container whose id begins so.")
@click.option("--failed", is_flag=True, help="Only those of containers that did not start.")
@output_format
def log(since: str | None, container: str | None, failed: bool, form: str) -> None:
    """Show the records of starts: what each container asked for and got, and how long it took.

    Each start of a container with a request leaves one record in the journal, which 'journalctl -o json' and
    'journalctl OCI_GPU_HOOK_CONTAINER=ID' show as well.
    """
    found = [
        record
        for record in map(as_record, _entries(since))
        if str(record.get("container", "")).startswith(container or "")
        and (not failed or record.get("exit_code") != 0)
    ]
    show(form, {"records": found}, "\n".join(map(_line, found)) or "no records")


def as_record(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry of the journal, with our fields under short names and numbers as such."""
    record: dict[str, Any] = {
        "time": _time(entry.get("__REALTIME_TIMESTAMP")),
        "message": _text(entry.get("MESSAGE")),
    }
    for name, value in entry.items():
        if not name.startswith(PREFIX):
            continue
        key = name[len(PREFIX) :].lower()
        if key in record:
            continue
        if key in _LISTS:
            several = isinstance(value, list) and not isinstance(next(iter(value), 0), int)
            record[key] = [_text(item) for item in (value if several else [value])]
            continue
        text = _text(value)
        number = key.endswith("_usec") or key in ("devices", "files", "exit_code")
        record[key] = int(text) if number and _is_number(text) else text
    return record


def _line(record: dict[str, Any]) -> str:
    steps = [
        f"{step} {record[f'{step}_usec'] / 1000:.1f}"
        for step in STEPS
        if isinstance(record.get(f"{step}_usec"), int)
    ]
    line = f"{record['time']}  {printable(record['message'])}"
    if steps:
        line += f" ({', '.join(steps)})"
    if record.get("image"):
        line += f"\n    image {printable(record['image'])}"
    if record.get("outcome") == "started":
        line += f"\n    devices {printable(' '.join(record.get('device', ['none'])))}"
        line += "".join([f"\n    note: {printable(note)}" for note in record.get("note", [])])
    return line


def _entries(since: str | None) -> list[dict[str, Any]]:
    program = shutil.which("journalctl")
    if program is None:
        raise ApplyError("cannot read the journal: there is no journalctl", "install systemd")
    words = [program, "--quiet", "--no-pager", "--all", "--output=json", f"MESSAGE_ID={MESSAGE_ID}"]
    words += [f"--since={since}"] if since else []
    done = subprocess.run(words, capture_output=True, check=False)
    if done.returncode:
        raise _unread(" ".join(done.stderr.decode(errors="replace").split()))
    return [json.loads(line) for line in done.stdout.splitlines() if line]


def _unread(why: str) -> HookError:
    """The error for what journalctl has written."""
    if "parse timestamp" in why:
        return UsageError(f"--since is no time: {why}", "systemd.time(7) has the forms")
    return ApplyError(f"cannot read the journal: {why or 'journalctl failed'}", "run it as root")


def _text(value: object) -> str:
    """The text of a field in journalctl's JSON, where bytes that are no printable text are a list of numbers."""
    if isinstance(value, list):
        return bytes([item for item in value if isinstance(item, int)]).decode(errors="replace")
    return "" if value is None else str(value)


def _is_number(text: str) -> bool:
    """Whether it is a number as we write it: anybody can send the journal an entry that looks like ours."""
    return text.isascii() and text.isdigit() and len(text) < _MOST_DIGITS


def _time(microseconds: object) -> str:
    """Local time with its offset."""
    try:
        moment = datetime.datetime.fromtimestamp(int(str(microseconds)) / 1e6)
        return moment.astimezone().isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return ""
