# SPDX-License-Identifier: Apache-2.0
"""Prints how much of the vocabulary is served, refused and missing: ``python3 -m tests.vocabulary.coverage``.

Exits 1 where a row of rows.txt is missing, or a check does not hold.
"""

from __future__ import annotations

import sys
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


def main() -> int:
    """Print the table."""
    sections = sorted({section for section, _ in listed()})
    print("section  served  refused  missing")
    for section in sections:
        answers = [row.answer for row in ROWS if row.section == section]
        lost = len([row for row in missing() if row[0] == section])
        print(f"{section:<8}{answers.count('served'):>7}{answers.count('refused'):>9}{lost:>9}")
    answers = [row.answer for row in ROWS]
    served, refused = answers.count("served"), answers.count("refused")
    print(f"{'all':<8}{served:>7}{refused:>9}{len(missing()):>9}")
    wrong = [row for row in ROWS if not row.holds()]
    for row in wrong:
        print(f"does not hold: {row.section} {row.name}")
    for section, name in missing():
        print(f"missing: {section} {name}")
    return 1 if wrong or missing() else 0


if __name__ == "__main__":
    sys.exit(main())
