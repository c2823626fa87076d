# SPDX-License-Identifier: Apache-2.0
"""apply's tables go by the names of operations' classes: each that a plan can hold has its entry, and no other."""

from __future__ import annotations

from oci_gpu_hook import apply, operations
from oci_gpu_hook.record import NamedTuple

# Parts of operations, not operations: what a tmpfs holds, and what SELinux needs.
PARTS = {"File", "Labels"}


def test_every_operation_has_its_effect() -> None:
    kinds = {
        kind
        for kind in vars(operations).values()
        if isinstance(kind, type)
        and issubclass(kind, tuple)
        and kind.__module__ == operations.__name__
        and kind is not NamedTuple
    }
    names = {kind.__name__ for kind in kinds}
    assert names >= PARTS
    assert set(apply._EFFECTS) == names - PARTS
    for kind in kinds:
        assert ("required" in kind._fields) == (kind.__name__ not in PARTS)  # type: ignore[attr-defined]


def test_what_is_prepared_is_done() -> None:
    assert set(apply._PREPARATIONS) < set(apply._EFFECTS)
