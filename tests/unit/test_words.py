# SPDX-License-Identifier: Apache-2.0
"""What the program and its manuals say has none of the words that CONTRIBUTING.md's rules of the house refuse."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
REFUSED = re.compile(
    r"\b(?:whoever|nobody|anew|mend(?:s|ed|ing)?|look(?:s|ed|ing)? through|what (?:is|was|were) asked"
    r"|(?<!there )(?:is|are|was|were) no(?! longer| more) [a-z])",
    re.IGNORECASE,
)
# A line's end, with what ends a string there and what begins the next line's string or comment.
BREAK = re.compile(r'"?\s*\n\s*(?:[#;] |f?")?')
GENERATED = re.compile(r"\.(?:pyc|conf|[578])$")


@pytest.mark.parametrize("folder", ["oci_gpu_hook", "hooks.d", "packaging", "policy"])
def test_no_text_has_a_word_that_the_house_refuses(folder: str) -> None:
    files = [path for path in (ROOT / folder).rglob("*") if path.is_file() and not GENERATED.search(path.name)]
    assert files
    for file in files:
        text = BREAK.sub(" ", file.read_text())
        assert [text[it.start() - 40 : it.end() + 20] for it in REFUSED.finditer(text)] == [], file
