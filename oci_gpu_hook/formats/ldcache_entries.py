# SPDX-License-Identifier: Apache-2.0
"""The entries of an ld.so.cache, read from one or made ready to be added by `ldcache_merge`.  Pure."""

from __future__ import annotations

from oci_gpu_hook.formats.ldcache import LONGEST_STRING, read
from oci_gpu_hook.formats.ldcache_merge import Additions, sort_keys
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

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


def prepare(entries: Iterable[Entry]) -> Additions:
    """The entries, ready to be added; ValueError for one that no cache can hold."""
    ours = _checked(entries)
    # bytearrays grow in place: an image's folder of newer CUDA libraries may hold thousands of names.
    rows, strings = bytearray(), bytearray()
    for entry in ours:
        path = len(strings)
        # A name that is the end of its path needs no string of its own.
        own_string = b"" if entry.path.endswith(entry.soname) else b"\0" + entry.soname
        strings += entry.path + own_string + b"\0"
        name = len(strings) - len(entry.soname) - 1
        for word in (entry.flags, name, path, entry.osversion, 0, 0):
            rows += word.to_bytes(4, "little")
    sonames, flags = [entry.soname for entry in ours], [entry.flags for entry in ours]
    keys = sort_keys(sonames, flags, [0] * len(ours), flags)
    return Additions(tuple(sonames), bytes(rows), bytes(strings), tuple(keys))


def _checked(entries: Iterable[Entry]) -> list[Entry]:
    """The entries, each once."""
    once: dict[tuple[bytes, bytes, int], Entry] = {}
    for entry in entries:
        soname, path, flags, osversion, hwcap = entry
        texts = (soname, path)
        if not all(texts) or max(map(len, texts)) > LONGEST_STRING or 0 in soname + path:
            raise ValueError("no ld.so.cache can hold a name or a path that is empty, long or has a NUL")
        if hwcap or not 0 <= flags < 1 << 32 or not 0 <= osversion < 1 << 32:
            raise ValueError("no hwcap, and 32 bits of flags and OS version")
        once.setdefault((soname, path, flags), entry)
    return list(once.values())
