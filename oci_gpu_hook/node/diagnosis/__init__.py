# SPDX-License-Identifier: Apache-2.0
"""Findings about a host and about a container: each module looks at a part of it, and says what it sees.

Each finding says what was seen and, for a fault, names the one command that fixes it.  Must not change anything, and
must not name a remedy that gives containers more access than the fault needs.
"""

from __future__ import annotations

from oci_gpu_hook.node.diagnosis.remedy import NOTHING, Remedy, command
from oci_gpu_hook.record import NamedTuple

PASS, WARN, FAIL = "pass", "warn", "fail"


class Finding(NamedTuple):
    """One check: its name, `PASS`, `WARN` or `FAIL`, what was seen, and the command that fixes it ("" for a pass)."""

    check: str
    level: str
    seen: str
    remedy: Remedy = NOTHING


def passed(check: str, seen: str) -> Finding:
    return Finding(check, PASS, seen)


def warned(check: str, seen: str, fix: str, *words: str) -> Finding:
    """fix, words: the words of the command that fixes it; or fix alone, a remedy."""
    return Finding(check, WARN, seen, fix if isinstance(fix, Remedy) else command(fix, *words))


def failed(check: str, seen: str, fix: str, *words: str) -> Finding:
    """Of what keeps containers from their GPUs; see `warned`."""
    return warned(check, seen, fix, *words)._replace(level=FAIL)


def is_failed(findings: list[Finding]) -> bool:
    return any([finding.level == FAIL for finding in findings])


def counted(*counts: tuple[int, str, str]) -> str:
    """Each number that is not 0, with the word for one or for many."""
    words = [f"{number} {one if number == 1 else many}" for number, one, many in counts if number]
    return ", ".join(words) or "nothing"
