# SPDX-License-Identifier: Apache-2.0
"""The copies of the hook that `tests/selinux` takes a check out of: the check is still where they look for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.selinux.tree import UNCHECKED

PACKAGE = Path(__file__).parents[2] / "oci_gpu_hook"


@pytest.mark.parametrize("name", UNCHECKED)
def test_the_check_is_there_to_be_taken_out(name: str) -> None:
    for module, text, _ in UNCHECKED[name]:
        assert (PACKAGE / module).read_text().count(text) == 1, (module, text)
