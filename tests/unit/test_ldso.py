# SPDX-License-Identifier: Apache-2.0
"""ldso.py against the real thing: ldconfig writes, lists and orders, the loader searches.

Where a test needs ldconfig, a C compiler or root for chroot(2), it skips without them and says so.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterable
from functools import cmp_to_key, partial
from pathlib import Path
from typing import Callable, NamedTuple

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from oci_gpu_hook import ldso
from oci_gpu_hook.ldso import Entry, MalformedCache, merge, parse

X86_64 = 0x0303
I386 = 0x0003
AARCH64 = 0x0A03

_PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
LDCONFIG = shutil.which("ldconfig", path=_PATH)
CC = shutil.which("cc", path=_PATH)
needs_ldconfig = pytest.mark.skipif(
    LDCONFIG is None or CC is None, reason="needs glibc's ldconfig and a C compiler"
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for chroot(2)")

OURS = [
    Entry(b"libcuda.so.1", b"/usr/lib64/libcuda.so.1", X86_64),
    Entry(b"libnvidia-ml.so.1", b"/usr/lib64/libnvidia-ml.so.550.54.15", X86_64),
    Entry(b"libnvidia-ml.so.1", b"/usr/lib/libnvidia-ml.so.550.54.15", I386),
]


# --- the real ldconfig


class Root:
    """A folder in which ldconfig -r finds libraries and writes caches."""

    def __init__(self, path: Path, library: bytes) -> None:
        self.path = path
        self._library = library
        (path / "etc").mkdir(parents=True)

    def add(self, folder: str, *sonames: bytes) -> None:
        """A library for each soname, at `folder`/soname."""
        place = self.path / folder
        place.mkdir(parents=True, exist_ok=True)
        for soname in sonames:
            text = soname.ljust(len(PLACEHOLDER), b"\0")
            file = os.path.join(os.fsencode(place), soname)
            Path(os.fsdecode(file)).write_bytes(self._library.replace(PLACEHOLDER, text))

    def cache(self, *folders: str, layout: str = "new") -> bytes:
        """What ldconfig writes for `folders` and those it always looks in."""
        assert LDCONFIG is not None
        (self.path / "etc/ld.so.conf").write_text("".join(f"/{folder}\n" for folder in folders))
        command = [LDCONFIG, "-X", "-r", str(self.path), "-c", layout, "-C", "/made"]
        subprocess.run(command, check=True, capture_output=True)
        return (self.path / "made").read_bytes()


PLACEHOLDER = b"lib-" + b"x" * 56


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A shared library whose SONAME is PLACEHOLDER."""
    assert CC is not None
    folder = tmp_path_factory.mktemp("library")
    (folder / "a.c").write_text("int which(void) { return 1; }\n")
    name = f"-Wl,-soname,{PLACEHOLDER.decode()},-z,noseparate-code,--build-id=none"
    command = [CC, "-shared", "-nostdlib", name, "-o", "a.so", "a.c"]
    subprocess.run(command, cwd=folder, check=True)
    data = (folder / "a.so").read_bytes()
    assert data.count(PLACEHOLDER) == 1
    return data


@pytest.fixture
def root(tmp_path: Path, library: bytes) -> Root:
    return Root(tmp_path / "root", library)


class Listed(NamedTuple):
    """A line of ldconfig -p."""

    soname: bytes
    kind: bytes
    path: bytes


def listed(folder: Path, data: bytes) -> list[Listed]:
    """What ldconfig -p says of a cache, checked against its own count."""
    assert LDCONFIG is not None
    file = folder / "to-list"
    file.write_bytes(data)
    command = [LDCONFIG, "-p", "-C", str(file)]
    output = subprocess.run(command, check=True, capture_output=True).stdout
    rows = re.findall(rb"^\t(.*?) \((libc6.*?)\) => (.*)$", output, re.MULTILINE)
    assert int(output.split(maxsplit=1)[0]) == len(rows)
    return [Listed(*row) for row in rows]


def shuffled(data: bytes, seed: int = 0) -> bytes:
    """A cache in the new layout with its rows in random order."""
    (count,) = struct.unpack_from("<I", data, 20)
    rows = [data[48 + 24 * row : 72 + 24 * row] for row in range(count)]
    random.Random(seed).shuffle(rows)
    return data[:48] + b"".join(rows) + data[48 + 24 * count :]


