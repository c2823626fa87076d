# SPDX-License-Identifier: Apache-2.0
"""formats.glob: the same answers as Python's own fnmatch, in bounded time."""

from __future__ import annotations

import fnmatch
import itertools
import time

import pytest

from oci_gpu_hook.formats import glob

PIECES = ("a", "b", "-", "*", "?", "[ab]", "[!a]", "[a-c]", "]", "[]]", "[!]]", "[-a]", "[a-]")
NAMES = ["", *["".join(letters) for n in (1, 2, 3) for letters in itertools.product("abd-]", repeat=n)]]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_pattern_of_a_few_pieces_means_what_it_means_to_fnmatch(count: int) -> None:
    for pieces in itertools.product(PIECES, repeat=count):
        pattern = "".join(pieces)
        for name in NAMES:
            expected = fnmatch.fnmatchcase(name, pattern)
            assert glob.matches(pattern, name) == expected, (pattern, name)


def test_a_bracket_without_end_is_a_letter() -> None:
    assert glob.matches("a[b", "a[b")
    assert not glob.matches("a[b", "ab")


def test_many_stars_take_no_time() -> None:
    began = time.process_time()
    assert not glob.matches("*a" * 100 + "b", "a" * 4000)
    # By backtracking into each star this would outlast the machine.
    assert time.process_time() - began < 30
