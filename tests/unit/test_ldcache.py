# SPDX-License-Identifier: Apache-2.0
"""An ld.so.cache with ours in it: what is kept, what hostile bytes do, and the cost; test_ldcache_glibc has glibc's."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_gpu_hook.formats import ldcache
from oci_gpu_hook.formats.ldcache import MalformedCache, paths_of
from tests.unit.bounded import MOST, is_linear, peak, steps


class Entry(NamedTuple):
    """One library.

    `hwcap` is the number in the file.  If of its bits above 41 only bit 62 is set, its lower half is an index into
    `Cache.hwcaps`; the loader ignores an entry whose index is out of range.
    """

    soname: bytes
    path: bytes
    flags: int
    osversion: int = 0
    hwcap: int = 0


class Cache(NamedTuple):
    """A whole cache in file order; `hwcaps` are glibc-hwcaps subdirectories, such as "x86-64-v3"."""

    entries: tuple[Entry, ...]
    hwcaps: tuple[bytes, ...]


def parse(data: bytes) -> Cache:
    """All entries of a cache; MalformedCache if `data` is none, or empty."""
    table = ldcache.parse_cache(data)
    paths = [table.path(row) for row in range(len(table.names))]
    rows = zip(table.names, paths, table.column(0), table.column(3), table.hwcaps())
    hwcaps = [table.strings[start - table.base :].partition(b"\0")[0] for start in table.hwcap_names]
    return Cache(tuple([Entry(*row) for row in rows]), tuple(hwcaps))


X86_64 = 0x0303
I386 = 0x0003
AARCH64 = 0x0A03

OURS = [
    Entry(b"libcuda.so.1", b"/usr/lib64/libcuda.so.1", X86_64),
    Entry(b"libnvidia-ml.so.1", b"/usr/lib64/libnvidia-ml.so.550.54.15", X86_64),
    Entry(b"libnvidia-ml.so.1", b"/usr/lib/libnvidia-ml.so.550.54.15", I386),
]


def merge(data: bytes | None, entries: Iterable[Entry], *folders: bytes) -> bytes:
    return ldcache.merge(data, [ldcache.Entry(*entry[:3]) for entry in entries], folders)


some_names = st.one_of(
    st.binary(min_size=1, max_size=12).map(lambda name: name.replace(b"\0", b"0")),
    st.text("ab.019", min_size=1, max_size=12).map(str.encode),
    st.from_regex(rb"lib[a-c]{0,2}[0-9]{0,12}\.so(\.[0-9]{1,3}){0,2}", fullmatch=True),
)

some_entries = st.tuples(
    some_names,
    st.binary(min_size=1, max_size=9).map(lambda path: b"/" + path.replace(b"\0", b"/")),
    st.sampled_from([X86_64, I386, AARCH64, 0xFFFFFFFF]),
).map(lambda fields: Entry(*fields))
entries = st.lists(some_entries, max_size=8)


def unmarked(data: bytes) -> bytes:
    """A cache of ldconfig's as another program may have written it: it says nothing of its order."""
    return re.sub(rb"ldconfig (?=[^\0]* release version [0-9.]+$)", b"nix-tool ", data)


def marked(data: bytes) -> bytes:
    """A cache of ours as ldconfig writes it."""
    assert data.endswith(b"oci-gpu-hook")
    return data[:-12] + b"ldconfig (G)"


def shuffled(data: bytes, seed: int = 0) -> bytes:
    """A cache in the new layout with its rows in random order, of which no mark says that they are in another."""
    data = unmarked(data)
    (count,) = struct.unpack_from("<I", data, 20)
    rows = [data[48 + 24 * row : 72 + 24 * row] for row in range(count)]
    random.Random(seed).shuffle(rows)
    return data[:48] + b"".join(rows) + data[48 + 24 * count :]


def contents(entries: Iterable[Entry]) -> set[tuple[bytes, bytes, int]]:
    return {(entry.soname, entry.path, entry.flags) for entry in entries}


