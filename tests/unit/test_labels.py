# SPDX-License-Identifier: Apache-2.0
"""Which label /dev/shm and /dev/mqueue get, which are left alone, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_gpu_hook.container.ipc import CONTAINER, HOST, LINK, POD, VOLUME, IpcMount
from oci_gpu_hook.errors import BundleError, RequestError
from oci_gpu_hook.formats import contexts
from oci_gpu_hook.formats.contexts import Context, Level
from oci_gpu_hook.operations import Relabel
from oci_gpu_hook.planning import labels
from oci_gpu_hook.planning.plan import Labels
from oci_gpu_hook.request.settings import Settings

FILE = "system_u:object_r:container_file_t:"
PROCESS = "system_u:system_r:container_t:"
SHM = IpcMount("/dev/shm", CONTAINER, FILE + "s0:c3,c4", False, ())


def decide(
    *mounts: IpcMount,
    mount_label: str = FILE + "s0:c1,c2",
    process_label: str = PROCESS + "s0:c1,c2",
    config: Settings = Settings(),  # noqa: B008  a record cannot be changed
    required: bool = True,
) -> Labels:
    return labels.labels_of(mounts, mount_label, process_label, config, required=required)


def relabelled(decided: Labels) -> str:
    """The label that the one mount gets which is relabelled."""
    (found,) = decided.operations
    assert isinstance(found, Relabel) and found.was == SHM.context and found.required
    return found.context


def test_a_mount_of_the_containers_own_gets_the_mount_label_or_the_processs_level() -> None:
    assert relabelled(decide(SHM)) == FILE + "s0:c1,c2"
    labels = decide(SHM, mount_label="", process_label="system_u:system_r:nvidia_container_t:s0:c5")
    assert labels.context == relabelled(labels) == FILE + "s0:c5"
    without = decide(SHM, mount_label="", process_label="")
    assert (without.context, without.operations, len(without.notes)) == ("", (), 1)


@pytest.mark.parametrize(("owner", "words"), [(HOST, "is the host's own"), (VOLUME, "is a volume of the host")])
def test_what_is_not_the_containers_is_left_alone_and_said(owner: str, words: str) -> None:
    labels = decide(SHM._replace(owner=owner))
    assert labels.operations == () and words in labels.notes[0]


def test_a_link_is_refused_for_a_gpu_container_and_noted_for_another() -> None:
    with pytest.raises(RequestError, match="is a link"):
        decide(SHM._replace(owner=LINK))
    assert decide(SHM._replace(owner=LINK), required=False).operations == ()


@pytest.mark.parametrize(
    ("own", "others", "level"),
    [
        ("s0:c1,c2", ["s0:c2,c3"], "s0:c2"),
        ("s0:c1,c2", ["s0:c3,c4"], "s0"),
        ("s0:c1,c2", ["s0:c1,c2", "s0:c1,c5"], "s0:c1"),
        ("s0:c1,c2", ["s0-s0:c0.c1023"], "s0:c1,c2"),
        ("s0", ["s0:c1,c2"], "s0"),
    ],
)
def test_a_pod_shares_the_level_that_all_its_containers_dominate(own: str, others: list[str], level: str) -> None:
    shared = SHM._replace(owner=POD, members=tuple([PROCESS + text for text in others]))
    decided = decide(shared, mount_label=FILE + own, process_label=PROCESS + own)
    assert relabelled(decided) == FILE + level
    assert "pod" in decided.operations[0].reason


@pytest.mark.parametrize("context", [FILE + "s0:c3,c4", FILE + "s0:c1,c2,c3", "system_u:object_r:tmpfs_t:s0:c1,c2"])
def test_an_inconsistent_context_option_stops_a_gpu_container(context: str) -> None:
    for level in ("s0:c1,c2", "s0", "s0:c1"):
        assert decide(SHM._replace(fixed=True, context=FILE + level)) == Labels(FILE + "s0:c1,c2", (), ())
    fixed = SHM._replace(fixed=True, context=context)
    with pytest.raises(BundleError, match="mount it without context="):
        decide(fixed)
    assert "mount it without" in decide(fixed, config=Settings(ipc_context_mismatch="warn")).notes[0]
    assert "mount it without" in decide(fixed, required=False).notes[0]


def test_the_administrator_turns_it_off_and_what_is_made_is_labelled_all_the_same() -> None:
    labels = decide(SHM, config=Settings(ipc_labels="off"))
    assert (labels.context, labels.operations) == (FILE + "s0:c1,c2", ())


@pytest.mark.parametrize("label", ["nonsense", "u:r:t:s0:c1,", "u:r:t:s0\n", "\ud800:r:t:s0", "u:r:t:" + "c" * 900])
def test_a_malformed_label_is_one_sentence(label: str) -> None:
    for words in ({"mount_label": label}, {"mount_label": "", "process_label": label}):
        with pytest.raises(BundleError) as caught:
            decide(SHM, **words)  # type: ignore[arg-type]
        assert str(caught.value).isprintable() and len(str(caught.value)) < 500


# --- contexts and levels are values with the algebra of a lattice

LEVELS = st.builds(
    Level, st.integers(0, 15), st.frozensets(st.integers(0, 1023), max_size=20) | st.frozensets(st.integers(0, 8))
)
NAMES = st.sampled_from(["system_u", "object_r", "container_file_t", "container_t", "a.b-c"])


@given(NAMES, NAMES, NAMES, st.none() | LEVELS, st.none() | LEVELS)
def test_a_context_is_read_as_printed(user: str, role: str, kind: str, low: Level | None, above: Level | None) -> None:
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
    [("s0:c2,c1", "s0:c1,c2"), ("s0:c1,c2,c3", "s0:c1.c3"), ("s0:c0.c1023", "s0:c0.c1023")]
    + [("s15:c7,c1.c3,c9", "s15:c1.c3,c7,c9")],
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
    with pytest.raises(ValueError):
        contexts.parse_context(text)


def test_a_level_has_so_many_categories_and_is_as_long_as_the_kernel_takes() -> None:
    low = contexts.parse_context(f"u:r:t:s0:c0.c{MOST - 1}").low
    assert low is not None and len(low.categories) == MOST
    # All name one category: how many they are is no fault.
    assert contexts.parse_level(f"s0:{'c1,' * 1364}c1").categories == {1}
