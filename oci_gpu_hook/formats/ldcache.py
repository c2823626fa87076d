# SPDX-License-Identifier: Apache-2.0
"""The format of ``/etc/ld.so.cache``: bytes to columns, and back.  Pure.

Source: glibc's ``sysdeps/generic/dl-cache.h`` (layout) and ``elf/cache.c`` (what ldconfig writes), 2.17 to 2.41;
ldconfig(8).  `ldcache_merge` adds our rows and sorts all.  Little-endian only, as all supported machines are.  Names
and paths are bytes, as in the file.

The bytes come from an image and are hostile: `MalformedCache` is the only error, and the time is linear in their
number.
"""

from __future__ import annotations

try:
    # The C module that `struct` wraps: one file less to load.
    from _struct import pack, pack_into, unpack_from
except ImportError:
    from struct import pack, pack_into, unpack_from

from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


# A cache of 1,050 libraries has 80 KiB.  A larger one than this is not read, nor one with more rows.
LARGEST = 2 << 20
_MOST_ROWS = 1 << 15

# The flags that a loader demands of an entry, by e_machine and word size in bits.  glibc, sysdeps/generic/ldconfig.h:
# the libc6 type (3), and what the architecture requires.
FLAGS = {
    (3, 32): 0x0003,  # EM_386
    (62, 64): 0x0303,  # EM_X86_64
    (183, 64): 0x0A03,  # EM_AARCH64
}
# The same for a machine's own libraries, by its name in uname(2).
NATIVE_FLAGS = {"x86_64": FLAGS[62, 64], "aarch64": FLAGS[183, 64]}
# Debian's folder for a machine's own libraries, below /lib and /usr/lib.
MULTIARCH = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}
MULTIARCH_32 = "i386-linux-gnu"

_OLD_MAGIC = b"ld.so-1.7.0"
_OLD_HEADER_SIZE, _OLD_ROW_SIZE = 16, 12  # a row: flags, soname, path
_NEW_MAGIC = b"glibc-ld.so.cache1.1"
_HEADER = "<20sIIB3xI12x"  # magic, rows, size of the strings, byte order, offset of the extensions
_HEADER_SIZE = 48
_ROW_SIZE = 24  # flags, soname, path, OS version, 32 bits each; hwcap, 64 bits
_LITTLE_ENDIAN = 2
_EXTENSION_MAGIC = 0xEAA42174
_GENERATOR_TAG, _HWCAPS_TAG = 0, 1
_GENERATOR = b"oci-gpu-hook"

# No string is longer than PATH_MAX: the loader could not open it.  ldconfig lets strings share their ends, a path with
# its name and with the same path below /usr: all of them together are never many times longer than the file.
_LONGEST_STRING = 4095
_SHARING = 4
# The bytes of all names that are compared: each may take a dozen in memory.
_MOST_COMPARED = 1 << 20
# A library of one name lies in a few folders.
_MOST_PATHS = 256
# glibc knows ten names of hwcaps, and two kinds of extensions.
_MOST_EXTENSIONS = 1024


class MalformedCache(ValueError):
    """Bytes that are no ld.so.cache, one of a machine that is not supported, or one that contradicts itself."""


class Table(NamedTuple):
    """A cache as columns, with one item for each row; offsets count from the start of `strings`."""

    strings: bytes
    names: list[bytes]
    name_offsets: list[int]
    path_offsets: list[int]
    path_ends: list[int]
    flags: list[int]
    osversions: list[int]
    hwcaps: list[int]
    hwcap_offsets: list[int]


# A cache that lists nothing.
NOTHING = Table(b"", [], [], [], [], [], [], [], [])


def read(data: bytes) -> Table:
    """Parse a cache in any of glibc's layouts: old, old with the new one inside, new."""
    if len(data) > LARGEST:
        raise MalformedCache(f"{len(data)} bytes are more than any real cache has")
    if data.startswith(_NEW_MAGIC):
        return _read_new(data, 0)
    if not data.startswith(_OLD_MAGIC) or len(data) < _OLD_HEADER_SIZE:
        raise MalformedCache("it does not start as a cache")
    (count,) = unpack_from("<I", data, 12)
    end = _OLD_HEADER_SIZE + _OLD_ROW_SIZE * count
    if end > len(data) or count > _MOST_ROWS:
        raise MalformedCache(f"{count} rows do not fit in")
    for start in (end + 4 & ~7, end):  # aligned as on 64-bit machines, or as on 32-bit ones
        if data.startswith(_NEW_MAGIC, start):
            return _read_new(data, start)
    words = unpack_from(f"<{3 * count}I", data, _OLD_HEADER_SIZE)
    zeros = (0,) * count
    return _table(data[end:], 0, (words[1::3], words[2::3], ()), (words[::3], zeros, zeros))


def paths_of(data: bytes, sonames: Collection[bytes]) -> list[bytes]:
    """The paths of libraries with these names, in the cache's order, at most `_MOST_PATHS`; MalformedCache."""
    table = read(data)
    rows = zip(table.names, table.path_offsets, table.path_ends)
    return [table.strings[start:end] for name, start, end in rows if name in sonames][:_MOST_PATHS]


