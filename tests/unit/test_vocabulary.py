# SPDX-License-Identifier: Apache-2.0
"""Every row of NVIDIA's vocabulary is served or refused, and none is missing."""

from __future__ import annotations

import pytest

from tests.vocabulary.host import Row
from tests.vocabulary.rows import LISTED, ROWS


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.section} {row.name[:60]}")
def test_the_answer_is_as_the_row_says(row: Row) -> None:
    assert row.holds(), f"{row.section} {row.name} is not {row.answer}"


def test_no_row_is_missing_and_none_is_made_up() -> None:
    assert sorted(f"{row.section}|{row.name}" for row in ROWS) == sorted(LISTED)
