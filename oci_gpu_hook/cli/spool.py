# SPDX-License-Identifier: Apache-2.0
"""The lines that hooks leave for the counters, added up so that none is lost or counted twice.

Hooks append to one file and take no lock: a start waits for nobody.  A collector takes a full one away as ``starts.N``,
and puts a fresh one in its place in one rename; a hook that had the old one open writes to it still.  So that one is
added up at each collection, and folded into the totals only when its successor is taken away, long after.  The totals
name the last N that is in them: a collector that dies between two of its steps counts nothing twice.

Must not be used by the hook, and not by two collectors at once: `lock`.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from oci_gpu_hook import metrics
from oci_gpu_hook.cli import whole
from oci_gpu_hook.host.journal import SPOOL

if TYPE_CHECKING:
    from collections.abc import Iterator

_FOLDER = os.path.dirname(SPOOL)
_TOTALS = f"{_FOLDER}/metrics.json"
# Ten thousand starts or so: an adding up takes some tens of milliseconds.
_FULL = 256 << 10


class Totals:
    """What has been folded: the numbers, and the last N in them."""

    def __init__(self, folded: int, numbers: dict[str, int]) -> None:
        self.folded = folded
        self.numbers = {**metrics.nothing(), **numbers}

    def write(self) -> None:
        """Whole or not at all."""
        whole.write(_TOTALS, json.dumps({"folded": self.folded, "numbers": self.numbers}) + "\n")


@contextmanager
def lock() -> Iterator[None]:
    """Other collectors wait; hooks do not."""
    try:
        os.makedirs(_FOLDER, mode=0o755, exist_ok=True)
        fd = os.open(f"{_FOLDER}/metrics.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as err:
        raise whole.failure(_FOLDER, err) from err
    with open(fd, "rb"):
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield


def added_up() -> dict[str, int]:
    """Everything that has been counted so far.  Under `lock`."""
    totals = _totals()
    taken = _taken(totals.folded + 1)
    if not _is_spool(taken):
        metrics.count(_text(taken), totals.numbers)
    metrics.count(_text(SPOOL), totals.numbers)
    return totals.numbers


def turn() -> None:
    """Have hooks count, and take a full spool away.  Under `lock`."""
    totals = _totals()
    try:
        if os.path.lexists(_taken(totals.folded)):
            os.unlink(_taken(totals.folded))
        if not os.path.lexists(SPOOL):
            _put_fresh()
        elif os.stat(SPOOL).st_size > _FULL:
            _take_away(totals)
    except OSError as err:
        raise whole.failure(SPOOL, err) from err


def _take_away(totals: Totals) -> None:
    before = _taken(totals.folded + 1)
    if os.path.lexists(before) and not _is_spool(before):
        metrics.count(_text(before), totals.numbers)
        totals.folded += 1
        totals.write()
        os.unlink(before)
    taken = _taken(totals.folded + 1)
    if not _is_spool(taken):
        os.link(SPOOL, taken)
    _put_fresh()


def stop() -> bool:
    """Have hooks count no longer; whether they did.  Under `lock`."""
    there = os.path.lexists(SPOOL)
    try:
        for name in os.listdir(_FOLDER):
            if name == "metrics.json" or name.split(".")[0] == os.path.basename(SPOOL):
                os.unlink(f"{_FOLDER}/{name}")
    except OSError as err:
        raise whole.failure(SPOOL, err) from err
    return there


def _put_fresh() -> None:
    """An empty spool in its place, at once: there is no moment without one."""
    fresh = f"{SPOOL}.new"
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    os.close(fd)
    os.rename(fresh, SPOOL)


def _is_spool(path: str) -> bool:
    """Whether a collector has died between giving the spool its other name and putting a fresh one in its place."""
    try:
        return os.path.samefile(path, SPOOL)
    except FileNotFoundError:
        return False


def _taken(number: int) -> str:
    return f"{SPOOL}.{number}"


def _totals() -> Totals:
    """The saved ones; nothing where they are damaged, as after a boot: Prometheus knows counters that begin anew."""
    try:
        document = json.loads(_text(_TOTALS))
        numbers = {str(key): int(value) for key, value in document["numbers"].items()}
        return Totals(int(document["folded"]), numbers)
    except (ValueError, TypeError, KeyError, AttributeError):
        return Totals(0, {})


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return ""
    except OSError as err:
        raise whole.failure(path, err) from err
