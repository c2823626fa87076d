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


def test_what_is_a_pattern() -> None:
    assert [text for text in ("kfd", "renderD*", "nvidia?", "sd[ab]") if glob.is_pattern(text)] == [
        "renderD*",
        "nvidia?",
        "sd[ab]",
    ]


def test_many_stars_take_no_time() -> None:
    began = time.process_time()
    assert not glob.matches("*a" * 100 + "b", "a" * 4000)
    # By backtracking into each star this would outlast the machine.
    assert time.process_time() - began < 30


def test_two_patterns_overlap_where_some_name_fits_both() -> None:
    names = ["".join(letters) for n in range(6) for letters in itertools.product("abc", repeat=n)]
    pieces = ("a", "b", "*", "?", "[ab]", "[!a]", "[a-b]")
    patterns = ["".join(some) for n in (0, 1, 2, 3) for some in itertools.product(pieces, repeat=n)]
    fitting = {text: frozenset([name for name in names if glob.matches(text, name)]) for text in patterns}
    for one in patterns:
        for other in patterns[:: len(patterns) // 25]:
            expected = not fitting[one].isdisjoint(fitting[other])
            assert glob.overlap(one, other) == glob.overlap(other, one) == expected, (one, other)


def test_many_stars_overlap_in_no_time() -> None:
    began = time.process_time()
    assert not glob.overlap("*a" * 120 + "b", "?a*" * 80 + "c")
    assert time.process_time() - began < 30


TREE = {"/": ["opt", "usr"], "/opt": ["a-1", "a-2", "b"], "/opt/a-1": ["x.so"], "/opt/a-2": ["x.so", "y"]}


@pytest.mark.parametrize(
    ("pattern", "paths"),
    [
        ("/opt/a-*/x.so", ["/opt/a-1/x.so", "/opt/a-2/x.so"]),
        ("/*/a-?", ["/opt/a-1", "/opt/a-2"]),
        ("/opt/a-2/*", ["/opt/a-2/x.so", "/opt/a-2/y"]),
        ("/nowhere/x", ["/nowhere/x"]),
        ("/nowhere/*", []),
    ],
)
def test_a_pattern_of_a_path_is_looked_up_folder_by_folder(pattern: str, paths: list[str]) -> None:
    assert glob.expanded(pattern, lambda folder: TREE.get(folder, []), 10) == paths


def test_of_very_many_one_more_than_may_be() -> None:
    assert len(glob.expanded("/*", lambda folder: list("abcdefgh"), 3)) == 4