@given(entries, entries)
def test_a_merged_cache_holds_the_union(theirs: list[Entry], ours: list[Entry]) -> None:
    merged = merge(merge(None, theirs), ours)
    assert contents(parse(merged).entries) == contents(theirs) | contents(ours)
    assert parse(merge(merged, ours)) == parse(merged)


@given(entries, entries)
def test_ours_are_put_where_sorting_would_put_them(theirs: list[Entry], ours: list[Entry]) -> None:
    # Each machine has its own order.
    theirs, ours = [[it for it in some if it.flags != AARCH64] for some in (theirs, ours)]
    data = merge(None, theirs)
    assert merge(marked(data), ours) == merge(data, ours)


@given(entries, entries, st.integers(0, 99))
def test_nothing_is_lost_where_the_mark_of_ldconfig_is_a_lie(theirs: list[Entry], ours: list[Entry], seed: int) -> None:
    data = merge(marked(shuffled(merge(None, theirs), seed)), ours)
    assert contents(parse(data).entries) == contents(theirs) | contents(ours)


def test_of_a_cache_of_ldconfig_few_names_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    data = marked(_many(3_000))
    keys = mock.Mock(wraps=ldcache.name_keys)
    monkeypatch.setattr(ldcache, "name_keys", keys)
    merge(data, OURS)
    assert 0 < sum([len(call.args[0]) for call in keys.call_args_list]) < 50


def test_an_entry_that_is_there_already_moves_to_the_front_and_is_not_doubled() -> None:
    image = Entry(b"libcuda.so.1", b"/opt/compat/libcuda.so.1", X86_64)
    before = merge(None, [image, OURS[0], Entry(b"liba.so", b"/liba.so", X86_64)])
    merged = merge(before, [OURS[0]])
    assert [entry.path for entry in parse(merged).entries] == [OURS[0].path, image.path, b"/liba.so"]
    # Its row is one; its strings are there twice.
    assert len(merged) - len(before) < 2 * len(OURS[0].path)
    # Ours keep their order before the image's.
    images, first, second = [Entry(b"liba.so", path, X86_64) for path in (b"/image", b"/2", b"/1")]
    assert parse(merge(merge(None, [images]), [first, second])).entries == (first, second, images)


def test_an_hwcaps_variant_at_our_path_stays_beside_ours() -> None:
    (row,) = parse(WITH_HWCAPS).entries
    variant = row._replace(hwcap=1 << 62)
    data = WITH_HWCAPS[:64] + struct.pack("<Q", 1 << 62) + WITH_HWCAPS[72:]
    assert parse(data).entries == (variant,)
    assert parse(merge(data, [row])).entries == (variant, row)
    # So does one with the version of an operating system.
    data = _patched(60, 0x020616)
    (entry,) = parse(data).entries
    assert entry.osversion == 0x020616
    assert entry in parse(merge(data, OURS)).entries


def test_a_spare_library_is_for_an_image_that_has_none_of_its_name() -> None:
    spare = tuple([ldcache.Entry(it, b"/usr/local/x/" + it, X86_64, spare=True) for it in (b"liba.so", b"libb.so")])
    of_32_bits, earlier = Entry(b"libb.so", b"/lib/libb.so", I386), Entry(b"libb.so", b"/usr/local/x/libb.so", X86_64)
    image = merge(None, [Entry(b"liba.so", b"/usr/lib64/liba.so", X86_64), of_32_bits, earlier])
    always = ldcache.Entry(*OURS[0][:3])
    assert ldcache.without_spares(image, (always, *spare), (b"/usr/local/x/",)) == (always, spare[1])
    # Without a cache a loader would find these before the image's own, in its own folders.
    for nothing in (b"", None):
        assert ldcache.without_spares(nothing, (always, *spare), ()) == (always,)
    with pytest.raises(ldcache.MalformedCache):
        ldcache.without_spares(b"no cache", spare, ())


DRIVERS = b"/usr/local/nvidia/"


def of_driver(*names: str) -> list[Entry]:
    return [Entry(name.encode(), DRIVERS + b"lib64/" + name.encode(), X86_64) for name in names]


