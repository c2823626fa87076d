# SPDX-License-Identifier: Apache-2.0
"""The record of the last validation: what is written is read, and what is damaged or another's is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from oci_gpu_hook.host import statefile
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.machine import validationrecord
from oci_gpu_hook.node.machine.validationrecord import FAILED, PASSED, StepResult, Validation

RECORD = Validation(
    1_700_000_000, "580.65.06", (StepResult("driver", PASSED, ""), StepResult("hook", FAILED, "runc does not start"))
)


@pytest.fixture()
def root(tmp_path: Path) -> HostRoot:
    (tmp_path / statefile.FOLDER[1:]).mkdir(parents=True, mode=0o755)
    return HostRoot(str(tmp_path))


def test_what_is_written_is_read(root: HostRoot) -> None:
    assert validationrecord.read_validation(root) is None
    validationrecord.write(root, RECORD)
    assert validationrecord.read_validation(root) == RECORD


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"{}", b'{"time": 1, "driver_version": "", "steps": [{}]}', b"\xff"]
    + [b'{"time": 1, "driver_version": "", "steps": [{"name": "x", "outcome": "passed", "why": ""}]}'],
)  # fmt: skip
def test_a_damaged_record_is_none(root: HostRoot, data: bytes) -> None:
    statefile.write(root, "validation.json", data)
    assert validationrecord.read_validation(root) is None