TRICKY = (
    [b"lib%d.so" % number for number in range(1, 13)]
    + [b"libx.so.%d" % number for number in (1, 2, 9, 10, 11, 99, 100)]
    + [b"libyaml-0.so.2", b"libyaml-cpp.so.0.8", b"libz.so", b"libz.so.1", b"libz3.so.4"]
    + [
        b"libo-%d.so" % number
        for number in (7, 2**30, 2**32 - 5, 2**32 + 3, 10**31 + 2**31 + 11, 10**40)
    ]
    + [b"libnum-000%d.so" % number for number in (8, 12, 100)]
    + [b"lib+.so", b"lib..so", b"lib_.so", b"libA.so", b"liba.so", b"lib~.so", b"lib-.so"]
    + [b"lib .so", b"lib\t.so", b"lib\x0b.so", b"lib\x1f.so", b"lib\x08.so", b"lib\x0e.so"]
    + ["libé.so".encode(), b"lib\xff.so", b"lib\x80.so", b"lib\x89.so", b"lib\x9f.so"]
    + [b"lib\xa0.so", b"lib\xa1.so", b"lib\x88.so", b"libe.so", b"libq.so\x80", b"libq.so"]
)


@needs_ldconfig
@pytest.mark.parametrize("layout", ["new", "compat", "old"])
def test_a_cache_of_ldconfig_reads_as_ldconfig_lists_it(
    root: Root, tmp_path: Path, layout: str
) -> None:
    root.add("opt/a", b"liba.so.1", b"libb.so.10", b"libb.so.9", b"libc10.so")
    data = root.cache("opt/a", layout=layout)
    lines = listed(tmp_path, data)
    assert len(lines) == 4
    assert [(entry.soname, entry.path) for entry in parse(data).entries] == [
        (line.soname, line.path) for line in lines
    ]


@needs_ldconfig
def test_glibc_hwcaps_and_the_generator_are_read(root: Root) -> None:
    root.add("opt/a", b"liba.so.1")
    root.add("opt/a/glibc-hwcaps/x86-64-v2", b"liba.so.1")
    root.add("opt/a/glibc-hwcaps/x86-64-v3", b"liba.so.1")
    cache = parse(root.cache("opt/a"))
    assert cache.hwcaps == (b"x86-64-v2", b"x86-64-v3")
    assert cache.generator.startswith(b"ldconfig ")
    assert [entry.hwcap for entry in cache.entries] == [1 << 62, 1 << 62 | 1, 0]
    # Inside the old layout ldconfig 2.36 lists other bytes as names; what it wrote is what we read.
    assert parse(root.cache("opt/a", layout="compat")) == cache


@needs_ldconfig
@pytest.mark.parametrize("seed", range(4))
def test_a_new_cache_has_the_order_of_ldconfig(root: Root, seed: int) -> None:
    chance = random.Random(seed)
    letters = b"ab.-_019+ \xc3"
    names = {b"lib" + bytes(chance.choices(letters, k=chance.randint(0, 9))) for _ in range(300)}
    distinct = {re.sub(rb"0+([0-9])", rb"\1", name) + b".so" for name in names}
    root.add("opt/a", *TRICKY, *distinct)
    expected = parse(root.cache("opt/a")).entries
    assert len(expected) == len({*TRICKY, *distinct})
    assert parse(merge(None, chance.sample(expected, len(expected)))).entries == expected


# Folders that count up to glibc 2.36, whose ldconfig -c compat corrupts its memory over them.
LEGACY = ["tls", "haswell", "x86_64/avx512_1"]


