# SPDX-License-Identifier: Apache-2.0
"""Our libraries added to an ld.so.cache: bytes to bytes.

Any cache is read whole and its rows are sorted anew.  One of many rows that ldconfig has signed is spliced: ours go
between its rows, most of which nobody looks at.  `ldso` has the format, `ldorder` the order of the rows.

The bytes come from an image and are hostile: `MalformedCache` is the only error that they can bring, and the time is
linear in their number.  Must not do I/O, nor import more than this: a container start waits for it.
"""

from __future__ import annotations

from oci_gpu_hook import ldorder, ldso
from oci_gpu_hook.ldso import Entry, Table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    _Said = tuple[bytes, bytes, int]  # soname, path, flags: what makes two entries the same

# How ldconfig has signed its caches since glibc 2.33; before the version stands who built it.
_LDCONFIG = b"ldconfig ("
# From how many rows on a cache is spliced, and how many are moved at a time; of how many one is looked at first.
_MANY, _STEP = 128, 32
# A row with 1 where it has the offset of a string.
_OFFSETS = bytes(4) + b"\1\0\0\0" * 2 + bytes(12)


def merge(data: bytes | None, additions: Iterable[Entry]) -> bytes:
    """The cache `data` with `additions` in it, as ldconfig since glibc 2.32 would write it.

    Every loader since glibc 2.2 reads it.  Among entries of one name, flags and hwcap, ours come
    first and in the order given, so the loader takes them; the others stay listed.  One that is
    there already is moved, not doubled.  None or no bytes stand for a cache that does not exist.

    All rows are sorted, not ours alone, but where ldconfig has signed the cache.  Other programs
    write caches too, and have sorted them by plain bytes, so that the loader's binary search missed
    names and would miss ours.

    Raises MalformedCache for `data`, and ValueError for an addition that no cache can hold.
    """
    ours = _checked(additions)
    if data and ours and ldso.row_count(data) >= _MANY:
        spliced = _spliced(data, ours)
        if spliced is not None:
            return spliced
    theirs = ldso.read(data) if data else ldso.NOTHING
    same = _same_rows(theirs, ours)
    table = _with_ours_first(theirs, ours, same)
    keys = _keys(table.names, table.flags, table.hwcaps, ours)
    gone = {row + len(ours) for rows in same.values() for row in rows}
    order = [row for row in ldorder.descending(keys) if row not in gone]
    base = ldso.HEADER_SIZE + ldso.ROW_SIZE * len(order)
    return ldso.whole(ldso.rows_of(table, order, base), table, base)


def _checked(additions: Iterable[Entry]) -> list[Entry]:
    """The additions, each once."""
    ours = list(additions)
    if not ours:
        return ours
    # By columns, for entry by entry takes as long as to sort them.
    sonames, paths, flags, osversions, hwcaps = zip(*ours)
    texts = sonames + paths
    if not all(texts) or max(map(len, texts)) > ldso.LONGEST_STRING or 0 in b"".join(texts):
        raise ValueError(
            "no ld.so.cache can hold a name or a path that is empty, long or has a NUL"
        )
    if any(hwcaps) or max(flags + osversions) >> 32 or min(flags + osversions) < 0:
        raise ValueError("no hwcap, and 32 bits of flags and OS version")
    once: dict[_Said, Entry] = {}
    for said, entry in zip(zip(sonames, paths, flags), ours):
        once.setdefault(said, entry)
    return list(once.values())


def _same_rows(table: Table, ours: list[Entry]) -> dict[_Said, list[int]]:
    """The rows that say what one of ours says."""
    sonames = {entry.soname for entry in ours}
    found: dict[_Said, list[int]] = {}
    if sonames.isdisjoint(table.names):
        return found
    wanted = {entry[:3] for entry in ours}
    for row in [row for row, name in enumerate(table.names) if name in sonames]:
        path = table.strings[table.path_offsets[row] : table.path_ends[row]]
        said = (table.names[row], path, table.flags[row])
        if said in wanted and not table.hwcaps[row]:
            found.setdefault(said, []).append(row)
    return found


def _with_ours_first(table: Table, ours: list[Entry], same: dict[_Said, list[int]]) -> Table:
    """The table with our rows in front; they use the strings of `same` rows or bring their own."""
    pieces, end = [table.strings], len(table.strings)
    sonames, flags, osversions, names, paths = [], [], [], [], []
    for soname, path, flag, osversion, _ in ours:
        sonames.append(soname)
        flags.append(flag)
        osversions.append(osversion)
        if same and (soname, path, flag) in same:
            row = same[soname, path, flag][0]
            names.append(table.name_offsets[row])
            paths.append(table.path_offsets[row])
            continue
        # A name may be the end of its path.
        text = path if path.endswith(soname) else path + b"\0" + soname
        pieces += (text, b"\0")
        paths.append(end)
        end += len(text) + 1
        names.append(end - len(soname) - 1)
    return table._replace(
        strings=b"".join(pieces),
        names=sonames + table.names,
        name_offsets=names + table.name_offsets,
        path_offsets=paths + table.path_offsets,
        flags=flags + table.flags,
        osversions=osversions + table.osversions,
        hwcaps=[0] * len(ours) + table.hwcaps,
    )


