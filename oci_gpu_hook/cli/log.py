# SPDX-License-Identifier: Apache-2.0
"""``log``: show the records of starts, from the journal."""

from __future__ import annotations

import datetime
import json
import os
import re
import shutil
import subprocess
from collections import deque
from collections.abc import Iterator
from typing import IO, Any

import click

from oci_gpu_hook.cli.options import output_format, show
from oci_gpu_hook.errors import ApplyError, UsageError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.engines.containers import KnownContainers
from oci_gpu_hook.report.records import MESSAGE_ID, PREFIX, STEPS, printable

# Fields that a record may have more than once.
_LISTS = ("device", "relabelled", "note")
_NUMBER = re.compile("[0-9]{1,18}")
# A span of time without a word behind it, such as "ago".
_SPAN = re.compile("([0-9.]+ *(us|ms|s|sec|m|min|h|hr|d|w|M|y|(second|minute|hour|day|week|month|year)s?) *)+")
# Some weeks of a busy node.
_MAX = 10_000
# Of an entry as journalctl prints it, ours being a tenth of that; and of all records.
_LONGEST, _LARGEST = 256 << 10, 8 << 20


@click.command()
@click.option("--since", metavar="TIME", help="Only those since TIME: of the last 10m, or as journalctl takes it.")
@click.option("-n", "--lines", "most", metavar="N", type=click.IntRange(min=0), help="Only the last N of them.")
@click.option(
    "--container", metavar="ID|NAME", help="Only those of the container with this id, its beginning, or name."
)
@click.option("--pod", metavar="POD", help="Only those of this pod, POD or NAMESPACE/POD.")
@click.option("--failed", is_flag=True, help="Only those of containers that did not start.")
@output_format
def log(
    since: str | None, most: int | None, container: str | None, pod: str | None, failed: bool, is_json: bool
) -> None:
    """Show the records of starts: what each container asked for and got, and how long it took.

    Each start of a container with a request leaves one record in the journal, which 'journalctl -o json' and
    'journalctl OCI_GPU_HOOK_CONTAINER=ID' show as well.  Any user may write to the journal: only root's entries
    count, and for another user that user's own.  A container has its engine's name as long as that knows it.
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

    records, is_whole = _records(since)
    found = [record for record in records if is_wanted(record)]
    found = found if most is None else found[max(0, len(found) - most) :]
    lines = [line for record in found for line in _lines(record)] or ["no records"]
    if not is_whole:
        lines.append(f"only the last {len(records)} records are shown: --since has others")
    show(is_json, {"records": found}, lines)


def as_record(entry: dict[str, Any]) -> dict[str, Any]:
    time, message = _time(entry.get("__REALTIME_TIMESTAMP")), _field_text(entry.get("MESSAGE"))
    record: dict[str, Any] = {"time": time, "message": message}
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
    times = [(step, record.get(f"{step}_usec")) for step in STEPS]
    steps = [f"{step} {usec / 1000:.1f}" for step, usec in times if isinstance(usec, int)]
    took = f" ({', '.join(steps)})" if steps else ""
    lines = [f"{record['time']}  {printable(record['message'])}{took}"]
    lines += [f"    {key} {printable(record[key])}" for key in ("called", "image") if record.get(key)]
    if record.get("outcome") == "started":
        lines.append(f"    devices {printable(' '.join(record.get('device', ['none'])))}")
        lines += [f"    note: {printable(note)}" for note in record.get("note", [])]
    return lines


def _records(since: str | None) -> tuple[list[dict[str, Any]], bool]:
    """The last records, as many as fit, and whether there are no others."""
    # To journalctl ``10m`` is a span (systemd.time(7)), which counts back with a sign alone.
    moment = f"-{since}" if since and _SPAN.fullmatch(since) else since
    program = shutil.which("journalctl")
    if program is None:
        raise ApplyError("cannot read the journal: there is no journalctl", "install systemd")
    words = [program, "--quiet", "--no-pager", "--all", "--output=json", f"--lines={_MAX}"]
    words += [f"--since={moment}"] if moment else []
    words += [f"MESSAGE_ID={MESSAGE_ID}", f"_UID={os.geteuid()}"]
    records: deque[dict[str, Any]] = deque()
    count, size = 0, 0
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as journal:
        assert journal.stdout is not None and journal.stderr is not None
        for entry in _entries(journal.stdout):
            count += 1
            records.append(as_record(entry))
            size += len(str(records[-1]))
            while size > _LARGEST:
                size -= len(str(records.popleft()))
        # A sentence or two, which a pipe holds.
        why = " ".join(journal.stderr.read(_LONGEST).decode(errors="replace").split())
    if journal.returncode and "parse timestamp" in why:
        raise UsageError(f"--since is not a time: {why}", "systemd.time(7) has the forms")
    if journal.returncode:
        raise ApplyError(f"cannot read the journal: {why or 'journalctl failed'}", "run it as root")
    return [*records], count == len(records) and count < _MAX


def _entries(printed: IO[bytes]) -> Iterator[dict[str, Any]]:
    """What journalctl prints, without lines that are longer than any entry: root in a container to which the journal's
    socket was given can write entries like ours, as large as it likes.
    """
    is_begun = False
    while line := printed.readline(_LONGEST):
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