@needs_ldconfig
@pytest.mark.parametrize(("layout", "legacy"), [("new", LEGACY), ("compat", [])])
def test_merging_gives_the_listing_that_ldconfig_gives_with_our_folder_first(
    root: Root, tmp_path: Path, layout: str, legacy: list[str]
) -> None:
    theirs = [b"lib%d.so.%d" % (major, minor) for major in range(20) for minor in (1, 2, 10)]
    root.add("opt/theirs", *theirs, b"libcuda.so.1", b"libnvidia-ml.so.1")
    root.add("opt/theirs/glibc-hwcaps/x86-64-v2", b"libcuda.so.1", b"lib5.so.1", b"libcudb.so")
    root.add("opt/theirs/glibc-hwcaps/x86-64-v3", b"libcuda.so.1", b"libcudb.so")
    for folder in legacy:
        root.add(f"opt/theirs/{folder}", b"libcuda.so.1", b"lib5.so.1")
    before = root.cache("opt/theirs", layout=layout)
    sonames = [b"libcuda.so.1", b"libnvidia-ml.so.1", b"lib5.so.3", b"liba.so"]
    root.add("opt/ours", *sonames)
    expected = root.cache("opt/ours", "opt/theirs")
    ours = [Entry(name, b"/opt/ours/" + name, X86_64) for name in sonames]
    assert listed(tmp_path, merge(before, ours)) == listed(tmp_path, expected)
    assert b'hwcap: "x86-64-v3"' in b"".join(line.kind for line in listed(tmp_path, expected))


@needs_ldconfig
def test_a_cache_that_is_out_of_order_gets_the_order_of_ldconfig(
    root: Root, tmp_path: Path
) -> None:
    root.add("opt/a", *TRICKY)
    for hwcap in ("glibc-hwcaps/x86-64-v2", "glibc-hwcaps/x86-64-v4", *LEGACY):
        root.add(f"opt/a/{hwcap}", *TRICKY[::3])
    data = root.cache("opt/a")
    assert shuffled(data) != data
    assert parse(merge(shuffled(data), [])).entries == parse(data).entries
    assert listed(tmp_path, merge(shuffled(data), [])) == listed(tmp_path, data)


# --- the real loader

PROGRAM = r"""
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **names) {
    for (int i = 1; i < count; i++) {
        void *library = dlopen(names[i], RTLD_NOW);
        int (*which)(void) = library ? (int (*)(void)) dlsym(library, "which") : 0;
        printf("%d ", which ? which() : 0);
    }
    return 0;
}
"""


