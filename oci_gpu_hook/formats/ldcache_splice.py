# SPDX-License-Identifier: Apache-2.0
"""Our libraries inserted between the rows of an ld.so.cache that ldconfig has written.  Pure.

Its rows are in the loader's order, so only the places of ours must be found: of a thousand rows some hundred are looked
at.  An image whose rows or strings are not as ldconfig writes them harms its own lookups and nothing else.
"""

from __future__ import annotations

from oci_gpu_hook.formats import ldcache, ldcache_order
from oci_gpu_hook.formats.ldcache_additions import Additions, sort_keys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# How the generator of ldconfig's caches begins, since glibc 2.33; who built it and the version follow.
_LDCONFIG = b"ldconfig ("
# One row in _STEP is looked at first; _AT_A_TIME rows are moved at once.
_STEP, _AT_A_TIME = 32, 128
# A row with 1 in the place of each string's offset.
_OFFSETS = bytes(4) + b"\1\0\0\0" * 2 + bytes(12)


def spliced(data: bytes, ours: Additions) -> bytes | None:
    """The merged cache; None where `data` is not from ldconfig, or lists one of our names; MalformedCache."""
    if len(data) > ldcache.LARGEST:
        return None
    rows_end, count, size, hwcap_offsets, generator = ldcache.measured(data, 0)
    end = rows_end + size
    if not generator.startswith(_LDCONFIG) or _has_long_string(data, rows_end, end):
        return None
    # Views, here and below: a copy of the cache would take a tenth of a start's memory.
    whole = memoryview(data)
    words = whole[ldcache.HEADER_SIZE : rows_end].cast("I")
    for column in (words[1::6], words[2::6], hwcap_offsets):
        if not _is_within(column, rows_end, end):
            return None
    places = _places(words, data, ours)
    if places is None:
        return None
    theirs = [offset - rows_end for offset in hwcap_offsets]
    table = ours.before(ldcache.NOTHING._replace(hwcap_offsets=theirs))
    shift = ldcache.ROW_SIZE * len(ours.keys)
    base = rows_end + shift
    new = ldcache.rows_of(table, order := ldcache_order.descending(ours.keys), base + size)
    pieces, done = [], 0
    for number, row in enumerate(order):
        pieces += _moved(words, done, places[row], shift)
        pieces.append(new[ldcache.ROW_SIZE * number : ldcache.ROW_SIZE * (number + 1)])
        done = places[row]
    pieces += _moved(words, done, count, shift)
    return ldcache.whole(pieces, table, base, whole[rows_end:end])


def _is_within(offsets: Sequence[int] | memoryview, first: int, end: int) -> bool:
    """Whether all offsets are at least `first` and below `end`.

    Only some are listed at a time: a list of all takes as much memory as the cache.
    """
    for start in range(0, len(offsets), _AT_A_TIME):
        some = [*offsets[start : start + _AT_A_TIME]]
        if min(some) < first or max(some) >= end:
            return False
    return True


def _moved(words: memoryview, first: int, last: int, shift: int) -> list[bytes]:
    """The rows from `first` to `last`, with `shift` added to their offsets: many rows at a time, as one number."""
    pieces = []
    for start in range(first, last, _AT_A_TIME):
        rows = words[6 * start : 6 * min(start + _AT_A_TIME, last)]
        added = shift * int.from_bytes(_OFFSETS * (len(rows) // 6), "little")
        moved = int.from_bytes(rows, "little") + added
        pieces.append(moved.to_bytes(4 * len(rows), "little"))
    return pieces


def _places(words: memoryview, data: bytes, ours: Additions) -> list[int] | None:
    """The row before which each of ours belongs; None where the rows are out of order or have one of our names.

    One row of every `_STEP` is compared first, then the rows between two of these.
    """
    last = len(words) // 6 - 1
    our_flags = memoryview(ours.rows).cast("I").tolist()[::6]

    def names_and_keys(rows: list[int]) -> tuple[list[bytes], list[bytes]]:
        starts = [words[6 * row + 1] for row in rows]
        ends = [data.index(0, start) for start in starts]
        if sum(ends) - sum(starts) > ldcache.MOST_COMPARED:
            raise ldcache.MalformedCache("the names overlap too much")
        names = [data[start:end] for start, end in zip(starts, ends)]
        flags = [words[6 * row] for row in rows]
        hwcaps = [words[6 * row + 4] | words[6 * row + 5] << 32 for row in rows]
        return names, sort_keys(names, flags, hwcaps, our_flags)

    marks = [*range(0, last, _STEP), last]
    _, found = names_and_keys(marks)
    gaps = {_above(found, key) for key in ours.keys}
    near = [row for gap in gaps for row in range(*marks[max(gap - 1, 0) : gap + 1])]
    rows = sorted({*marks, *near})
    names, found = names_and_keys(rows)
    if found != sorted(found, reverse=True) or not set(ours.sonames).isdisjoint(names):
        return None
    numbers = [_above(found, key) for key in ours.keys]
    return [rows[number - 1] + 1 if number else 0 for number in numbers]


def _above(keys: list[bytes], key: bytes) -> int:
    """How many of `keys` are above `key`, if they are in descending order; else any number."""
    low, high = 0, len(keys)
    while low < high:
        middle = (low + high) // 2
        if keys[middle] > key:
            low = middle + 1
        else:
            high = middle
    return low


def _has_long_string(data: bytes, end: int, last: int) -> bool:
    """Whether a run of bytes without a NUL is longer than a string may be, or the last string has no end."""
    while end < last:
        following = data.rfind(0, end, min(end + ldcache.LONGEST_STRING + 1, last)) + 1
        if not following:
            return True
        end = following
    return False