@given(entries)
def test_what_an_earlier_driver_has_left_goes(theirs: list[Entry]) -> None:
    image, old, new = merge(None, theirs), of_driver("liba.so.1", "libb.so.535"), of_driver("liba.so.1", "libb.so.580")
    theirs = [*parse(image).entries]
    first = merge(image, old, DRIVERS)
    assert merge(first, old, DRIVERS) is first
    second = merge(first, new, DRIVERS)
    assert set(parse(second).entries) == {*theirs, *new}
    assert parse(merge(merge(second, old, DRIVERS), new, DRIVERS)) == parse(second)


@pytest.mark.parametrize("nothing", [None, b""])
def test_a_missing_cache_becomes_one_of_ours_alone(nothing: bytes | None) -> None:
    merged = merge(nothing, OURS)
    assert sorted(parse(merged).entries) == sorted(OURS)
    assert merged.endswith(b"oci-gpu-hook")
    assert parse(merge(nothing, [])).entries == ()


def test_higher_flags_come_first_among_equal_names() -> None:
    some_flags = (I386, 0xFFFFFFFF, AARCH64, X86_64)
    entries = [Entry(b"liba.so", b"/%x" % flags, flags) for flags in some_flags]
    paths = [entry.path for entry in parse(merge(None, entries)).entries]
    assert paths == [b"/a03", b"/303", b"/3", b"/ffffffff"]  # the last is -1 in C


def cache(rows: list[Any], strings: bytes, extensions: bytes = b"", more: tuple[int, int] = (0, 0)) -> bytes:
    """The new layout, offsets from the start of `strings`; more: by how much the counts are off."""
    base = 48 + 24 * len(rows)
    packed = []
    for name, path, *kind in rows:
        flags, hwcap = kind or (X86_64, 0)
        packed.append(struct.pack("<IIIIQ", flags, name + base, path + base, 0, hwcap))
    end = base + len(strings)
    padding = bytes(-end % 4) if extensions else b""
    start = end + len(padding) if extensions else 0
    counts = [max(count + it, 0) for count, it in zip((len(rows), len(strings)), more)]
    header = struct.pack("<20sIIB3xI12x", b"glibc-ld.so.cache1.1", *counts, 2, start)
    return header + b"".join(packed) + strings + padding + extensions


WHOLE = cache([(5, 0)], b"/lib/liba.so\0")
HWCAPS = struct.pack("<11I", 0xEAA42174, 2, 0, 0, 132, 3, 1, 0, 128, 4, 85) + b"gen"
MANY_HWCAPS = struct.pack("<6I", 0xEAA42174, 1, 1, 0, 4076, 8000) + struct.pack("<I", 48) * 2000
TOO_MANY_HWCAPS = struct.pack("<6I", 0xEAA42174, 1, 1, 0, 76, 2_000_000) + bytes(2_000_000)
WITH_HWCAPS = cache([(5, 0)], b"/lib/liba.so\0v2\0", HWCAPS)


def test_a_cache_cut_off_anywhere_is_malformed() -> None:
    assert parse(WHOLE).entries == (Entry(b"liba.so", b"/lib/liba.so", X86_64),)
    assert not [size for size in range(len(WHOLE)) if _outcome(parse, WHOLE[:size])]


