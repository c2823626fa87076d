# SPDX-License-Identifier: Apache-2.0
"""``log``: show the records of starts, from the journal."""

from __future__ import annotations

import datetime
import itertools
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import click

from oci_gpu_hook.cli import limit
from oci_gpu_hook.cli.options import output_format, show, show_lines
from oci_gpu_hook.errors import ApplyError, UsageError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.engines.containers import KnownContainers
from oci_gpu_hook.report.records import MESSAGE_ID, PREFIX, STEPS, printable

# Fields that a record may have more than once.
_LISTS = ("device", "relabelled", "note")
_NUMBER = re.compile("[0-9]{1,18}")
# A span of time without a word behind it, such as "ago".
_SPAN = re.compile("([0-9.]+ *(us|ms|s|sec|m|min|h|hr|d|w|M|y|(second|minute|hour|day|week|month|year)s?) *)+")
# How many are shown before those that come.
_FOLLOWED = 10
# Some weeks of a busy node.
_MAX = 10_000
# Of an entry as journalctl prints it, ours being a tenth of that; and of all records.
_LONGEST, _LARGEST = 256 << 10, 8 << 20


@click.command()
@click.option(
    "--since", metavar="TIME", help="Only those since TIME: a time before now, such as 10m, or as journalctl takes it."
)
@click.option("-n", "--lines", "most", metavar="N", type=click.IntRange(min=0), help="Only the last N of them.")
@click.option("-f", "--follow", is_flag=True, help="Show the last 10, or N, and then each new one, until ^C.")
@click.option(
    "--container", metavar="ID|NAME", help="Only those of the container whose id begins so, or that has this name."
)
@click.option("--pod", metavar="POD", help="Only those of this pod, POD or NAMESPACE/POD.")
@click.option("--failed", is_flag=True, help="Only those of containers that did not start.")
@output_format
def log(
    since: str | None,
    most: int | None,
    follow: bool,
    container: str | None,
    pod: str | None,
    failed: bool,
    is_json: bool,
) -> None:
    """Show the records of starts: what each container asked for and got, and how long it took.

    Each start of a container with a request leaves one record in the journal, which 'journalctl -o json' and
    'journalctl OCI_GPU_HOOK_CONTAINER=ID' show as well.  Any user may write to the journal: only root's entries
    count, and for another user that user's own.  A container has its engine's name as long as that knows it; with -f
    and --json each record is one line.
    """
    called = {item.id: item.called for item in KnownContainers(HostRoot()).containers if item.id}

    def is_wanted(record: dict[str, Any]) -> bool:
        """Whether it is asked for; it gets the container's name, if an engine knows that."""
        id, of_pod, words = str(record.get("container", "")), record.get("pod"), [record.get("name")]
        if id in called and called[id].name not in ("", id):
            record["called"] = called[id].name
            words += called[id].words
        return (
            (id.startswith(container or "") or container in words)
            and (pod is None or pod in (of_pod, f"{record.get('namespace')}/{of_pod}"))
            and (not failed or record.get("exit_code") != 0)
        )

    records, is_whole, cursor = _records(since)
    most = _FOLLOWED if follow and most is None else len(records) if most is None else most
    found = [record for record in records if is_wanted(record)]
    found = found[max(0, len(found) - most) :]
    if follow:
        for record in itertools.chain(found, filter(is_wanted, _followed(cursor))):
            click.echo(json.dumps(record)) if is_json else show_lines(_lines(record))
        return
    lines = [line for record in found for line in _lines(record)] or ["no records"]
    if not is_whole:
        lines.append(f"only the last {len(records)} records are shown: --since has others")
    show(is_json, {"records": found}, lines)


def as_record(entry: dict[str, Any]) -> dict[str, Any]:
    record: dict[str, Any] = {
        "time": _time(entry.get("__REALTIME_TIMESTAMP")),
        "message": _field_text(entry.get("MESSAGE")),
    }
    for name, value in entry.items():
        key = name[len(PREFIX) :].lower()
        if not name.startswith(PREFIX) or key in record:
            continue
        if key in _LISTS:
            several = isinstance(value, list) and not isinstance(next(iter(value), 0), int)
            record[key] = [_field_text(item) for item in (value if several else [value])]
        else:
            text = _field_text(value)
            is_number = key.endswith("_usec") or key in ("devices", "files", "exit_code")
            # As we write it: anybody can send the journal an entry that looks like ours.
            record[key] = int(text) if is_number and _NUMBER.fullmatch(text) else text
    return record