@pytest.fixture
def load(root: Root) -> Callable[[bytes, list[bytes]], list[int]]:
    """Puts a cache into the root and gives what each library's which() says there; 0: not found."""
    assert CC is not None
    (root.path / "load.c").write_text(PROGRAM)
    command = [CC, "-o", "load", "load.c", "-Wl,--no-as-needed", "-ldl"]
    subprocess.run(command, cwd=root.path, check=True)
    ldd = subprocess.run(["ldd", "load"], cwd=root.path, check=True, capture_output=True).stdout
    for file in re.findall(r"(/\S+) \(0x", ldd.decode()):
        (root.path / file[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, root.path / file[1:])

    def run(cache: bytes, names: list[bytes]) -> list[int]:
        (root.path / "etc/ld.so.cache").write_bytes(cache)
        done = subprocess.run(
            ["/load", *names], executable="/load", preexec_fn=lambda: os.chroot(root.path),
            check=True, capture_output=True,
        )  # fmt: skip
        return [int(word) for word in done.stdout.split()]

    return run


def _saying(root: Root, folder: str, soname: str, number: int) -> None:
    """A library whose which() gives `number`."""
    assert CC is not None
    (root.path / folder).mkdir(parents=True, exist_ok=True)
    (root.path / "say.c").write_text(f"int which(void) {{ return {number}; }}\n")
    name = f"-Wl,-soname,{soname}"
    command = [CC, "-shared", "-nostdlib", name, "-o", f"{folder}/{soname}", "say.c"]
    subprocess.run(command, cwd=root.path, check=True)


@needs_root
@needs_ldconfig
def test_the_loader_finds_every_library_through_a_merged_cache(
    root: Root, load: Callable[[bytes, list[bytes]], list[int]]
) -> None:
    names = [*TRICKY, *[b"lib%d.so.%d" % (one, two) for one in range(40) for two in (1, 9, 10)]]
    random.Random(7).shuffle(names)
    theirs, ours = names[::2], names[1::2]
    root.add("opt/theirs", *theirs)
    before = root.cache("opt/theirs")
    root.add("opt/ours", *ours)
    assert 0 in load(before, names)
    additions = [Entry(name, b"/opt/ours/" + name, X86_64) for name in ours]
    for data in (before, shuffled(before), root.cache("opt/theirs", layout="compat")):
        assert load(merge(data, additions), names) == [1] * len(names)
    assert load(merge(None, additions), ours) == [1] * len(ours)


@needs_root
@needs_ldconfig
def test_the_loader_takes_our_library_before_the_images_of_the_same_name(
    root: Root, load: Callable[[bytes, list[bytes]], list[int]]
) -> None:
    _saying(root, "opt/theirs", "libcuda.so.1", 2)
    _saying(root, "opt/ours", "libcuda.so.1", 3)
    before = root.cache("opt/theirs")
    addition = Entry(b"libcuda.so.1", b"/opt/ours/libcuda.so.1", X86_64)
    assert load(before, [b"libcuda.so.1"]) == [2]
    assert load(merge(before, [addition]), [b"libcuda.so.1"]) == [3]


@needs_root
@needs_ldconfig
def test_the_loader_still_takes_the_images_glibc_hwcaps_variants(
    root: Root, load: Callable[[bytes, list[bytes]], list[int]]
) -> None:
    _saying(root, "opt/theirs", "libfast.so.1", 2)
    _saying(root, "opt/theirs/glibc-hwcaps/x86-64-v2", "libfast.so.1", 3)
    before = root.cache("opt/theirs")
    if load(before, [b"libfast.so.1"]) != [3]:
        pytest.skip("this machine or its glibc has no x86-64-v2")
    assert load(merge(before, OURS), [b"libfast.so.1"]) == [3]


# --- order, by definition


def libcmp(one: bytes, two: bytes, signed: bool) -> int:
    """_dl_cache_libcmp as elf/dl-cache.c describes it, in C's arithmetic; 0 ends a string."""
    sign = 128 if signed else 256
    left = [char - 256 if char >= sign else char for char in one + b"\0"]
    right = [char - 256 if char >= sign else char for char in two + b"\0"]
    while left[0] != 0:
        digit_left, digit_right = 48 <= left[0] <= 57, 48 <= right[0] <= 57
        if digit_left and digit_right:
            difference = _int32(_number(left) - _number(right))
            if difference:
                return difference
        elif digit_left or digit_right:
            return 1 if digit_left else -1
        elif left[0] != right[0]:
            return left[0] - right[0]
        else:
            del left[0], right[0]
    return left[0] - right[0]


def _number(characters: list[int]) -> int:
    """The number at the start, taken off, as an int that overflows."""
    value = 0
    while 48 <= characters[0] <= 57:
        value = _int32(value * 10 + characters.pop(0) - 48)
    return value


def _int32(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


some_names = st.one_of(
    st.binary(min_size=1, max_size=12).map(lambda name: name.replace(b"\0", b"0")),
    st.text("ab.019", min_size=1, max_size=12).map(str.encode),
    st.from_regex(rb"lib[a-c]{0,2}[0-9]{0,12}\.so(\.[0-9]{1,3}){0,2}", fullmatch=True),
)


@settings(max_examples=1000)
@given(some_names, some_names, st.booleans())
def test_names_compare_as_in_glibc(one: bytes, two: bytes, signed: bool) -> None:
    # Where the difference of two overflown numbers overflows, glibc's comparison is no order.
    numbers = [int(run) for run in re.findall(rb"[0-9]+", one + b"." + two)]
    assume(all(number < 2**30 or _int32(number) < 0 for number in numbers))
    assume(all(_int32(number) >= -(2**30) for number in numbers))
    order = ldso._SIGNED if signed else ldso._UNSIGNED
    left, right = ldso._name_keys([one, two], order)
    expected = libcmp(one, two, signed)
    assert (left > right) - (left < right) == (expected > 0) - (expected < 0)


def test_a_cache_for_aarch64_is_ordered_by_characters_without_a_sign() -> None:
    names = [name for name in TRICKY if not re.search(rb"[0-9]{9}", name)]
    for flags, signed in ((AARCH64, False), (X86_64, True)):
        data = merge(None, [Entry(name, b"/" + name, flags) for name in names])
        expected = sorted(names, key=cmp_to_key(partial(libcmp, signed=signed)), reverse=True)
        assert [entry.soname for entry in parse(data).entries] == expected
        assert parse(merge(shuffled(data), [])) == parse(data)


def test_higher_flags_come_first_among_equal_names() -> None:
    some_flags = (I386, 0xFFFFFFFF, AARCH64, X86_64)
    entries = [Entry(b"liba.so", b"/%x" % flags, flags) for flags in some_flags]
    paths = [entry.path for entry in parse(merge(None, entries)).entries]
    assert paths == [b"/a03", b"/303", b"/3", b"/ffffffff"]  # the last is -1 in C


# --- merging

some_entries = st.tuples(
    some_names,
    st.binary(min_size=1, max_size=9).map(lambda path: b"/" + path.replace(b"\0", b"/")),
    st.sampled_from([X86_64, I386, AARCH64, 0xFFFFFFFF]),
    st.sampled_from([0, 0x020616]),
).map(lambda fields: Entry(*fields))
entries = st.lists(some_entries, max_size=8)


def said(entries: Iterable[Entry]) -> set[tuple[bytes, bytes, int]]:
    return {(entry.soname, entry.path, entry.flags) for entry in entries}


@given(entries, entries)
def test_a_merged_cache_holds_the_union(theirs: list[Entry], ours: list[Entry]) -> None:
    merged = list(parse(merge(merge(None, theirs), ours)).entries)
    assert said(merged) == said(theirs) | said(ours)


@given(entries, entries)
def test_merging_again_changes_nothing(theirs: list[Entry], ours: list[Entry]) -> None:
    merged = merge(merge(None, theirs), ours)
    assert merge(merged, ours) == merged


@given(entries, st.integers(0, 99))
def test_nothing_is_lost_from_a_cache_in_any_order(theirs: list[Entry], seed: int) -> None:
    data = merge(None, theirs)
    before = parse(data).entries
    assert sorted(parse(merge(shuffled(data, seed), [])).entries) == sorted(before)


def test_an_entry_that_is_there_already_moves_to_the_front_and_is_not_doubled() -> None:
    image = Entry(b"libcuda.so.1", b"/opt/compat/libcuda.so.1", X86_64)
    before = merge(None, [image, OURS[0], Entry(b"liba.so", b"/liba.so", X86_64)])
    merged = merge(before, [OURS[0]])
    assert [entry.path for entry in parse(merged).entries] == [
        b"/usr/lib64/libcuda.so.1",
        b"/opt/compat/libcuda.so.1",
        b"/liba.so",
    ]
    assert len(merged) == len(before)


def test_an_hwcaps_variant_at_our_path_stays_beside_ours() -> None:
    (row,) = parse(WITH_HWCAPS).entries
    variant = row._replace(hwcap=1 << 62)
    data = WITH_HWCAPS[:64] + struct.pack("<Q", 1 << 62) + WITH_HWCAPS[72:]
    assert parse(data).entries == (variant,)
    assert parse(merge(data, [row])).entries == (variant, row)


def test_the_os_version_of_an_entry_is_kept() -> None:
    entry = Entry(b"liba.so", b"/liba.so", X86_64, 0x020616)
    data = merge(None, [entry])
    assert parse(data).entries == (entry,)
    assert entry in parse(merge(data, OURS)).entries


def test_ours_keep_their_order_before_the_images() -> None:
    images = merge(None, [Entry(b"liba.so", b"/image", X86_64)])
    ours = [Entry(b"liba.so", b"/2", X86_64), Entry(b"liba.so", b"/1", X86_64)]
    assert [entry.path for entry in parse(merge(images, ours)).entries] == [b"/2", b"/1", b"/image"]


@pytest.mark.parametrize("nothing", [None, b""])
def test_a_missing_cache_becomes_one_of_ours_alone(nothing: bytes | None) -> None:
    cache = parse(merge(nothing, OURS))
    assert sorted(cache.entries) == sorted(OURS)
    assert cache.generator == b"oci-gpu-hook"
    assert parse(merge(nothing, [])).entries == ()


@pytest.mark.parametrize(
    "entry",
    [
        Entry(b"", b"/a", X86_64),
        Entry(b"a\0b", b"/a", X86_64),
        Entry(b"a", b"/a\0", X86_64),
        Entry(b"a", b"/" * 4096, X86_64),
        Entry(b"a", b"/a", -1),
        Entry(b"a", b"/a", 1 << 32),
        Entry(b"a", b"/a", X86_64, 1 << 32),
        Entry(b"a", b"/a", X86_64, 0, 1 << 62),
    ],
)
def test_an_addition_that_no_cache_can_hold_is_refused_as_ours(entry: Entry) -> None:
    with pytest.raises(ValueError, match="no ") as caught:
        merge(None, [entry])
    assert not isinstance(caught.value, MalformedCache)


# --- hostile bytes


def cache(rows: list[tuple[int, int]], strings: bytes, extensions: bytes = b"") -> bytes:
    """The new layout from scratch; offsets of strings count from the start of `strings`."""
    base = 48 + 24 * len(rows)
    packed = [struct.pack("<IIIIQ", X86_64, name + base, path + base, 0, 0) for name, path in rows]
    end = base + len(strings)
    padding = bytes(-end % 4) if extensions else b""
    start = end + len(padding) if extensions else 0
    magic = b"glibc-ld.so.cache1.1"
    header = struct.pack("<20sIIB3xI12x", magic, len(rows), len(strings), 2, start)
    return header + b"".join(packed) + strings + padding + extensions


WHOLE = cache([(5, 0)], b"/lib/liba.so\0")
HWCAPS = struct.pack("<11I", 0xEAA42174, 2, 0, 0, 132, 3, 1, 0, 128, 4, 85) + b"gen"
WITH_HWCAPS = cache([(5, 0)], b"/lib/liba.so\0v2\0", HWCAPS)


def test_the_caches_that_the_hostile_ones_are_made_of_are_sound() -> None:
    (entry,) = parse(WHOLE).entries
    assert entry == Entry(b"liba.so", b"/lib/liba.so", X86_64)
    header, rows, strings = WHOLE[:48], WHOLE[48:72], WHOLE[72:]
    assert len(WHOLE) == len(header + rows + strings) == 85


@pytest.mark.parametrize("size", range(len(WHOLE)))
def test_a_cache_cut_off_anywhere_is_malformed(size: int) -> None:
    with pytest.raises(MalformedCache):
        parse(WHOLE[:size])


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
        pytest.param(b"ld.so-1.7.0\0" + b"\xff" * 4, id="old rows beyond the end"),
        pytest.param(b"ld.so-1.7.0", id="old header cut off"),
        pytest.param(b"\0" * 4096, id="zeros"),
        pytest.param(WHOLE + bytes(ldso.LARGEST), id="too large"),
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


def _is_total(data: bytes) -> None:
    """Reading and merging end in a result or in MalformedCache, both in the same."""
    if data:
        assert _outcome(parse, data) == _outcome(lambda data: merge(data, OURS), data)
        if _outcome(parse, data):
            merged = merge(data, OURS)
            assert said(parse(merged).entries) == said(parse(data).entries) | said(OURS)
            assert merge(merged, OURS) == merged


@settings(max_examples=500)
@given(st.sampled_from([b"", WHOLE[:20], WHOLE[:48], b"ld.so-1.7.0\0"]), st.binary(max_size=200))
def test_any_bytes_are_read_or_malformed(start: bytes, rest: bytes) -> None:
    _is_total(start + rest)


def _embedded(old_rows: int, padding: bytes) -> bytes:
    """WITH_HWCAPS behind the old header and rows, its offsets from the start of the file set right."""
    start = struct.pack("<I", old_rows) + struct.pack("<III", X86_64, 5, 0) * old_rows + padding
    data = b"ld.so-1.7.0\0" + start
    shift = len(data)
    data += WITH_HWCAPS
    for place in (32, 104, 120):
        (offset,) = struct.unpack_from("<I", WITH_HWCAPS, place)
        data = _patched(shift + place, shift + offset, data)
    return data


EMBEDDED = _embedded(2, b"")
OLD = b"ld.so-1.7.0\0" + struct.pack("<IIII", 1, X86_64, 5, 0) + b"/lib/liba.so\0"
WRITTEN = merge(WITH_HWCAPS, OURS)


@settings(max_examples=1000)
@given(st.sampled_from([WHOLE, WITH_HWCAPS, EMBEDDED, OLD, WRITTEN]), st.data())
def test_a_cache_with_bytes_changed_is_read_or_malformed(data: bytes, draw: st.DataObject) -> None:
    changed = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 4))):
        place = draw.draw(st.integers(0, len(data) - 4))
        few = st.sampled_from([0, 1, 2, 4, 24, 48, 72, 85, 2**31, 2**32 - 1])
        value = draw.draw(few | st.integers(0, 2**32 - 1))
        width = draw.draw(st.sampled_from([1, 4]))
        changed[place : place + width] = struct.pack("<I", value)[:width]
    _is_total(bytes(changed))