def _patched(offset: int, value: int, data: bytes = WHOLE) -> bytes:
    return data[:offset] + struct.pack("<I", value) + data[offset + 4 :]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(_patched(20, 0xFFFFFFFF), id="rows beyond the end"),
        pytest.param(_patched(24, 0xFFFFFFFF), id="strings beyond the end"),
        pytest.param(_patched(28, 3), id="big-endian"),
        pytest.param(_patched(28, 1), id="invalid byte order"),
        pytest.param(_patched(32, 3), id="extensions out of line"),
        pytest.param(_patched(32, 0xFFFFFFFC), id="extensions beyond the end"),
        pytest.param(_patched(32, 48), id="extensions without their magic"),
        pytest.param(_patched(52, 0), id="a name in the header"),
        pytest.param(_patched(52, 71), id="a name in the rows"),
        pytest.param(_patched(56, 85), id="a path behind the strings"),
        pytest.param(_patched(56, 0xFFFFFFFF), id="a path far away"),
        pytest.param(WHOLE[:-1] + b"x", id="a string without end"),
        pytest.param(cache([(0, 0)], b"x" * 4096 + b"\0"), id="a string beyond PATH_MAX"),
        pytest.param(cache([(0, 0)] * 200, b"x" * 4000 + b"\0"), id="strings that overlap much"),
        pytest.param(cache([], b"x" * 4000 + bytes(4), MANY_HWCAPS), id="hwcaps that overlap much"),
        pytest.param(cache([], b"\0", TOO_MANY_HWCAPS), id="more hwcaps than there are"),
        pytest.param(b"ld.so-1.7.0\0" + b"\xff" * 4, id="old rows beyond the end"),
        pytest.param(b"ld.so-1.7.0", id="old header cut off"),
        pytest.param(b"\0" * 4096, id="zeros"),
        pytest.param(WHOLE + bytes(ldcache.LARGEST), id="too large"),
    ],
)
def test_a_broken_cache_is_malformed(data: bytes) -> None:
    for read in (parse, lambda data: merge(data, OURS)):
        with pytest.raises(MalformedCache):
            read(data)


def _outcome(read: Callable[[bytes], object], data: bytes) -> bool:
    try:
        read(data)
    except MalformedCache:
        return False
    return True


def test_the_new_layout_is_found_inside_the_old_one() -> None:
    """Aligned as on 64-bit machines, or as on 32-bit ones; ldconfig's own is test_ldcache_glibc.py's."""
    for rows, padding in ((2, b""), (1, b""), (1, bytes(4))):
        old = struct.pack("<I", rows) + struct.pack("<III", X86_64, 5, 0) * rows
        assert parse(b"ld.so-1.7.0\0" + old + padding + WHOLE) == parse(WHOLE)


@given(entries, st.integers(0, 99))
def test_paths_of_a_name_are_those_of_its_entries_in_the_caches_order(theirs: list[Entry], seed: int) -> None:
    data = shuffled(merge(None, theirs), seed)
    for name in {entry.soname for entry in theirs} | {b"libnone.so"}:
        paths = [entry.path for entry in parse(data).entries if entry.soname == name]
        assert paths_of(data, (name,)) == paths


def test_a_crooked_hwcaps_extension_counts_as_absent() -> None:
    assert parse(WITH_HWCAPS).hwcaps == (b"v2",)
    crooked = _patched(len(WITH_HWCAPS) - 11, 6, WITH_HWCAPS)
    assert parse(crooked).hwcaps == ()


def _outcome_steps(data: bytes) -> int:
    return steps(lambda: (_outcome(parse, data), _outcome(lambda it: merge(it, OURS), data)))


def _many(count: int) -> bytes:
    sonames = [b"lib%d-%d.so.%d" % (number % 97, number, number % 7) for number in range(count)]
    return merge(None, [Entry(name, b"/usr/lib/" + name, X86_64) for name in sonames])


def test_ten_times_the_additions_take_about_ten_times_as_long() -> None:
    """An image may name 4,096 by its folder of newer CUDA libraries."""

    def act(count: int) -> None:
        merge(None, [Entry(b"%0250d" % row, b"/%0250d" % row, X86_64) for row in range(count)])

    assert is_linear(act)


def test_ten_times_the_cache_takes_about_ten_times_as_long() -> None:
    caches = {entries: _many(entries) for entries in (1_000, 10_000)}
    assert is_linear(lambda entries: merge(caches[entries], OURS), entries=1_000)


