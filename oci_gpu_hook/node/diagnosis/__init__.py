# SPDX-License-Identifier: Apache-2.0
"""Findings about a host and about a container: each module looks at a part of it, and says what it sees.

Each finding says what was seen and, for a fault, names the one command that fixes it.  Must not change anything, and
must not name a remedy that gives containers more access than the fault needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oci_gpu_hook.node.diagnosis.remedy import NOTHING, Remedy
from oci_gpu_hook.record import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

PASS, WARN, FAIL = "pass", "warn", "fail"


class Finding(NamedTuple):
    """One check: its name, `PASS`, `WARN` or `FAIL`, what was seen, and the command that fixes it ("" for a pass)."""

    check: str
    level: str
    seen: str
    remedy: Remedy = NOTHING


def first_fault(check: str, rows: Iterable[tuple[object, str, str, Remedy]], well: str) -> Finding:
    """The finding of the first row that holds: whether it does, level, what was seen, what fixes it; else a pass."""
    for holds, level, seen, remedy in rows:
        if holds:
            return Finding(check, level, seen, remedy)
    return Finding(check, PASS, well)


def is_failed(findings: list[Finding]) -> bool:
    """Whether anything keeps containers from their GPUs."""
    return any([finding.level == FAIL for finding in findings])
