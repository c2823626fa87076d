# SPDX-License-Identifier: Apache-2.0
"""What is well and what is not, on a host and in a container: values in, findings out.  Pure.

Each finding names what was seen and, where something is to be mended, the one command that mends it.  Must not look at
anything, and must not name a remedy that opens more than the fault needs.
"""

from __future__ import annotations

from oci_gpu_hook.record import NamedTuple

PASS, WARN, FAIL = "pass", "warn", "fail"


class Finding(NamedTuple):
    """One check: its name, `PASS`, `WARN` or `FAIL`, what was seen, and the command that mends it ("" for a pass)."""

    check: str
    level: str
    seen: str
    remedy: str = ""


def is_failed(findings: list[Finding]) -> bool:
    """Whether anything keeps containers from their GPUs."""
    return any([finding.level == FAIL for finding in findings])
