# SPDX-License-Identifier: Apache-2.0
"""Make entries ready to be added to any ld.so.cache.  Pure."""

from __future__ import annotations

from oci_gpu_hook.formats.ldcache import LONGEST_STRING
from oci_gpu_hook.formats.ldcache_additions import Additions, sort_keys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from oci_gpu_hook.formats.ldcache_entries import Entry


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
