# SPDX-License-Identifier: Apache-2.0
"""Our ld.so.caches against glibc's ldconfig: it writes, lists and orders.  Without it or a C compiler tests skip."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from oci_gpu_hook.formats import ldcache
from tests.unit.test_ldcache import AARCH64, X86_64, Entry, _patched, merge, parse, shuffled, unmarked

_PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
LDCONFIG = shutil.which("ldconfig", path=_PATH)
CC = shutil.which("cc", path=_PATH)
needs_ldconfig = pytest.mark.skipif(LDCONFIG is None or CC is None, reason="needs glibc's ldconfig and a C compiler")
# Elsewhere nothing is started, and any do.
NATIVE = ldcache.NATIVE_FLAGS.get(os.uname().machine, X86_64)


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


def listed(folder: Path, data: bytes) -> list[tuple[bytes, bytes, bytes]]:
    """What ldconfig -p says of a cache, checked against its own count: SONAME, kind and path of each line."""
    assert LDCONFIG is not None
    file = folder / "to-list"
    file.write_bytes(data)
    command = [LDCONFIG, "-p", "-C", str(file)]
    output = subprocess.run(command, check=True, capture_output=True).stdout
    rows: list[tuple[bytes, bytes, bytes]] = re.findall(rb"^\t(.*?) \((libc6.*?)\) => (.*)$", output, re.MULTILINE)
    assert int(output.split(maxsplit=1)[0]) == len(rows)
    return rows


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
    assert [(entry.soname, entry.path) for entry in parse(data).entries] == [(name, path) for name, _, path in lines]


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


def by_glibc(name: bytes) -> list[tuple[bool, int]]:
    """What elf/dl-cache.c compares of a name where characters have no sign, and its numbers are less than 2**31."""
    return [(run.isdigit(), int(run) if run.isdigit() else ord(run)) for run in re.findall(rb"(?s)[0-9]+|.", name)]


def test_a_cache_for_aarch64_is_ordered_by_characters_without_a_sign() -> None:
    names = [name for name in TRICKY if not re.search(rb"[0-9]{9}", name)]
    data = merge(None, [Entry(name, b"/" + name, AARCH64) for name in names])
    assert [entry.soname for entry in parse(data).entries] == sorted(names, key=by_glibc, reverse=True)
    assert parse(merge(shuffled(data), [])) == parse(data)
    # Without any extensions nobody says who has written it.
    assert parse(merge(_patched(32, 0, shuffled(data)), [])) == parse(data)
