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
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    _Said = tuple[bytes, bytes, int]  # soname, path, flags: what makes two entries the same

# How ldconfig has signed its caches since glibc 2.33; before the version stands who built it.
_LDCONFIG = b"ldconfig ("
# From how many rows on a cache is spliced, and how many are moved at a time; of how many one is looked at first.
_MANY, _STEP = 128, 32
# A row with 1 where it has the offset of a string.
_OFFSETS = bytes(4) + b"\1\0\0\0" * 2 + bytes(12)


class Additions(NamedTuple):
    """Entries made ready for any cache, each once.

    rows: as a cache has them, with offsets into `strings`; keys: what each is sorted by, as `ldorder` has it.
    """

    sonames: tuple[bytes, ...]
    rows: bytes
    strings: bytes
    keys: tuple[bytes, ...]


def prepare(entries: Iterable[Entry]) -> Additions:
    """Entries that a cache is to list beside its own; ValueError for one that no cache can hold."""
    ours = _checked(entries)
    # In place: an image may name thousands, by its folder of newer CUDA libraries.
    rows, strings = bytearray(), bytearray()
    for entry in ours:
        path = len(strings)
        # A name may be the end of its path.
        apart = b"" if entry.path.endswith(entry.soname) else b"\0" + entry.soname
        strings += entry.path + apart + b"\0"
        name = len(strings) - len(entry.soname) - 1
        for word in (entry.flags, name, path, entry.osversion, 0, 0):
            rows += word.to_bytes(4, "little")
    sonames, flags = [entry.soname for entry in ours], [entry.flags for entry in ours]
    keys = _keys(sonames, flags, [0] * len(ours), flags)
    return Additions(tuple(sonames), bytes(rows), bytes(strings), tuple(keys))


def entries_of(ours: Additions) -> list[Entry]:
    """The entries again, in the order in which they were given."""
    words, strings = memoryview(ours.rows).cast("I").tolist(), ours.strings
    paths = [strings[start : strings.index(0, start)] for start in words[2::6]]
    return [Entry(*row) for row in zip(ours.sonames, paths, words[::6], words[3::6])]


def _checked(entries: Iterable[Entry]) -> list[Entry]:
    """The entries, each once."""
    once: dict[_Said, Entry] = {}
    for entry in entries:
        soname, path, flags, osversion, hwcap = entry
        texts = (soname, path)
        if not all(texts) or max(map(len, texts)) > ldso.LONGEST_STRING or 0 in soname + path:
            raise ValueError(
                "no ld.so.cache can hold a name or a path that is empty, long or has a NUL"
            )
        if hwcap or not 0 <= flags < 1 << 32 or not 0 <= osversion < 1 << 32:
            raise ValueError("no hwcap, and 32 bits of flags and OS version")
        once.setdefault((soname, path, flags), entry)
    return list(once.values())


def merge(data: bytes | None, ours: Additions) -> bytes:
    """The cache `data` with `ours` in it, as ldconfig since glibc 2.32 would write it.

    Every loader since glibc 2.2 reads it.  Among entries of one name, flags and hwcap, ours come
    first and in the order given, so the loader takes them; the others stay listed.  One that is
    there already is moved, not doubled.  None or no bytes stand for a cache that does not exist.

    All rows are sorted, not ours alone, but where ldconfig has signed the cache.  Other programs
    write caches too, and have sorted them by plain bytes, so that the loader's binary search missed
    names and would miss ours.

    Raises MalformedCache for `data`.
    """
    if data and ours.keys and ldso.row_count(data) >= _MANY:
        spliced = _spliced(data, ours)
        if spliced is not None:
            return spliced
    theirs = ldso.read(data) if data else ldso.NOTHING
    gone = _same_rows(theirs, ours)
    table = _with_ours_first(theirs, ours)
    our_flags = table.flags[: len(ours.keys)]
    keys = [*ours.keys, *_keys(theirs.names, theirs.flags, theirs.hwcaps, our_flags)]
    order = [row for row in ldorder.descending(keys) if row not in gone]
    base = ldso.HEADER_SIZE + ldso.ROW_SIZE * len(order)
    return ldso.whole([ldso.rows_of(table, order, base)], table, base)


def _same_rows(table: Table, ours: Additions) -> set[int]:
    """The rows, with ours in front, that say what one of ours says."""
    sonames = set(ours.sonames)
    if sonames.isdisjoint(table.names):
        return set()
    wanted = {entry[:3] for entry in entries_of(ours)}
    found = set()
    for row in [row for row, name in enumerate(table.names) if name in sonames]:
        path = table.strings[table.path_offsets[row] : table.path_ends[row]]
        if (table.names[row], path, table.flags[row]) in wanted and not table.hwcaps[row]:
            found.add(row + len(ours.keys))
    return found


