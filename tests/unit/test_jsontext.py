# SPDX-License-Identifier: Apache-2.0
"""The C scanner used alone reads what json reads, and refuses the rest with ValueError."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_gpu_hook.formats import jsontext

pytestmark = pytest.mark.pythons

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def later(context: object) -> object:
    raise AttributeError("has no attribute 'later_hook'")


@pytest.fixture(params=["scanner", None, later])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the private scanner, and with what a Python has that lacks it, or whose scanner asks for more."""
    if request.param != "scanner":
        monkeypatch.setattr(jsontext, "_make_scanner", request.param)


@pytest.mark.usefixtures("way")
def test_members_are_found_in_a_text() -> None:
    assert jsontext.members('{"a": [1], "b": {}}', 0) == [("a", 1, 6, 9), ("b", 11, 16, 18)]


def test_it_is_pythons_scanner() -> None:
    assert type(jsontext._scanner()).__module__ == "_json"


@pytest.mark.usefixtures("way")
def test_it_reads_what_json_writes() -> None:
    @given(VALUES, st.sampled_from([None, 1]))
    def check(value: object, indent: int | None) -> None:
        assert jsontext.loads(json.dumps(value, indent=indent).encode()) == value

    check()


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("text", ["", " ", "[1,]", "{'a': 1}", "1 2", "NaN", "[-Infinity]", '"\x01"', "[" * 200_000])
def test_what_is_no_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        jsontext.loads(text.encode())
    with pytest.raises(ValueError, match="the key 'a' twice"):
        jsontext.loads(b'{"a": 1, "a": 1}', unique=True)


PIECES = [*(b"{", b"}", b"[", b"]", b",", b":", b" ", b"\n", b'"a"', b'"', b"\\", b"1", b"-", b".5", b"e9", b"0"),
          *(b"null", b"true", b"NaN", b"Infinity", b"\xc3\xa9", b"\xff", b"\xef\xbb\xbf")]  # fmt: skip


@pytest.mark.usefixtures("way")
def test_it_is_total_on_any_bytes() -> None:
    def refused(name: str) -> None:
        raise ValueError(name)

    @given(st.binary() | st.lists(st.sampled_from(PIECES), max_size=6).map(b"".join))
    def check(data: bytes) -> None:
        try:
            expected = json.loads(data.decode("utf-8"), parse_constant=refused)
        except ValueError:
            with pytest.raises(ValueError):
                jsontext.loads(data)
        else:
            assert jsontext.loads(data) == expected

    check()


def counted(value: object) -> int:
    """The commas, colons and brackets of a value's text, its strings apart."""
    if isinstance(value, dict):
        return 1 + len(value) + max(len(value) - 1, 0) + sum(map(counted, value.values()))
    if isinstance(value, list):
        return 1 + max(len(value) - 1, 0) + sum(map(counted, value))
    return 0


@given(VALUES | st.lists(st.text(',:{["\\', max_size=30)), st.booleans())
def test_values_are_counted_outside_of_strings(value: object, ascii_only: bool) -> None:
    data = json.dumps(value, ensure_ascii=ascii_only).encode(errors="surrogatepass")
    count, strings = counted(value), data.count(b'"')
    assert not jsontext.has_more_values(data, count + strings)
    if count and count < len(data):
        assert jsontext.has_more_values(data, count - 1)
