# SPDX-License-Identifier: Apache-2.0
"""The format of ``/etc/ld.so.cache``: bytes to rows, and back.  Pure.

Source: glibc's ``sysdeps/generic/dl-cache.h`` (layout) and ``elf/cache.c`` (what ldconfig writes), 2.17 to 2.41;
ldconfig(8).  `ldcache_merge` adds our rows and sorts all.  Little-endian only, as all supported machines are.  Names
and paths are bytes, as in the file.

The bytes come from an image and are hostile: `MalformedCache` is the only error, and the time is linear in their
number.
"""

from __future__ import annotations

try:
    # The C module that `struct` wraps: one file less to load.
    from _struct import pack, unpack_from
except ImportError:
    from struct import pack, unpack_from

from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection


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
_ROW, _ROW_SIZE = "<4IQ", 24  # flags, soname, path, OS version; hwcap
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
    """A cache: its rows in the new layout, whose offsets count from `base` bytes before `strings`, and their names.

    The rows stay the bytes that they are: numbers of Python take ten times as much.
    """

    strings: bytes
    base: int
    rows: bytes
    names: list[bytes]
    hwcap_names: tuple[int, ...]

    def column(self, number: int) -> list[int]:
        """One 32-bit number of each row: 0 flags, 1 name's offset, 2 path's offset, 3 OS version."""
        return memoryview(self.rows).cast("I")[number::6].tolist()

    def hwcaps(self) -> list[int]:
        return memoryview(self.rows).cast("Q")[2::3].tolist()

    def path(self, row: int) -> bytes:
        (offset,) = unpack_from("<I", self.rows, _ROW_SIZE * row + 8)
        start = offset - self.base
        return self.strings[start : self.strings.index(0, start)]


# A cache that lists nothing.
NOTHING = Table(b"", 0, b"", [], ())


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
    old = [data[start : start + _OLD_ROW_SIZE] for start in range(_OLD_HEADER_SIZE, end, _OLD_ROW_SIZE)]
    return _checked(Table(data[end:], 0, b"".join([row.ljust(_ROW_SIZE, b"\0") for row in old]), [], ()))


def paths_of(data: bytes, sonames: Collection[bytes]) -> list[bytes]:
    """The paths of libraries with these names, in the cache's order, at most `_MOST_PATHS`; MalformedCache."""
    table = read(data)
    rows = [row for row, name in enumerate(table.names) if name in sonames]
    return [table.path(row) for row in rows[:_MOST_PATHS]]


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
    strings = data[rows_end : rows_end + size]
    return _checked(Table(strings, rows_end - start, data[rows_start:rows_end], [], _hwcap_names(data, extensions)))


def _hwcap_names(data: bytes, start: int) -> tuple[int, ...]:
    """The offsets of the hwcaps names, by the directory of the extensions at `start`, 0 for none."""
    if not start:
        return ()
    if start % 4 or start + 8 > len(data):
        raise MalformedCache("the offset of the extensions is wrong")
    magic, count = unpack_from("<II", data, start)
    if magic != _EXTENSION_MAGIC or start + 8 + 16 * count > len(data) or count > _MOST_EXTENSIONS:
        raise MalformedCache("the directory of the extensions is broken")
    hwcaps: tuple[int, ...] = ()
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


def _checked(table: Table) -> Table:
    """The table with its names; MalformedCache if a string is not inside `strings`."""
    base, strings = table.base, table.strings
    names, ends, total = table.column(1), [], 0
    for column in (table.hwcap_names, table.column(2), names):
        if min(column, default=base) < base:
            raise MalformedCache("a string lies before the strings")
        ends = [strings.find(0, start - base, start - base + _LONGEST_STRING + 1) for start in column]
        if min(ends, default=0) < 0:
            raise MalformedCache("a string is too long or has no end")
        length = sum(ends) - sum(column) + base * len(ends)
        total += length
    if total > _SHARING * (len(strings) + len(table.rows)):
        raise MalformedCache("the strings overlap too much")
    if length > _MOST_COMPARED:
        raise MalformedCache("the names are longer than those of any real cache")
    return table._replace(names=[strings[start - base : end] for start, end in zip(names, ends)])


def row(flags: int, name: int, path: int, osversion: int) -> bytes:
    """A row of a library without hwcap; name, path: the offsets of its strings."""
    return pack(_ROW, flags, name, path, osversion, 0)


def written(table: Table, order: list[int]) -> bytes:
    """The new layout, with the table's rows in `order`.  Unknown extensions are dropped: they might be wrong now."""
    base = _HEADER_SIZE + _ROW_SIZE * len(order)
    rows = bytearray().join([table.rows[_ROW_SIZE * row : _ROW_SIZE * row + _ROW_SIZE] for row in order])
    words, shift = memoryview(rows).cast("I"), base - table.base
    for column in (1, 2):
        moved = [offset + shift for offset in words[column::6].tolist()]
        words[column::6] = memoryview(pack(f"<{len(moved)}I", *moved)).cast("I")
    size = len(table.strings)
    padding = bytes(-size % 4)
    start = base + size + len(padding)
    header = pack(_HEADER, _NEW_MAGIC, len(order), size, _LITTLE_ENDIAN, start)
    return b"".join([header, rows, table.strings, padding, _extensions(start, table.hwcap_names, shift)])


def _extensions(start: int, names: tuple[int, ...], shift: int) -> bytes:
    """The directory of the extensions for `start`, the offsets of the hwcaps names, and the generator."""
    hwcaps = [offset + shift for offset in names]
    count = 2 if hwcaps else 1
    hwcaps_start = start + 8 + 16 * count
    sections = [_GENERATOR_TAG, 0, hwcaps_start + 4 * len(hwcaps), len(_GENERATOR)]
    if hwcaps:
        sections += [_HWCAPS_TAG, 0, hwcaps_start, 4 * len(hwcaps)]
    words = [_EXTENSION_MAGIC, count, *sections, *hwcaps]
    return pack(f"<{len(words)}I", *words) + _GENERATOR