def test_the_new_layout_is_found_inside_the_old_one() -> None:
    for data in (EMBEDDED, _embedded(1, b""), _embedded(1, bytes(4))):
        assert parse(data) == parse(WITH_HWCAPS)
    assert parse(OLD) == parse(WHOLE)
    assert parse(WRITTEN).hwcaps == (b"v2",)


def test_names_of_bytes_that_are_no_text_survive() -> None:
    name = bytes(range(1, 256))
    data = merge(cache([(1, 0)], b"/" + name + b"\0"), OURS)
    assert Entry(name, b"/" + name, X86_64) in parse(data).entries


def test_a_crooked_hwcaps_extension_counts_as_absent() -> None:
    assert parse(WITH_HWCAPS).hwcaps == (b"v2",)
    crooked = _patched(len(WITH_HWCAPS) - 11, 6, WITH_HWCAPS)
    assert parse(crooked).hwcaps == ()


# --- cost, relative only


def _seconds(work: Callable[[], object]) -> float:
    """The least of several runs."""
    times = []
    for _ in range(7):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def _outcome_seconds(data: bytes) -> float:
    return _seconds(lambda: (_outcome(parse, data), _outcome(lambda it: merge(it, OURS), data)))


def _many(count: int) -> bytes:
    sonames = [b"lib%d-%d.so.%d" % (number % 97, number, number % 7) for number in range(count)]
    return merge(None, [Entry(name, b"/usr/lib/" + name, X86_64) for name in sonames])


