# SPDX-License-Identifier: Apache-2.0
"""telling.py: how long the interpreter's own start took, by the door's clock."""

from __future__ import annotations

import posix
from time import time_ns

import pytest

from oci_gpu_hook import telling

ENDS = [1_000_000, 3_000_000]


@pytest.mark.parametrize("began", [b"", b"soon", b"-", b"1.5.x", None])
def test_without_the_doors_clock_the_first_step_is_nothing(
    monkeypatch: pytest.MonkeyPatch, began: bytes | None
) -> None:
    monkeypatch.delitem(posix.environ, b"OCI_GPU_HOOK_BEGAN", raising=False)
    if began is not None:
        monkeypatch.setitem(posix.environ, b"OCI_GPU_HOOK_BEGAN", began)
    assert telling._steps(ENDS) == {"start": 0, "read": 2000}


def test_the_first_step_is_what_the_doors_clock_says_less_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = time_ns() // 1000 - 12_000
    text = b"%d.%06d" % divmod(begun, 1_000_000)
    monkeypatch.setitem(posix.environ, b"OCI_GPU_HOOK_BEGAN", text)
    steps = telling._steps(ENDS)
    assert steps["read"] == 2000
    assert 10_000 <= steps["start"] < 10_000_000