def _keys(
    names: list[bytes], flags: list[int], hwcaps: list[int] | None, ours: list[Entry]
) -> list[bytes]:
    """The rows' sort keys, for the machine that our entries are of; no `hwcaps` are zeros."""
    unsigned = ldso.NATIVE_FLAGS["aarch64"] in ({entry.flags for entry in ours} or flags)
    return ldorder.keys(names, flags, hwcaps or [0] * len(flags), unsigned=unsigned)


# --- splicing


def _spliced(data: bytes, ours: list[Entry]) -> bytes | None:
    """The merged cache where `data` is ldconfig's own and lists none of our names; None elsewhere.

    Its rows are in order, so ours only need a place: of a thousand names some hundred are looked at.  An image that
    lies about that, or about its strings, harms its own lookups and nothing else.
    """
    if len(data) > ldso.LARGEST:
        return None
    rows_end, count, size, hwcap_offsets, generator = ldso.measured(data, 0)
    end = rows_end + size
    if not generator.startswith(_LDCONFIG) or _has_long_string(data, rows_end, end):
        return None
    # A view, here and below: a copy of everything would be a tenth of what a start takes of memory.
    whole = memoryview(data)
    words = whole[ldso.HEADER_SIZE : rows_end].cast("I")
    for offsets in (words[1::6].tolist(), words[2::6].tolist(), hwcap_offsets):
        if offsets and (min(offsets) < rows_end or max(offsets) >= end):
            return None
    keys = _keys([entry.soname for entry in ours], [entry.flags for entry in ours], None, ours)
    places = _places(words, data, keys, ours)
    if places is None:
        return None
    theirs = [offset - rows_end for offset in hwcap_offsets]
    table = _with_ours_first(ldso.NOTHING._replace(hwcap_offsets=theirs), ours, {})
    shift = ldso.ROW_SIZE * len(ours)
    base = rows_end + shift
    new = ldso.rows_of(table, order := ldorder.descending(keys), base + size)
    pieces, done = [], 0
    for number, row in enumerate(order):
        pieces += _moved(words, done, places[row], shift)
        pieces.append(new[ldso.ROW_SIZE * number : ldso.ROW_SIZE * (number + 1)])
        done = places[row]
    pieces += _moved(words, done, count, shift)
    return ldso.whole(b"".join(pieces), table, base, whole[rows_end:end])


def _moved(words: memoryview, first: int, last: int, shift: int) -> list[bytes]:
    """The rows from `first` to `last`, with `shift` added to their offsets; some at a time, as one number each."""
    pieces = []
    for start in range(first, last, _MANY):
        rows = words[6 * start : 6 * min(start + _MANY, last)]
        added = shift * int.from_bytes(_OFFSETS * (len(rows) // 6), "little")
        moved = int.from_bytes(rows, "little") + added
        pieces.append(moved.to_bytes(4 * len(rows), "little"))
    return pieces


def _places(
    words: memoryview, data: bytes, keys: list[bytes], ours: list[Entry]
) -> list[int] | None:
    """Before which row each of `keys` belongs; None where the rows are out of order or have one of our names.

    One row of every `_STEP` tells where to look closer.
    """
    last = len(words) // 6 - 1

    def looked_at(rows: list[int]) -> tuple[list[bytes], list[bytes]]:
        starts = [words[6 * row + 1] for row in rows]
        names = [data[start : data.index(0, start)] for start in starts]
        flags = [words[6 * row] for row in rows]
        hwcaps = [words[6 * row + 4] | words[6 * row + 5] << 32 for row in rows]
        return names, _keys(names, flags, hwcaps, ours)

    marks = [*range(0, last, _STEP), last]
    _, above = looked_at(marks)
    gaps = {len([mark for mark in above if mark > key]) for key in keys}
    near = [row for gap in gaps for row in range(*marks[max(gap - 1, 0) : gap + 1])]
    rows = sorted({*marks, *near})
    names, found = looked_at(rows)
    sonames = {entry.soname for entry in ours}
    if found != sorted(found, reverse=True) or not sonames.isdisjoint(names):
        return None
    after = [len([row for row in found if row > key]) for key in keys]
    return [rows[number - 1] + 1 if number else 0 for number in after]


def _has_long_string(data: bytes, end: int, last: int) -> bool:
    """Whether any bytes but NUL, longer than a string may be, stand together, or the last string has no end."""
    while end < last:
        following = data.rfind(0, end, min(end + ldso.LONGEST_STRING + 1, last)) + 1
        if not following:
            return True
        end = following
    return False
