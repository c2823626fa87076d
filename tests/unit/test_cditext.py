# SPDX-License-Identifier: Apache-2.0
"""A CDI spec as text: what is written is read again, others read it as we do, and no text is too much."""

from __future__ import annotations

import string
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from oci_gpu_hook.cli import cditext

# None is a word that YAML 1.1 takes for something else, such as NO; none of CDI's keys is one.
KEYS = st.text(string.ascii_letters + string.digits, min_size=5, max_size=9).map("k".__add__)
WORDS = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
SCALARS = WORDS | st.integers() | st.booleans() | st.none()
MAPPINGS = st.recursive(
    st.dictionaries(KEYS, SCALARS, max_size=4),
    lambda inner: st.dictionaries(KEYS, inner | st.lists(inner | SCALARS, max_size=3), max_size=4),
    max_leaves=8,
)


@given(MAPPINGS, st.sampled_from([cditext.YAML, cditext.JSON]))
def test_what_was_written_is_read_again(document: dict[str, Any], form: str) -> None:
    assert cditext.read(cditext.write(document, form)) == document


PRINTABLE = st.text(st.characters(exclude_categories=("C", "Z"), include_characters=" "), max_size=8)  # str.isprintable


@given(st.dictionaries(KEYS, st.lists(PRINTABLE | st.dictionaries(KEYS, PRINTABLE))))
def test_others_read_the_yaml_as_we_do(document: dict[str, Any]) -> None:
    text = cditext.write({"first": 1, **document}, cditext.YAML)
    assert yaml.safe_load(text) == {"first": 1, **document}


@given(st.text() | st.lists(st.sampled_from(["---\n", "a:", "- ", "  ", "\n", ' "x"', "1"])).map("".join))
def test_reading_anything_is_a_document_or_a_value_error(text: str) -> None:
    for start in ("", "---\n", "---\na:\n"):
        try:
            cditext.read(start + text)
        except ValueError:
            pass


def test_reading_what_is_nested_without_end_is_a_value_error() -> None:
    for text in ("[" * 200_000, "---\n" + "".join(f"{'  ' * n}a:\n" for n in range(3000))):
        with pytest.raises(ValueError, match=r"nested|no value"):
            cditext.read(text)
