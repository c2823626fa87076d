# SPDX-License-Identifier: Apache-2.0
"""Our libraries added to an ld.so.cache: bytes to bytes.  Pure.

The loader finds names by a binary search, so the order of the rows is part of the format.  Source: glibc's
``elf/cache.c`` (in which order ldconfig writes) and ``elf/dl-cache.c`` (how the loader searches), 2.17 to 2.41.  Each
row gets a sort key of bytes, which Python compares in one step.

The bytes come from an image and are hostile: any name has a key, `MalformedCache` is the only error that they can
bring, and the time is linear in their number.
"""

from __future__ import annotations

from oci_gpu_hook.formats import ldcache
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# glibc compares names as C chars, which are signed on x86 and unsigned on ARM, but puts digits after all other chars
# and compares a run of digits as a number.  All bytes, the lowest first:
_BYTES = bytes(range(256))
_SIGNED = _BYTES[128:] + _BYTES[:48] + _BYTES[58:128] + _BYTES[48:58]
_UNSIGNED = _BYTES[:48] + _BYTES[58:] + _BYTES[48:58]
# A byte's place in these is its rank.  Digits have the highest ten in both.
_ZERO, _ONE = _BYTES[246:247], _BYTES[247:248]
_ZEROS = _ZERO * 10
_FROM_DIGITS = bytes.maketrans(_BYTES[246:], b"0123456789")
_TO_DIGITS = bytes.maketrans(b"0123456789", _BYTES[246:])
_ONLY_DIGITS = b" " * 246 + _BYTES[246:]
_NO_DIGITS = _BYTES[:246] + b" " * 10
# bytes.split() takes some ranks for white space.  Two other ranks replace each of them, and the rank before them.
_PAIRS = [(8, 8), (8, 9), (8, 10), (8, 11), (8, 12), (8, 13), (31, 31), (31, 32)]
_ESCAPES = [(bytes([rank]), bytes([first, 64 + rank])) for first, rank in _PAIRS]
# The bytes of names that are handled in one block: each may take two hundred while that is done.
_AT_ONCE = 1 << 12


class Entry(NamedTuple):
    """One library of ours; flags: of `ldcache.FLAGS`."""

    soname: bytes
    path: bytes
    flags: int
    osversion: int = 0


def merge(data: bytes | None, ours: Iterable[Entry]) -> bytes:
    """The cache `data` with `ours` in it, as ldconfig since glibc 2.32 would write it; MalformedCache for `data`.

    Every loader since glibc 2.2 reads it.  Among entries of one name, flags and hwcap, ours come first and in their
    order, so the loader takes them; the others stay listed.  An entry that is there already is moved, not doubled.
    `data` is None or empty if there is no cache.  Ours have no hwcap.

    All rows are sorted, not only ours.  Other programs than ldconfig write caches too, and some sort them by plain
    bytes: the loader's binary search misses names there, and would miss ours.
    """
    theirs = ldcache.read(data) if data else ldcache.NOTHING
    versions: dict[tuple[bytes, bytes, int], int] = {}
    for soname, path, flags, version in ours:
        versions.setdefault((soname, path, flags), version)
    table = _before(theirs, versions)
    # C chars are unsigned on ARM.
    unsigned = ldcache.NATIVE_FLAGS["aarch64"] in ([flags for _, _, flags in versions] or theirs.column(0))
    repeated = _repeated_rows(theirs, versions)
    # The keys are gone before the rows are copied.
    rows = sorted(range(len(table.names)), key=_keys(table, unsigned=unsigned).__getitem__, reverse=True)
    return ldcache.written(table, [row for row in rows if row not in repeated])


def _before(table: ldcache.Table, ours: dict[tuple[bytes, bytes, int], int]) -> ldcache.Table:
    """The table with rows for `ours` before its own rows, and their strings after its own strings."""
    # A bytearray grows in place: an image's folder of newer CUDA libraries may hold thousands of names.
    strings, rows = bytearray(table.strings), bytearray()
    for (soname, path, flags), version in ours.items():
        start = len(strings) + table.base
        # A name that is the end of its path needs no string of its own.
        strings += path + b"\0" if path.endswith(soname) else path + b"\0" + soname + b"\0"
        rows += ldcache.row(flags, len(strings) + table.base - len(soname) - 1, start, version)
    names = [soname for soname, _, _ in ours] + table.names
    return table._replace(strings=bytes(strings), rows=bytes(rows) + table.rows, names=names)


