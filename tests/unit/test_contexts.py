# SPDX-License-Identifier: Apache-2.0
"""Contexts and levels are values with the algebra of a lattice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_gpu_hook.formats import contexts
from oci_gpu_hook.formats.contexts import Context, Level, MalformedContext

LEVELS = st.builds(
    Level, st.integers(0, 15), st.frozensets(st.integers(0, 1023), max_size=20) | st.frozensets(st.integers(0, 8))
)
NAMES = st.sampled_from(["system_u", "object_r", "container_file_t", "container_t", "a.b-c"])


@given(NAMES, NAMES, NAMES, st.none() | LEVELS, st.none() | LEVELS)
def test_a_context_is_read_as_it_is_printed(
    user: str, role: str, kind: str, low: Level | None, above: Level | None
) -> None:
    high = None
    if low is not None and above is not None:
        sensitivity = max(low.sensitivity, above.sensitivity)
        high = Level(sensitivity, low.categories | above.categories)
    context = Context(user, role, kind, low, high)
    assert contexts.parse_context(str(context)) == context


@given(LEVELS, LEVELS)
def test_both_levels_dominate_their_meet_and_nothing_higher_does(one: Level, other: Level) -> None:
    low = contexts.meet([one, other])
    assert one.dominates(low) and other.dominates(low)
    assert low == contexts.meet([other, one])
    for extra in one.categories ^ other.categories:
        higher = Level(low.sensitivity, low.categories | {extra})
        assert not (one.dominates(higher) and other.dominates(higher))


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("s0:c2,c1", "s0:c1,c2"),
        ("s0:c1,c2,c3", "s0:c1.c3"),
        ("s0:c0.c1023", "s0:c0.c1023"),
        ("s15:c7,c1.c3,c9", "s15:c1.c3,c7,c9"),
    ],
)
def test_levels_are_printed_as_the_kernel_prints_them(text: str, printed: str) -> None:
    assert str(contexts.parse_level(text)) == printed


def test_a_range_has_a_clearance() -> None:
    context = contexts.parse_context("system_u:system_r:spc_t:s0-s0:c0.c1023")
    assert str(context.clearance) == "s0:c0.c1023"
    assert str(context.low) == "s0"
    assert contexts.parse_context("u:r:t:s0:c1").clearance == Level(0, frozenset({1}))


MOST = contexts._MAX
SHAPES = ["", "::", "u:r", "u:r:", "u:r:t:", "u:r:t:x", "u r:t:s0"]
# The last ones name too many categories, one of them in three hundred ranges of all, which are twenty million steps.
LEVELS_OF_NONE = [
    *("s", "s0:", "s0:c", "s0:c1,", "s0-", "s0:c3.c1", "s0:c1-s0", "s0:c70000", "s٠", "s999999", f"s{MOST}"),
    *(f"s0:c{MOST}", f"s0:c0.c{MOST - 1},c1", "s0:c0.c60000,c1.c60000"),
    *("s0:" + "c1," * 1365 + "c1", "s0:" + "c1," * 10**6 + "c1", "s0:" + "c0.c65535," * 300 + "c0"),
]


@pytest.mark.parametrize("text", [*SHAPES, *[f"u:r:t:{it}" for it in LEVELS_OF_NONE]], ids=lambda text: text[:40])
def test_what_is_no_context_or_takes_long_to_read_is_refused(text: str) -> None:
    with pytest.raises(MalformedContext):
        contexts.parse_context(text)


def test_a_level_has_so_many_categories_and_is_as_long_as_the_kernel_takes() -> None:
    low = contexts.parse_context(f"u:r:t:s0:c0.c{MOST - 1}").low
    assert low is not None and len(low.categories) == MOST
    # All name one category: how many they are is no fault.
    assert contexts.parse_level(f"s0:{'c1,' * 1364}c1").categories == {1}
