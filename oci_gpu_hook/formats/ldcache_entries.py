# SPDX-License-Identifier: Apache-2.0
"""An ld.so.cache as entries, for people and for the survey of the driver.  Pure."""

from __future__ import annotations

from oci_gpu_hook.formats.ldcache import FLAGS, HEADER_SIZE, LARGEST, LONGEST_STRING, measured, read, row_count
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Protocol

    class Identity(Protocol):
        """What `flags_of` needs of an identified ELF file."""

        @property
        def machine(self) -> int: ...
        @property
        def bits(self) -> int: ...


# A library of one name lies in a few folders.
_MOST_PATHS = 256


class Entry(NamedTuple):
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

    entries: tuple[Entry, ...]
    hwcaps: tuple[bytes, ...]
    generator: bytes


def flags_of(identity: Identity) -> int | None:
    """The flags of an entry for this ELF file; None for an architecture that is not supported."""
    return FLAGS.get((identity.machine, identity.bits))


def parse(data: bytes) -> Cache:
    """All entries of a cache; MalformedCache where `data` is none, or empty."""
    table = read(data)
    strings = table.strings
    paths = [strings[start:end] for start, end in zip(table.path_offsets, table.path_ends)]
    rows = zip(table.names, paths, table.flags, table.osversions, table.hwcaps)
    hwcaps = [strings[start : strings.index(0, start)] for start in table.hwcap_offsets]
    return Cache(tuple([Entry(*row) for row in rows]), tuple(hwcaps), table.generator)


def paths_of(data: bytes, sonames: Collection[bytes]) -> list[bytes]:
    """The paths of the libraries with these names, in the cache's order, at most `_MOST_PATHS`.

    MalformedCache where `data` is no cache.

    A row is found by the offset of its name: a table of all rows takes longer to make, and more memory than the cache.
    """
    if not row_count(data) or len(data) > LARGEST:
        table = read(data)
        rows = zip(table.names, table.path_offsets, table.path_ends)
        paths = [table.strings[start:end] for name, start, end in rows if name in sonames]
        return paths[:_MOST_PATHS]
    wanted = set()
    for soname in sonames:
        at = data.find(soname + b"\0")
        while at >= 0:
            wanted.add(at)
            at = data.find(soname + b"\0", at + 1)
    rows_end = measured(data, 0)[0]
    words = memoryview(data)[HEADER_SIZE:rows_end].cast("I")
    found = [row for row, name in enumerate(words[1::6].tolist()) if name in wanted]
    starts = [words[6 * row + 2] for row in found[:_MOST_PATHS]]
    return [data[start : data.find(0, start, start + LONGEST_STRING + 1)] for start in starts]