def _with_ours_first(table: Table, ours: Additions) -> Table:
    """The table with our rows in front, and our strings behind its own."""
    end = len(table.strings)
    words = memoryview(ours.rows).cast("I").tolist()
    return table._replace(
        strings=table.strings + ours.strings,
        name_offsets=[end + offset for offset in words[1::6]] + table.name_offsets,
        path_offsets=[end + offset for offset in words[2::6]] + table.path_offsets,
        flags=words[::6] + table.flags,
        osversions=words[3::6] + table.osversions,
        hwcaps=[0] * len(ours.keys) + table.hwcaps,
    )


def _keys(
    names: list[bytes], flags: list[int], hwcaps: list[int], our_flags: Collection[int]
) -> list[bytes]:
    """The rows' sort keys, for the machine that our entries are of."""
    unsigned = ldso.NATIVE_FLAGS["aarch64"] in (our_flags or flags)
    return ldorder.keys(names, flags, hwcaps, unsigned=unsigned) if names else []


# --- splicing


def _spliced(data: bytes, ours: Additions) -> bytes | None:
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
    for column in (words[1::6], words[2::6], hwcap_offsets):
        if not _is_within(column, rows_end, end):
            return None
    places = _places(words, data, ours)
    if places is None:
        return None
    theirs = [offset - rows_end for offset in hwcap_offsets]
    table = _with_ours_first(ldso.NOTHING._replace(hwcap_offsets=theirs), ours)
    shift = ldso.ROW_SIZE * len(ours.keys)
    base = rows_end + shift
    new = ldso.rows_of(table, order := ldorder.descending(ours.keys), base + size)
    pieces, done = [], 0
    for number, row in enumerate(order):
        pieces += _moved(words, done, places[row], shift)
        pieces.append(new[ldso.ROW_SIZE * number : ldso.ROW_SIZE * (number + 1)])
        done = places[row]
    pieces += _moved(words, done, count, shift)
    return ldso.whole(pieces, table, base, whole[rows_end:end])


def _is_within(offsets: Sequence[int] | memoryview, first: int, end: int) -> bool:
    """Whether all of them are from `first` on and before `end`.

    Some at a time: a list of all takes as much memory as the cache.
    """
    for start in range(0, len(offsets), _MANY):
        some = [*offsets[start : start + _MANY]]
        if min(some) < first or max(some) >= end:
            return False
    return True


def _moved(words: memoryview, first: int, last: int, shift: int) -> list[bytes]:
    """The rows from `first` to `last`, with `shift` added to their offsets; some at a time, as one number each."""
    pieces = []
    for start in range(first, last, _MANY):
        rows = words[6 * start : 6 * min(start + _MANY, last)]
        added = shift * int.from_bytes(_OFFSETS * (len(rows) // 6), "little")
        moved = int.from_bytes(rows, "little") + added
        pieces.append(moved.to_bytes(4 * len(rows), "little"))
    return pieces


def _places(words: memoryview, data: bytes, ours: Additions) -> list[int] | None:
    """Before which row each of ours belongs; None where the rows are out of order or have one of our names.

    One row of every `_STEP` tells where to look closer.
    """
    last = len(words) // 6 - 1
    our_flags = memoryview(ours.rows).cast("I").tolist()[::6]

    def looked_at(rows: list[int]) -> tuple[list[bytes], list[bytes]]:
        starts = [words[6 * row + 1] for row in rows]
        names = [data[start : data.index(0, start)] for start in starts]
        flags = [words[6 * row] for row in rows]
        hwcaps = [words[6 * row + 4] | words[6 * row + 5] << 32 for row in rows]
        return names, _keys(names, flags, hwcaps, our_flags)

    marks = [*range(0, last, _STEP), last]
    _, found = looked_at(marks)
    gaps = {_above(found, key) for key in ours.keys}
    near = [row for gap in gaps for row in range(*marks[max(gap - 1, 0) : gap + 1])]
    rows = sorted({*marks, *near})
    names, found = looked_at(rows)
    if found != sorted(found, reverse=True) or not set(ours.sonames).isdisjoint(names):
        return None
    numbers = [_above(found, key) for key in ours.keys]
    return [rows[number - 1] + 1 if number else 0 for number in numbers]


def _above(keys: list[bytes], key: bytes) -> int:
    """How many of `keys` are above `key`, if they descend; any number of them if they do not."""
    low, high = 0, len(keys)
    while low < high:
        middle = (low + high) // 2
        if keys[middle] > key:
            low = middle + 1
        else:
            high = middle
    return low


def _has_long_string(data: bytes, end: int, last: int) -> bool:
    """Whether any bytes but NUL, longer than a string may be, stand together, or the last string has no end."""
    while end < last:
        following = data.rfind(0, end, min(end + ldso.LONGEST_STRING + 1, last)) + 1
        if not following:
            return True
        end = following
    return False
