# SPDX-License-Identifier: Apache-2.0
"""Our libraries added to an ld.so.cache: bytes to bytes.  Pure.

A cache is read whole and all its rows are sorted again.  Into a large one that ldconfig has written, ours are inserted
instead: see `ldcache_splice`.

The bytes come from an image and are hostile: `MalformedCache` is the only error that they can bring, and the time is
linear in their number.
"""

from __future__ import annotations

from oci_gpu_hook.formats import ldcache, ldcache_order
from oci_gpu_hook.formats.ldcache_additions import Additions, sort_keys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.formats.ldcache import Table

# The number of rows from which on it is faster to splice.
MANY = 128


def merge(data: bytes | None, ours: Additions) -> bytes:
    """The cache `data` with `ours` in it, as ldconfig since glibc 2.32 would write it; MalformedCache for `data`.

    Every loader since glibc 2.2 reads it.  Among entries of one name, flags and hwcap, ours come first and in their
    order, so the loader takes them; the others stay listed.  An entry that is there already is moved, not doubled.
    `data` is None or empty where there is no cache.

    All rows are sorted, not only ours, unless ldconfig has written the cache.  Other programs write caches too, and
    some sort them by plain bytes: the loader's binary search misses names there, and would miss ours.
    """
    if data and ours.keys and ldcache.row_count(data) >= MANY:
        from oci_gpu_hook.formats import ldcache_splice

        spliced = ldcache_splice.spliced(data, ours)
        if spliced is not None:
            return spliced
    theirs = ldcache.read(data) if data else ldcache.NOTHING
    repeated = _repeated_rows(theirs, ours)
    table = ours.before(theirs)
    our_flags = table.flags[: len(ours.keys)]
    keys = [*ours.keys, *sort_keys(theirs.names, theirs.flags, theirs.hwcaps, our_flags)]
    order = [row for row in ldcache_order.descending(keys) if row not in repeated]
    base = ldcache.HEADER_SIZE + ldcache.ROW_SIZE * len(order)
    return ldcache.whole([ldcache.rows_of(table, order, base)], table, base)


def _repeated_rows(table: Table, ours: Additions) -> set[int]:
    """The rows of `table` that repeat one of ours, by their numbers in the table with our rows before its own."""
    sonames = set(ours.sonames)
    if sonames.isdisjoint(table.names):
        return set()
    entries = set(ours.entries())
    found = set()
    for row in [row for row, name in enumerate(table.names) if name in sonames]:
        path = table.strings[table.path_offsets[row] : table.path_ends[row]]
        if (table.names[row], path, table.flags[row]) in entries and not table.hwcaps[row]:
            found.add(row + len(ours.keys))
    return found