@pytest.mark.parametrize(
    ("row", "strings"),
    [
        pytest.param(lambda number: (0, 0), b"/" * 4095 + b"\0", id="one long string"),
        pytest.param(lambda number: (number % 4095, 0), b"1" * 4095 + b"\0", id="its tails"),
        pytest.param(lambda number: (0, number), b"a" * 9999, id="no end"),
        pytest.param(lambda number: (number % 300, 0), b"7" * 300 + b"\0", id="tails of digits"),
        pytest.param(lambda number: (9 - number % 9, 0), b"7 7\t7\x0c7\x0b7 \0", id="blanks"),
    ],
)
def test_no_cache_takes_much_longer_than_an_honest_one(row: Callable[[int], tuple[int, int]], strings: bytes) -> None:
    hostile = cache([row(number) for number in range(6000)], strings)
    honest = _many(3000)
    assert len(honest) < 2 * len(hostile)
    assert _outcome_steps(hostile) < 20 * _outcome_steps(honest)


def _largest(name: bytes, rows: int) -> bytes:
    """A cache of the largest size, every row of which has this name, one byte off the row before it."""
    unit = b"/" + name + b"\0"
    room = ldcache.LARGEST - 48 - 24 * rows
    starts = [1 + row % 8 for row in range(rows)]
    return cache([(start, start) for start in starts], unit.ljust(room, b"\0"))


LARGEST: dict[str, Callable[[], bytes]] = {
    "long names": lambda: _largest(b"lib1.so." * 500, 20_000),
    "runs of digits": lambda: _largest(b"1a" * 15, 32_000),
    "runs of digits in long names": lambda: _largest(b"1a" * 128, 4_000),
    "escapes": lambda: _largest(b"\x1f" * 30, 32_000),
    "rows alone": lambda: _largest(b"123456789", 80_000),
    "rows of old": lambda: b"ld.so-1.7.0\0" + struct.pack("<I", 170_000) + bytes(12 * 170_000),
    "hwcaps": lambda: cache([], b"\0", TOO_MANY_HWCAPS),
    "extensions": lambda: cache([], b"\0", struct.pack("<2I", 0xEAA42174, 120_000) + bytes(16 * 120_000)),
    "an honest one": lambda: _many(28_000),
}


@pytest.mark.parametrize("kind", LARGEST)
def test_no_cache_takes_more_memory_than_a_start_may(kind: str) -> None:
    data = LARGEST[kind]()
    assert 0.5 < len(data) / ldcache.LARGEST <= 1.01
    assert peak(lambda: _outcome(lambda it: merge(it, OURS), data)) < MOST // 2
    assert peak(lambda: _outcome(lambda it: paths_of(it, (b"1a",)), data)) < MOST // 2


@given(st.lists(some_names, max_size=30))
def test_names_have_the_same_keys_in_blocks_of_any_size(names: list[bytes]) -> None:
    whole = ldcache.name_keys(names, unsigned=False)
    with pytest.MonkeyPatch.context() as patch:
        for size in (0, 1, 20):
            patch.setattr(ldcache, "_AT_ONCE", size)
            assert ldcache.name_keys(names, unsigned=False) == whole


def test_of_one_name_some_paths_are_found_and_none_beyond_path_max() -> None:
    data = merge(None, [Entry(b"liba.so", b"/%d" % number, X86_64) for number in range(300)])
    assert len(paths_of(data, (b"liba.so",))) == 256


def test_a_string_whose_end_is_an_earlier_drivers_stays_whole() -> None:
    """One that ends in the path of the driver's library, which ldconfig writes once for both."""
    other = Entry(b"libx.so.1", b"/srv" + DRIVERS + b"lib64/libold.so.1", X86_64)
    data = bytearray(merge(None, [other, *of_driver("libold.so.1")]))
    (count,) = struct.unpack_from("<I", data, 20)
    rows = [struct.unpack_from("<4IQ", data, 48 + 24 * row) for row in range(count)]
    by_path = {bytes(data[row[2] :]).partition(b"\0")[0]: row for row in rows}
    inner = by_path[other.path][2] + 4
    number = rows.index(by_path[DRIVERS + b"lib64/libold.so.1"])
    struct.pack_into("<I", data, 48 + 24 * number + 8, inner)
    assert set(parse(merge(bytes(data), of_driver("liba.so.1"), DRIVERS)).entries) == {other, *of_driver("liba.so.1")}