def _repeated_rows(table: ldcache.Table, ours: dict[tuple[bytes, bytes, int], int]) -> set[int]:
    """The rows of `table` that repeat one of ours, by their numbers in the table with our rows before its own."""
    sonames = {soname for soname, _, _ in ours}
    flags, hwcaps = table.column(0), table.hwcaps()
    same = [row for row, name in enumerate(table.names) if name in sonames and not hwcaps[row]]
    return {row + len(ours) for row in same if (table.names[row], table.path(row), flags[row]) in ours}


def _keys(table: ldcache.Table, *, unsigned: bool) -> list[bytes]:
    """For each row, bytes that compare as ldconfig compares entries; `unsigned`: whether C chars are."""
    found = name_keys(table.names, unsigned=unsigned) if table.names else []
    flags, hwcaps = table.column(0), table.hwcaps()
    suffixes = {kind: _suffix(*kind) for kind in set(zip(flags, hwcaps))}
    # In place: keys with and without their ends would take twice the memory.
    for row, kind in enumerate(zip(flags, hwcaps)):
        found[row] += suffixes[kind]
    return found


def name_keys(names: list[bytes], *, unsigned: bool) -> list[bytes]:
    """For each name, bytes that compare as glibc's _dl_cache_libcmp compares names.

    No key is the start of another.
    """
    if sum(map(len, names)) <= _AT_ONCE:
        return _keys_of_block(names, unsigned=unsigned)
    found: list[bytes] = []
    first, size = 0, 0
    for number, name in enumerate(names):
        size += len(name)
        if size > _AT_ONCE:
            found += _keys_of_block(names[first:number], unsigned=unsigned)
            first, size = number, len(name)
    return found + _keys_of_block(names[first:], unsigned=unsigned)


def _keys_of_block(names: list[bytes], *, unsigned: bool) -> list[bytes]:
    """The keys of some names, in one block: the methods of bytes are fast, and steps of Python are slow.

    Each byte becomes its rank, each run of digits gets the same length, and each name ends with the rank of NUL.
    """
    order = _UNSIGNED if unsigned else _SIGNED
    end = bytes([order.index(0)])
    block = b"\0".join([*names, b""]).translate(bytes.maketrans(order, _BYTES))
    for rank, escaped in _ESCAPES:
        block = block.replace(rank, escaped)
    numbers = block.translate(_ONLY_DIGITS).split()
    pieces = [b""] * (2 * len(numbers) + 1)
    pieces[::2] = (end + block).translate(_NO_DIGITS).split()
    # Most runs of digits occur many times.
    equal = {run: _ONE + (_ZEROS + run)[-10:] if len(run) < 10 else _wrapped(run) for run in set(numbers)}
    pieces[1::2] = map(equal.__getitem__, numbers)
    return b"".join(pieces)[1:].replace(end, end + b" ").split()


def _wrapped(number: bytes) -> bytes:
    """A long run of digits as the C int that glibc gets from it by overflow; negative ones sort below the others.

    Only its last 32 digits count, as 2**32 divides 10**32.
    """
    value = int(number[-32:].translate(_FROM_DIGITS)) & 0xFFFFFFFF
    return (_ZERO if value >> 31 else _ONE) + (b"%010d" % value).translate(_TO_DIGITS)


def _suffix(flags: int, hwcap: int) -> bytes:
    """The end of a key, which decides among equal names, by compare() in elf/cache.c; the highest comes first.

    First come higher flags; then libraries of glibc-hwcaps subdirectories, in the order of the subdirectories' names
    and so of their indices; then, from glibc before 2.37, those of legacy hwcaps, by the number of bits and the value;
    last those that every machine can use.
    """
    rank = (flags ^ 0x80000000).to_bytes(4, "big")  # in C it is an int
    if hwcap >> 42 == 1 << 20:  # below that are ten bits of ISA level and the index
        return rank + b"\1" + (0xFFFFFFFF - (hwcap & 0xFFFFFFFF)).to_bytes(4, "big")
    return rank + b"\0" + bytes([bin(hwcap).count("1")]) + hwcap.to_bytes(8, "big")
