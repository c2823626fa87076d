# SPDX-License-Identifier: Apache-2.0
"""Add up the lines that hooks write for the counters, so that none is lost or counted twice.

Hooks append to one file, the spool, and take no lock: a start waits for nobody.  A collector gives a full spool the
name ``starts.N``, and renames a new one into its place.  A hook that has the old one open still writes to it.  So an
old spool is added up again at each collection, and goes into the totals only when the next one is full, long after.
The totals say which N they contain: a collector that dies between two of its steps counts nothing twice.

Must not be used by the hook, nor by two collectors at once: they take `lock`.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from oci_gpu_hook.host import saved
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel.descriptors import closing
from oci_gpu_hook.node.exporters import counters
from oci_gpu_hook.node.machine import whole
from oci_gpu_hook.report.records import SPOOL

_FOLDER = os.path.dirname(SPOOL)
_TOTALS = f"{_FOLDER}/metrics.json"
# About ten thousand starts: to add them up takes some tens of milliseconds.
_FULL = 256 << 10


class Totals(NamedTuple):
    """The sums of old spools, and the last N that is in them."""

    folded: int
    numbers: Counter[str]


@contextmanager
def lock() -> Iterator[None]:
    """Keep other collectors waiting; hooks do not wait."""
    with whole.explained(_FOLDER):
        fd = saved.open_lock(HostRoot(), "metrics.lock")
    with closing(fd):
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield


def added_up() -> Counter[str]:
    """All counters, up to now.  Needs `lock`."""
    totals = _totals()
    taken = _taken(totals.folded + 1)
    old = "" if _is_spool(taken) else _text(taken)
    return totals.numbers + counters.count(old) + counters.count(_text(SPOOL))


def turn() -> None:
    """Make hooks count, by a spool, and replace a full one.  Needs `lock`."""
    totals = _totals()
    with whole.explained(SPOOL):
        if os.path.lexists(_taken(totals.folded)):
            os.unlink(_taken(totals.folded))
        if not os.path.lexists(SPOOL):
            _put_fresh()
        elif os.stat(SPOOL).st_size > _FULL:
            _take_away(totals)


def _take_away(totals: Totals) -> None:
    """Add the spool before to the totals, and replace the full one."""
    before = _taken(totals.folded + 1)
    if os.path.lexists(before) and not _is_spool(before):
        totals = Totals(totals.folded + 1, totals.numbers + counters.count(_text(before)))
        whole.write(_TOTALS, json.dumps(totals._asdict()) + "\n")
        os.unlink(before)
    taken = _taken(totals.folded + 1)
    if not _is_spool(taken):
        os.link(SPOOL, taken)
    _put_fresh()


def stop() -> bool:
    """Stop hooks from counting; gives whether they did count.  Needs `lock`."""
    was_counting = os.path.lexists(SPOOL)
    with whole.explained(SPOOL):
        for name in os.listdir(_FOLDER):
            if name == "metrics.json" or name.split(".")[0] == os.path.basename(SPOOL):
                os.unlink(f"{_FOLDER}/{name}")
    return was_counting


def _put_fresh() -> None:
    """Put an empty spool into place by a rename: there is no moment without one."""
    fresh = f"{SPOOL}.new"
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    os.close(fd)
    os.rename(fresh, SPOOL)


def _is_spool(path: str) -> bool:
    """Whether `path` is still the spool: a collector has died before it could put a new one into place."""
    try:
        return os.path.samefile(path, SPOOL)
    except FileNotFoundError:
        return False


def _taken(number: int) -> str:
    return f"{SPOOL}.{number}"


def _totals() -> Totals:
    """The saved totals; zeros if they are missing or damaged, as after a boot: Prometheus handles a reset."""
    try:
        document = json.loads(_text(_TOTALS))
        numbers = Counter({str(key): int(value) for key, value in document["numbers"].items()})
        return Totals(int(document["folded"]), numbers)
    except (ValueError, TypeError, KeyError, AttributeError):
        return Totals(0, Counter())


def _text(path: str) -> str:
    with whole.explained(path), suppress(FileNotFoundError), open(path, encoding="ascii", errors="replace") as file:
        return file.read()
    return ""
