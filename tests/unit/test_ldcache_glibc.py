# SPDX-License-Identifier: Apache-2.0
"""Our ld.so.caches against glibc's own program: ldconfig writes, lists and orders.  Where a test
needs ldconfig or a C compiler, it skips without them and says so.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from functools import cmp_to_key, partial
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from oci_gpu_hook.formats import ldcache
from tests.unit.caches import Row as Entry
from tests.unit.caches import parse
from tests.unit.examples import examples
from tests.unit.test_ldcache import AARCH64, X86_64, merge, shuffled, some_names, unmarked

_PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
LDCONFIG = shutil.which("ldconfig", path=_PATH)
CC = shutil.which("cc", path=_PATH)
needs_ldconfig = pytest.mark.skipif(LDCONFIG is None or CC is None, reason="needs glibc's ldconfig and a C compiler")
# Elsewhere nothing is started, and any do.
NATIVE = ldcache.NATIVE_FLAGS.get(os.uname().machine, X86_64)
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


TRICKY = (
    [b"lib%d.so" % number for number in range(1, 13)]
    + [b"libx.so.%d" % number for number in (1, 2, 9, 10, 11, 99, 100)]
    + [b"libyaml-0.so.2", b"libyaml-cpp.so.0.8", b"libz.so", b"libz.so.1", b"libz3.so.4"]
    + [b"libo-%d.so" % number for number in (7, 2**30, 2**32 - 5, 2**32 + 3, 10**31 + 2**31 + 11, 10**40)]
    + [b"libnum-000%d.so" % number for number in (8, 12, 100)]
    + [b"lib+.so", b"lib..so", b"lib_.so", b"libA.so", b"liba.so", b"lib~.so", b"lib-.so"]
    + [b"lib .so", b"lib\t.so", b"lib\x0b.so", b"lib\x1f.so", b"lib\x08.so", b"lib\x0e.so"]
    + ["libé.so".encode(), b"lib\xff.so", b"lib\x80.so", b"lib\x89.so", b"lib\x9f.so"]
    + [b"lib\xa0.so", b"lib\xa1.so", b"lib\x88.so", b"libe.so", b"libq.so\x80", b"libq.so"]
)


@needs_ldconfig
@pytest.mark.parametrize("layout", ["new", "compat", "old"])
def test_a_cache_of_ldconfig_reads_as_ldconfig_lists_it(root: Root, tmp_path: Path, layout: str) -> None:
    root.add("opt/a", b"liba.so.1", b"libb.so.10", b"libb.so.9", b"libc10.so")
    data = root.cache("opt/a", layout=layout)
    lines = listed(tmp_path, data)
    assert len(lines) == 4
    assert [(entry.soname, entry.path) for entry in parse(data).entries] == [(line.soname, line.path) for line in lines]


@needs_ldconfig
def test_glibc_hwcaps_are_read(root: Root) -> None:
    root.add("opt/a", b"liba.so.1")
    root.add("opt/a/glibc-hwcaps/x86-64-v2", b"liba.so.1")
    root.add("opt/a/glibc-hwcaps/x86-64-v3", b"liba.so.1")
    cache = parse(root.cache("opt/a"))
    assert cache.hwcaps == (b"x86-64-v2", b"x86-64-v3")
    assert [entry.hwcap for entry in cache.entries] == [1 << 62, 1 << 62 | 1, 0]
    # Inside the old layout ldconfig 2.36 lists other bytes as names; what it wrote is what we read.
    assert parse(root.cache("opt/a", layout="compat")) == cache


# Folders that count up to glibc 2.36, whose ldconfig -c compat corrupts its memory over them.
LEGACY = ["tls", "haswell", "x86_64/avx512_1"]


@needs_ldconfig
@pytest.mark.parametrize("seed", range(2))
def test_caches_have_the_order_of_ldconfig(root: Root, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    letters = b"ab.-_019+ \xc3"
    names = {b"lib" + bytes(chance.choices(letters, k=chance.randint(0, 9))) for _ in range(300)}
    distinct = {re.sub(rb"0+([0-9])", rb"\1", name) + b".so" for name in names}
    root.add("opt/a", *TRICKY, *distinct)
    expected = parse(root.cache("opt/a")).entries
    assert len(expected) == len({*TRICKY, *distinct})
    assert parse(merge(None, chance.sample(expected, len(expected)))).entries == expected
    for hwcap in ("glibc-hwcaps/x86-64-v2", "glibc-hwcaps/x86-64-v4", *LEGACY):
        root.add(f"opt/a/{hwcap}", *TRICKY[::3])
    data = root.cache("opt/a")
    assert shuffled(data) != data
    assert parse(merge(shuffled(data), [])).entries == parse(data).entries
    assert listed(tmp_path, merge(shuffled(data), [])) == listed(tmp_path, data)


@needs_ldconfig
@pytest.mark.parametrize("seed", range(2))
def test_ours_get_the_place_that_ldconfig_gives_them_among_hundreds(root: Root, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    numbers = [b"lib%s%d.so.1" % (stem, i) for stem in (b"a", b"Q-", b"z+") for i in range(120)]
    names = list(dict.fromkeys([*TRICKY, *numbers]))
    ours = chance.sample(names, 25)
    root.add("opt/theirs", *[name for name in names if name not in ours])
    root.add("opt/theirs/glibc-hwcaps/x86-64-v3", *numbers[::7])
    before = root.cache("opt/theirs")
    root.add("opt/ours", *ours)
    expected = root.cache("opt/ours", "opt/theirs")
    entries = [Entry(name, b"/opt/ours/" + name, NATIVE) for name in ours]
    merged = merge(before, entries)
    assert listed(tmp_path, merged) == listed(tmp_path, expected)
    assert unmarked(before) != before
    assert merge(unmarked(before), entries) == merged
    assert parse(merge(shuffled(before), entries)) == parse(merged)


@needs_ldconfig
def test_the_flags_of_this_machine_are_those_that_ldconfig_writes(root: Root) -> None:
    root.add("opt/a", b"liba.so.1")
    machine = os.uname().machine
    if machine not in ldcache.NATIVE_FLAGS:
        pytest.skip(f"no GPU driver for {machine}")
    (entry,) = parse(root.cache("opt/a")).entries
    assert entry.flags == ldcache.NATIVE_FLAGS[machine]


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


@examples(300)
@given(some_names, some_names, st.booleans())
def test_names_compare_as_in_glibc(one: bytes, two: bytes, signed: bool) -> None:
    # Where the difference of two overflown numbers overflows, glibc's comparison is no order.
    numbers = [int(run) for run in re.findall(rb"[0-9]+", one + b"." + two)]
    assume(all(number < 2**30 or _int32(number) < 0 for number in numbers))
    assume(all(_int32(number) >= -(2**30) for number in numbers))
    left, right = ldcache.name_keys([one, two], unsigned=not signed)
    expected = libcmp(one, two, signed)
    assert (left > right) - (left < right) == (expected > 0) - (expected < 0)


def test_a_cache_for_aarch64_is_ordered_by_characters_without_a_sign() -> None:
    names = [name for name in TRICKY if not re.search(rb"[0-9]{9}", name)]
    for flags, signed in ((AARCH64, False), (X86_64, True)):
        data = merge(None, [Entry(name, b"/" + name, flags) for name in names])
        expected = sorted(names, key=cmp_to_key(partial(libcmp, signed=signed)), reverse=True)
        assert [entry.soname for entry in parse(data).entries] == expected
        assert parse(merge(shuffled(data), [])) == parse(data)