def test_ten_times_the_cache_takes_about_ten_times_as_long() -> None:
    small, large = _many(1000), _many(10000)
    assert _seconds(lambda: merge(large, OURS)) < 30 * _seconds(lambda: merge(small, OURS))


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
def test_no_cache_takes_much_longer_than_an_honest_one_of_its_size(
    row: Callable[[int], tuple[int, int]], strings: bytes
) -> None:
    hostile = cache([row(number) for number in range(6000)], strings)
    honest = _many(3000)
    assert len(honest) < 2 * len(hostile)
    assert _outcome_seconds(hostile) < 20 * _outcome_seconds(honest)


def test_it_imports_only_what_a_container_start_can_afford() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); before = set(sys.modules);"
        "import oci_gpu_hook.ldso; print(*sorted(set(sys.modules) - before))"
    )
    place = str(Path(ldso.__file__).parents[1])
    command = [sys.executable, "-I", "-S", "-c", code, place]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert set(output.split()) <= {
        "__future__", "_struct", "struct", "_collections", "oci_gpu_hook", "oci_gpu_hook.ldso",
        "oci_gpu_hook.record",
    }  # fmt: skip


# --- flags


def test_flags_follow_machine_and_word_size() -> None:
    class Known(NamedTuple):
        machine: int
        bits: int

    assert ldso.flags_of(Known(62, 64)) == ldso.NATIVE_FLAGS["x86_64"] == X86_64
    assert ldso.flags_of(Known(183, 64)) == ldso.NATIVE_FLAGS["aarch64"] == AARCH64
    assert ldso.flags_of(Known(3, 32)) == I386
    assert ldso.flags_of(Known(62, 32)) == 0x0803
    assert ldso.flags_of(Known(8, 32)) is None


@needs_ldconfig
def test_the_flags_of_this_machine_are_those_that_ldconfig_writes(root: Root) -> None:
    root.add("opt/a", b"liba.so.1")
    machine = os.uname().machine
    if machine not in ldso.NATIVE_FLAGS:
        pytest.skip(f"no GPU driver for {machine}")
    (entry,) = parse(root.cache("opt/a")).entries
    assert entry.flags == ldso.NATIVE_FLAGS[machine]
