# SPDX-License-Identifier: Apache-2.0
"""Whether each row of rows.txt, which are all that there are, has a check."""

from __future__ import annotations

from pathlib import Path

from tests.vocabulary.rows import ROWS

LISTED = Path(__file__).with_name("rows.txt")


def listed() -> list[tuple[str, str]]:
    """Section and name of every row that there is."""
    lines = [line for line in LISTED.read_text().splitlines() if line]
    return [(section, name) for section, _, name in (line.partition("|") for line in lines)]


def missing() -> list[tuple[str, str]]:
    """The rows that have no check."""
    have = {(row.section, row.name) for row in ROWS}
    return [row for row in listed() if row not in have]
