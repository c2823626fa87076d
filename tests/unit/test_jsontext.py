# SPDX-License-Identifier: Apache-2.0
"""The C scanner used alone reads what json reads, and refuses the rest with ValueError."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_gpu_hook import jsontext

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.fixture(params=["scanner", "json"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs with the private scanner and with the fall-back for a Python that lacks it."""
    if request.param == "json":
        monkeypatch.setattr(jsontext, "_make_scanner", None)


def test_this_python_has_the_scanner() -> None:
    """The budget of the hook rests on it: a Python without it must be noticed."""
    import _json

    assert callable(_json.make_scanner)


@pytest.mark.parametrize("indent", [None, 1])
def test_it_reads_what_json_writes(indent: int | None) -> None:
    @given(VALUES)
    def check(value: object) -> None:
        assert jsontext.loads(json.dumps(value, indent=indent).encode()) == value

    check()


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "{",
        "[1,]",
        "{'a': 1}",
        "1 2",
        "NaN",
        "[Infinity]",
        "tru",
        '"\x01"',
        "{}x",
        "[" * 200_000,
        '{"a":}',
    ],
)
def test_what_is_no_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        jsontext.loads(text.encode())


@pytest.mark.parametrize("text", ["{", "[1,]", '{"a":}', '"x'])
def test_it_refuses_the_same_while_json_was_never_imported(text: str) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from oci_gpu_hook import jsontext\n"
        "try: jsontext.loads(sys.argv[2].encode())\n"
        "except ValueError as err: print('refused')"
    )
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-IS", "-c", code, root, text], capture_output=True, text=True, check=True
    )
    assert done.stdout == "refused\n"


@pytest.mark.parametrize("data", [b"\xff", b'"\xc3"', b"\xef\xbb\xbf{}"])
def test_what_is_no_utf8_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        jsontext.loads(data)


def test_it_is_total_on_any_bytes() -> None:
    @given(st.binary())
    def check(data: bytes) -> None:
        try:
            expected = json.loads(data.decode("utf-8").strip(" \t\n\r"))
        except ValueError:
            with pytest.raises(ValueError):
                jsontext.loads(data)
        else:
            assert jsontext.loads(data) == expected or expected != expected

    check()