def _read_new(data: bytes, start: int) -> Table:
    """The new layout, with its header at `start`.

    Offsets of strings count from there, as ldconfig writes them.  (Where the layout is inside the old one, glibc 2.33
    to 2.41 looks for the hwcaps names in another place, and so ignores them.)
    """
    rows_start = start + _HEADER_SIZE
    if rows_start > len(data):
        raise MalformedCache("the header is cut off")
    _, count, size, byte_order, extensions = unpack_from(_HEADER, data, start)
    if byte_order and byte_order & 3 != _LITTLE_ENDIAN:
        raise MalformedCache("the byte order is another machine's")
    rows_end = rows_start + _ROW_SIZE * count
    if rows_end + size > len(data) or count > _MOST_ROWS:
        raise MalformedCache(f"{count} rows and {size} bytes of strings do not fit in")
    # Views: a tuple of all numbers of a large cache would take ten times its size.
    rows = memoryview(data)[rows_start:rows_end]
    words = rows.cast("I")
    return _table(
        data[rows_end : rows_end + size],
        rows_end - start,
        (words[1::6].tolist(), words[2::6].tolist(), _hwcap_names(data, extensions)),
        (words[::6].tolist(), words[3::6].tolist(), rows.cast("Q")[2::3].tolist()),
    )


def _hwcap_names(data: bytes, start: int) -> Sequence[int]:
    """The offsets of the hwcaps names, by the directory of the extensions at `start`, 0 for none."""
    if not start:
        return ()
    if start % 4 or start + 8 > len(data):
        raise MalformedCache("the offset of the extensions is wrong")
    magic, count = unpack_from("<II", data, start)
    if magic != _EXTENSION_MAGIC or start + 8 + 16 * count > len(data) or count > _MOST_EXTENSIONS:
        raise MalformedCache("the directory of the extensions is broken")
    hwcaps: Sequence[int] = ()
    words = unpack_from(f"<{4 * count}I", data, start + 8)
    for tag, offset, size in zip(words[::4], words[2::4], words[3::4]):
        if offset + size > len(data):
            raise MalformedCache("an extension reaches beyond the end")
        if tag != _HWCAPS_TAG:
            continue
        if size > 4 * _MOST_EXTENSIONS:
            raise MalformedCache("it names more hwcaps than there are")
        # glibc, too, ignores a section that is not aligned.
        hwcaps = unpack_from(f"<{size // 4}I", data, offset) if offset % 4 == size % 4 == 0 else ()
    return hwcaps


def _table(
    strings: bytes,
    base: int,
    offsets: tuple[Sequence[int], Sequence[int], Sequence[int]],
    columns: tuple[Sequence[int], Sequence[int], Sequence[int]],
) -> Table:
    """Make a table; MalformedCache if a string is not inside `strings`.

    `offsets` are of names, paths and hwcaps names, and count from `base` bytes before `strings`; `columns` are flags,
    OS versions and hwcaps, which may have any value.
    """
    names, paths, hwcap_names = [[offset - base for offset in column] for column in offsets]
    starts = names + paths + hwcap_names
    if min(starts, default=0) < 0:
        raise MalformedCache("a string lies before the strings")
    find, window = strings.find, _LONGEST_STRING + 1
    ends = [find(0, start, start + window) for start in starts]
    if min(ends, default=0) < 0:
        raise MalformedCache("a string is too long or has no end")
    if sum(ends) - sum(starts) > _SHARING * (len(strings) + _ROW_SIZE * len(names)):
        raise MalformedCache("the strings overlap too much")
    if sum(ends[: len(names)]) - sum(names) > _MOST_COMPARED:
        raise MalformedCache("the names are longer than those of any real cache")
    texts = [strings[start:end] for start, end in zip(names, ends)]
    path_ends = ends[len(names) : 2 * len(names)]
    flags, versions, caps = [list(column) for column in columns]
    return Table(strings, texts, names, paths, path_ends, flags, versions, caps, hwcap_names)


def written(table: Table, order: list[int]) -> bytes:
    """The new layout, with the table's rows in `order`.  Unknown extensions are dropped: they might be wrong now."""
    base = _HEADER_SIZE + _ROW_SIZE * len(order)
    words = [0] * (6 * len(order))
    words[::6] = map(table.flags.__getitem__, order)
    words[1::6] = [offset + base for offset in map(table.name_offsets.__getitem__, order)]
    words[2::6] = [offset + base for offset in map(table.path_offsets.__getitem__, order)]
    words[3::6] = map(table.osversions.__getitem__, order)
    rows = bytearray(pack(f"<{len(words)}I", *words))
    for place, row in enumerate(order) if any(table.hwcaps) else ():
        pack_into("<Q", rows, _ROW_SIZE * place + 16, table.hwcaps[row])
    size = len(table.strings)
    padding = bytes(-size % 4)
    start = base + size + len(padding)
    header = pack(_HEADER, _NEW_MAGIC, len(order), size, _LITTLE_ENDIAN, start)
    return b"".join([header, rows, table.strings, padding, _extensions(start, table, base)])


def _extensions(start: int, table: Table, base: int) -> bytes:
    """The directory of the extensions for `start`, the offsets of the hwcaps names, and the generator."""
    hwcaps = [offset + base for offset in table.hwcap_offsets]
    count = 2 if hwcaps else 1
    hwcaps_start = start + 8 + 16 * count
    sections = [_GENERATOR_TAG, 0, hwcaps_start + 4 * len(hwcaps), len(_GENERATOR)]
    if hwcaps:
        sections += [_HWCAPS_TAG, 0, hwcaps_start, 4 * len(hwcaps)]
    words = [_EXTENSION_MAGIC, count, *sections, *hwcaps]
    return pack(f"<{len(words)}I", *words) + _GENERATOR
