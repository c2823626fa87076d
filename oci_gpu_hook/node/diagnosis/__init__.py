# SPDX-License-Identifier: Apache-2.0
"""Findings about a host and about a container: values in, findings out.  Pure.

Each finding says what was seen and, for a fault, names the one command that fixes it.  Must not read anything, and must
not name a remedy that gives containers more access than the fault needs.
"""

from __future__ import annotations

from oci_gpu_hook.node.diagnosis.remedy import NOTHING, Remedy
from oci_gpu_hook.record import NamedTuple

PASS, WARN, FAIL = "pass", "warn", "fail"


class Finding(NamedTuple):
    """One check: its name, `PASS`, `WARN` or `FAIL`, what was seen, and the command that fixes it ("" for a pass)."""

    check: str
    level: str
    seen: str
    remedy: Remedy = NOTHING


def is_failed(findings: list[Finding]) -> bool:
    """Whether anything keeps containers from their GPUs."""
    return any([finding.level == FAIL for finding in findings])
