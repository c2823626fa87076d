# SPDX-License-Identifier: Apache-2.0
"""An ld.so.cache as entries, for tests of what is read and merged."""

from __future__ import annotations

from typing import NamedTuple

from oci_gpu_hook.formats import ldcache


class Row(NamedTuple):
    """One library.

    `hwcap` is the number in the file.  If of its bits above 41 only bit 62 is set, its lower half is an index into
    `Cache.hwcaps`; the loader ignores an entry whose index is out of range.
    """

    soname: bytes
    path: bytes
    flags: int
    osversion: int = 0
    hwcap: int = 0


class Cache(NamedTuple):
    """A whole cache in file order; `hwcaps` are glibc-hwcaps subdirectories, such as "x86-64-v3"."""

    entries: tuple[Row, ...]
    hwcaps: tuple[bytes, ...]


def parse(data: bytes) -> Cache:
    """All entries of a cache; MalformedCache if `data` is none, or empty."""
    table = ldcache.parse_cache(data)
    paths = [table.path(row) for row in range(len(table.names))]
    rows = zip(table.names, paths, table.column(0), table.column(3), table.hwcaps())
    hwcaps = [table.strings[start - table.base :].partition(b"\0")[0] for start in table.hwcap_names]
    return Cache(tuple([Row(*row) for row in rows]), tuple(hwcaps))
