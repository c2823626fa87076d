# SPDX-License-Identifier: Apache-2.0
"""The line of whatever stands in a JSON text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_gpu_hook.formats import jsonplaces, jsontext

pytestmark = pytest.mark.pythons

VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=4) | st.sampled_from(['"', "\\", "{", "[1,2]"]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
)


@pytest.fixture(params=["scanner", "json"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "json":
        monkeypatch.setattr(jsontext, "_make_scanner", None)


def places(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], str]]:
    """Every place in a value, in order, with what its line begins with."""
    if isinstance(value, dict):
        rows = [(name, item, json.dumps(name)) for name, item in value.items()]
    elif isinstance(value, list):
        rows = [(number, item, json.dumps(item)[:1]) for number, item in enumerate(value)]
    else:
        return []
    return [
        found
        for key, item, begin in rows
        for found in [((*above, key), begin), *places(item, (*above, key))]
    ]


def test_every_place_has_its_line() -> None:
    @given(VALUES)
    def check(value: Any) -> None:
        text = json.dumps(value, indent=1)
        lines = text.split("\n")
        found = [(jsonplaces.line_of(text, place), begin) for place, begin in places(value)]
        for line, begin in found:
            assert lines[line - 1].strip().startswith(begin)
        # All have lines of their own.
        assert [line for line, _ in found] == sorted({line for line, _ in found})
        assert jsonplaces.line_of(text, ()) == 1

    check()


def test_what_is_not_there_is_on_the_line_of_what_should_have_it() -> None:
    text = '{"a":\n {"b":\n [1,\n 2]}}'
    assert jsonplaces.line_of(text, ("a", "x")) == 1
    assert jsonplaces.line_of(text, ("a", "b", 7)) == 2
    assert jsonplaces.line_of(text, ("x",)) == 1


@pytest.mark.parametrize(
    "data,expected",
    [
        (b'{"a": 1,\n"b": {"a": 2,\n"a": 3}}', (3, "'a' is there twice")),
        (b'[{"a": 1},\n{"a": {"a": 1}, "b": ["a", "a"],\n"a": 1}]', (3, "'a' is there twice")),
        (b'["NaN",\n-Infinity]', (2, "it has a number that JSON has not")),
        (b'"\n\xff', (2, "it is no UTF-8 text")),
        (b'["a",\n"b]', (2, "unterminated string starting at")),
        (b'{"a":\n' * 40_000, (33, "it is nested too deeply")),
    ],
)
def test_why_a_text_is_refused(data: bytes, expected: tuple[int, str]) -> None:
    with pytest.raises(ValueError):
        jsontext.loads(data, jsontext.unique)
    assert jsonplaces.fault(data) == expected


def test_each_name_once() -> None:
    assert jsontext.loads(b'{"a": {"a": 1}, "b": [{}]}', jsontext.unique) == {
        "a": {"a": 1},
        "b": [{}],
    }
