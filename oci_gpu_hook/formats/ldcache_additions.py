# SPDX-License-Identifier: Apache-2.0
"""Entries that were made ready for any ld.so.cache, and how a table gets them.  Pure."""

from __future__ import annotations

from oci_gpu_hook.formats import ldcache_order
from oci_gpu_hook.formats.ldcache import NATIVE_FLAGS, Table
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection


class Additions(NamedTuple):
    """Entries to add, each once.

    rows: in the cache's format, with offsets into `strings`; keys: the sort key of each, from `ldcache_order`.
    """

    sonames: tuple[bytes, ...]
    rows: bytes
    strings: bytes
    keys: tuple[bytes, ...]

    def entries(self) -> list[tuple[bytes, bytes, int]]:
        """SONAME, path and flags of each entry, in the order in which they were added."""
        words, strings = memoryview(self.rows).cast("I").tolist(), self.strings
        paths = [strings[start : strings.index(0, start)] for start in words[2::6]]
        return list(zip(self.sonames, paths, words[::6]))

    def before(self, table: Table) -> Table:
        """The table with these rows before its own rows, and these strings after its own strings."""
        end = len(table.strings)
        words = memoryview(self.rows).cast("I").tolist()
        return table._replace(
            strings=table.strings + self.strings,
            name_offsets=[end + offset for offset in words[1::6]] + table.name_offsets,
            path_offsets=[end + offset for offset in words[2::6]] + table.path_offsets,
            flags=words[::6] + table.flags,
            osversions=words[3::6] + table.osversions,
            hwcaps=[0] * len(self.keys) + table.hwcaps,
        )


def sort_keys(names: list[bytes], flags: list[int], hwcaps: list[int], our_flags: Collection[int]) -> list[bytes]:
    """The rows' sort keys.  Names compare as on the machine of `our_flags`, or of the rows' own flags without these."""
    unsigned = NATIVE_FLAGS["aarch64"] in (our_flags or flags)
    return ldcache_order.keys(names, flags, hwcaps, unsigned=unsigned) if names else []
