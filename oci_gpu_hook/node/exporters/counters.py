# SPDX-License-Identifier: Apache-2.0
"""Counters of starts: add up the lines that hooks write, so that none is lost or counted twice, and tell Prometheus.

Hooks append to one file, the spool, and take no lock: a start does not wait.  A collector gives a full spool the name
``starts.N``, and renames a new one into its place.  A hook that has the old one open still writes to it.  So an old one
is added up again at each collection, and goes into the totals only when the next one is full, long after.  The totals
say which N they contain: a collector that dies between two steps counts nothing twice.  Must not be used by the hook.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from contextlib import suppress

from oci_gpu_hook.host import statefile
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel.descriptors import closing, replace
from oci_gpu_hook.node.exporters.exposition import COUNTER, HISTOGRAM, head, metric, sample
from oci_gpu_hook.node.machine import outputfile
from oci_gpu_hook.report.records import OUTCOMES, REFUSALS, SPOOL, STEPS

# The upper bounds of the histogram, in seconds; a start takes some tens of milliseconds.
BUCKETS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)

_SUM = "microseconds"
_LINE = re.compile("([0-9]{1,12}) ([a-z]+) ([a-z-]+)")
_WHY = {"started": ("-",), "ignored": ("-",), "refused": tuple(REFUSALS.values()), "failed": STEPS}
_FOLDER = os.path.dirname(SPOOL)
_TOTALS = f"{_FOLDER}/metrics.json"
# About ten thousand starts: to add them up takes some tens of milliseconds.
_FULL = 256 << 10


def lock() -> closing:
    """Keep other collectors waiting; hooks do not wait.  LockedError as `statefile.lock`."""
    with outputfile.explained(_FOLDER):
        return closing(statefile.lock(HostRoot(), "metrics.lock"))


def added_up() -> Counter[str]:
    """Needs `lock`."""
    folded, numbers = _totals()
    old = _taken(folded + 1)
    return numbers + count("" if _is_spool(old) else _file_text(old)) + count(_file_text(SPOOL))


def turn() -> None:
    """Make hooks count, by a spool, and replace a full one.  Needs `lock`."""
    folded, numbers = _totals()
    with outputfile.explained(SPOOL):
        before, is_full = _taken(folded + 1), are_on() and os.stat(SPOOL).st_size > _FULL
        if is_full and os.path.lexists(before) and not _is_spool(before):
            # The spool before it goes into the totals.
            folded, numbers = folded + 1, numbers + count(_file_text(before))
            outputfile.write(_TOTALS, json.dumps({"folded": folded, "numbers": numbers}) + "\n")
        with suppress(FileNotFoundError):
            os.unlink(_taken(folded))
        if is_full and not _is_spool(_taken(folded + 1)):
            os.link(SPOOL, _taken(folded + 1))
        if is_full or not are_on():
            # By a rename: there is no moment without one.
            replace(SPOOL, b"", f"{SPOOL}.new", how=os.O_TRUNC, put=os.rename)


def are_on() -> bool:
    """Whether hooks count: they do once there is a spool."""
    return os.path.lexists(SPOOL)


def stop() -> bool:
    """Gives whether hooks did count.  Needs `lock`."""
    was_counting = are_on()
    with outputfile.explained(SPOOL):
        for name in os.listdir(_FOLDER):
            if name == "metrics.json" or name.split(".")[0] == os.path.basename(SPOOL):
                os.unlink(f"{_FOLDER}/{name}")
    return was_counting


def _is_spool(path: str) -> bool:
    """A collector has died before it could put a new one into place."""
    with suppress(FileNotFoundError):
        return os.path.samefile(path, SPOOL)
    return False


def _taken(number: int) -> str:
    return f"{SPOOL}.{number}"


def _totals() -> tuple[int, Counter[str]]:
    """The last N, and the totals; zeros if they are missing or damaged, as after a boot: to Prometheus a reset."""
    try:
        document = json.loads(_file_text(_TOTALS))
        numbers = Counter({str(key): int(value) for key, value in document["numbers"].items()})
        return int(document["folded"]), numbers
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return 0, Counter()


def _file_text(path: str) -> str:
    told = outputfile.explained(path)
    with told, suppress(FileNotFoundError), open(path, encoding="ascii", errors="replace") as file:
        return file.read()
    return ""


def count(text: str) -> Counter[str]:
    """The counters of a spool's lines; a line that is cut off, or that no hook of ours has written, is not counted."""
    found: Counter[str] = Counter()
    for line in text.split("\n"):
        match = _LINE.fullmatch(line)
        if match and match[3] in _WHY.get(match[2], ()):
            took = int(match[1])
            found[f"{match[2]} {match[3]}"] += 1
            found[_SUM] += took
            found[str(sum([took > bound * 1e6 for bound in BUCKETS]))] += 1
    return found


def exposition(totals: Counter[str]) -> str:
    """The whole .prom file; with zeros, as Prometheus notices an increase only of a counter that it has seen before."""
    starts = [({"outcome": it}, sum([totals[f"{it} {why}"] for why in _WHY[it]])) for it in OUTCOMES]
    refusals = [({"reason": why}, totals[f"refused {why}"]) for why in _WHY["refused"]]
    failures = [({"step": step}, totals[f"failed {step}"]) for step in _WHY["failed"]]
    name, help = "start_duration_seconds", "What the hook takes of a start, with its interpreter's processor time."
    lines = [
        *metric("starts_total", "Starts of containers that ask for GPUs or other accelerators.", COUNTER, starts),
        *metric("refusals_total", "Starts that were refused, by reason.", COUNTER, refusals),
        *metric("failures_total", "Starts that failed, by the step.", COUNTER, failures),
        *head(name, help, HISTOGRAM),
    ]
    so_far = 0
    for index, bound in enumerate((*BUCKETS, "+Inf")):
        so_far += totals[str(index)]
        lines.append(sample(f"{name}_bucket", {"le": str(bound)}, so_far))
    lines += [sample(f"{name}_sum", {}, totals[_SUM] / 1e6), sample(f"{name}_count", {}, so_far)]
    return "\n".join(lines) + "\n"
