# SPDX-License-Identifier: Apache-2.0
"""The entries of an ld.so.cache.  Pure."""

from __future__ import annotations

from oci_gpu_hook.formats.ldcache import read
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

# A library of one name lies in a few folders.
_MOST_PATHS = 256


class Entry(NamedTuple):
    """One library; hwcap: if bit 62 alone is set of those above 41, the lower half is an index into `Cache.hwcaps`."""

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
    table = read(data)
    strings = table.strings
    paths = [strings[start:end] for start, end in zip(table.path_offsets, table.path_ends)]
    rows = zip(table.names, paths, table.flags, table.osversions, table.hwcaps)
    hwcaps = [strings[start : strings.index(0, start)] for start in table.hwcap_offsets]
    return Cache(tuple([Entry(*row) for row in rows]), tuple(hwcaps))


def paths_of(data: bytes, sonames: Collection[bytes]) -> list[bytes]:
    """The paths of libraries with these names, in the cache's order, at most `_MOST_PATHS`; MalformedCache."""
    table = read(data)
    rows = zip(table.names, table.path_offsets, table.path_ends)
    return [table.strings[start:end] for name, start, end in rows if name in sonames][:_MOST_PATHS]
