# SPDX-License-Identifier: Apache-2.0
"""TOML: a text is a document, or there is one line that says why not; and some Pythons have no parser."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_gpu_hook.node.engines import installed


@pytest.mark.parametrize(
    "data",
    [b"[", b"a = 1\na = 2", b"\xff", b"a = " + b"[" * 100_000, "é".encode(), b"a = '\x1b[2J'", b"a = " + b"1" * 5000],
    ids=lambda data: str(data[:12]),
)  # fmt: skip
def test_what_is_no_toml_is_one_line(data: bytes) -> None:
    with pytest.raises(installed.MalformedToml) as caught:
        installed.parse_toml(data)
    assert str(caught.value).isascii() and str(caught.value).isprintable()
    assert 0 < len(str(caught.value)) <= 200


@given(st.binary(max_size=80) | st.text(max_size=80).map(str.encode))
def test_any_bytes_are_a_document_or_malformed(data: bytes) -> None:
    try:
        assert isinstance(installed.parse_toml(data), dict)
    except installed.MalformedToml:
        pass