def _lines(record: dict[str, Any]) -> list[str]:
    steps = [
        f"{step} {record[f'{step}_usec'] / 1000:.1f}" for step in STEPS if isinstance(record.get(f"{step}_usec"), int)
    ]
    took = f" ({', '.join(steps)})" if steps else ""
    lines = [f"{record['time']}  {printable(record['message'])}{took}"]
    lines += [f"    {key} {printable(record[key])}" for key in ("called", "image") if record.get(key)]
    if record.get("outcome") == "started":
        lines.append(f"    devices {printable(' '.join(record.get('device', ['none'])))}")
        lines += [f"    note: {printable(note)}" for note in record.get("note", [])]
    return lines


def _journalctl(*words: str) -> list[str]:
    program = shutil.which("journalctl")
    if program is None:
        raise ApplyError("cannot read the journal: there is no journalctl", "install systemd")
    ours = (f"MESSAGE_ID={MESSAGE_ID}", f"_UID={os.geteuid()}")
    return [program, "--quiet", "--no-pager", "--all", "--output=json", *words, *ours]


def _records(since: str | None) -> tuple[list[dict[str, Any]], bool, str]:
    """The last records, as many as fit, whether there are no others, and the last one's cursor."""
    # To journalctl ``10m`` is a span (systemd.time(7)), which counts back with a sign alone.
    moment = f"-{since}" if since and _SPAN.fullmatch(since) else since
    words = _journalctl(f"--lines={_MAX}", *([f"--since={moment}"] if moment else []))
    records: deque[tuple[dict[str, Any], int]] = deque()
    count, size, cursor = 0, 0, ""
    with tempfile.TemporaryFile() as said:
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=said) as journal:
            assert journal.stdout is not None
            for entry in _entries(partial(journal.stdout.readline, _LONGEST)):
                count += 1
                record, cursor = as_record(entry), str(entry.get("__CURSOR", ""))
                records.append((record, len(str(record))))
                size += records[-1][1]
                while size > _LARGEST:
                    size -= records.popleft()[1]
        if journal.returncode:
            said.seek(0)
            why = " ".join(said.read(_LONGEST).decode(errors="replace").split())
            if "parse timestamp" in why:
                raise UsageError(f"--since is not a time: {why}", "systemd.time(7) has the forms")
            raise ApplyError(f"cannot read the journal: {why or 'journalctl failed'}", "run it as root")
    return [record for record, _ in records], count == len(records) and count < _MAX, cursor


def _followed(cursor: str) -> Iterator[dict[str, Any]]:
    """The records behind the cursor, "" for those from now on, as they come, until SIGINT."""
    words = _journalctl("--follow", "--lines=all", f"--after-cursor={cursor}" if cursor else "--since=now")
    limit.allow(limit.ENDLESS)
    with suppress(KeyboardInterrupt), subprocess.Popen(words, stdout=subprocess.PIPE) as journal:
        assert journal.stdout is not None
        yield from map(as_record, _entries(partial(journal.stdout.readline, _LONGEST)))


def _entries(read: Callable[[], bytes]) -> Iterator[dict[str, Any]]:
    """What journalctl prints.  read: gives the next line, or the next part of one that is longer than any entry: root
    in a container to which the journal's socket was given can write entries like ours, as large as it likes.
    """
    is_begun = False
    while line := read():
        is_rest, is_begun = is_begun, not line.endswith(b"\n")
        if is_rest or is_begun:
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        # No journalctl writes anything but objects.
        if isinstance(entry, dict):
            yield entry


def _field_text(value: object) -> str:
    """The text of a field in journalctl's JSON, where bytes that are not printable text are a list of numbers."""
    if isinstance(value, list):
        numbers = [item for item in value if isinstance(item, int) and 0 <= item < 256]
        return bytes(numbers).decode(errors="replace")
    return "" if value is None else str(value)


def _time(microseconds: object) -> str:
    try:
        moment = datetime.datetime.fromtimestamp(int(str(microseconds)) / 1e6)
        return moment.astimezone().isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return ""
