# SPDX-License-Identifier: Apache-2.0
"""``/etc/ld.so.cache``: its bytes as rows, and the bytes with our libraries added.  Pure.

Source: glibc's ``sysdeps/generic/dl-cache.h`` (layout), ``elf/cache.c`` (what ldconfig writes, and in which order) and
``elf/dl-cache.c`` (how the loader searches), 2.17 to 2.41.  The loader finds names by a binary search, so the order of
the rows is part of the format.  Each row gets a sort key of bytes, which Python compares in one step.

The bytes are an image's and hostile: any name has a key, `MalformedCache` is the only error, and the time is linear.
"""

from __future__ import annotations

from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

# A cache of 1,050 libraries has 80 KiB.  A larger one than this is not read, nor one with more rows.
LARGEST = 2 << 20
_MAX_ROWS = 1 << 15

# The flags that a loader demands of an entry, by e_machine and word size in bits (sysdeps/generic/ldconfig.h).
FLAGS = {(3, 32): 0x0003, (62, 64): 0x0303, (183, 64): 0x0A03}  # EM_386, EM_X86_64, EM_AARCH64
# The same for a machine's own libraries, by its name in uname(2).
NATIVE_FLAGS = {"x86_64": FLAGS[62, 64], "aarch64": FLAGS[183, 64]}
# Debian's folder for a machine's own libraries, below /lib and /usr/lib.
MULTIARCH = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}
MULTIARCH_32 = "i386-linux-gnu"

_OLD_MAGIC = b"ld.so-1.7.0"
_OLD_HEADER_SIZE, _OLD_ROW_SIZE = 16, 12  # a row: flags, soname, path
_NEW_MAGIC = b"glibc-ld.so.cache1.1"
# After the magic, in words: rows, size of the strings, byte order and three bytes, offset of the extensions, 3 unused.
_HEADER_SIZE = 48
_ROW_SIZE = 24  # in words: flags, soname, path, OS version; two of hwcap
_WORD_SIZE = 4
_LITTLE_ENDIAN = 2
_EXTENSION_MAGIC = 0xEAA42174
_GENERATOR_TAG, _HWCAPS_TAG = 0, 1
_GENERATOR = b"oci-gpu-hook"
# Since glibc 2.33 (generator in elf/cache.c), with the distribution's name and the version behind it.
_LDCONFIG = b"ldconfig ("

# PATH_MAX.  ldconfig lets strings share their ends: all of them together are never many times longer than the file.
_LONGEST_STRING, _SHARING = 4095, 4
# The bytes of all names that are compared: each may take a dozen in memory.
_MAX_COMPARED = 1 << 20
# A library of one name lies in a few folders.  glibc knows ten names of hwcaps, and two kinds of extensions.
_MAX_PATHS, _MAX_EXTENSIONS = 256, 1024

# glibc compares names as C chars, which are signed on x86 and unsigned on ARM, but puts digits after all other chars
# and compares a run of digits as a number.  All bytes, the lowest first:
_BYTES = bytes(range(256))
_SIGNED = _BYTES[128:] + _BYTES[:48] + _BYTES[58:128] + _BYTES[48:58]
_UNSIGNED = _BYTES[:48] + _BYTES[58:] + _BYTES[48:58]
# A byte's place in these is its rank.  Digits have the highest ten in both.
_ZERO, _ONE = _BYTES[246:247], _BYTES[247:248]
_ZEROS = _ZERO * 10
_FROM_DIGITS = bytes.maketrans(_BYTES[246:], b"0123456789")
_TO_DIGITS = bytes.maketrans(b"0123456789", _BYTES[246:])
_ONLY_DIGITS = b" " * 246 + _BYTES[246:]
_NO_DIGITS = _BYTES[:246] + b" " * 10
# bytes.split() takes some ranks for white space.  Two other ranks replace each of them, and the rank before them.
_PAIRS = [(8, 8), (8, 9), (8, 10), (8, 11), (8, 12), (8, 13), (31, 31), (31, 32)]
_ESCAPES = [(bytes([rank]), bytes([first, 64 + rank])) for first, rank in _PAIRS]
# The bytes of names that are handled in one block: each may take two hundred while that is done.
_AT_ONCE = 1 << 12


class MalformedCache(ValueError):
    """Bytes that are not an ld.so.cache, one of a machine that is not supported, or one that contradicts itself."""


class Table(NamedTuple):
    """Rows in the new layout, as bytes, whose offsets count from `base` bytes before `strings`, and their names.
    is_ldconfigs: whether it says that ldconfig has written it.
    """

    strings: bytes
    base: int
    rows: bytes
    names: list[bytes]
    hwcap_names: tuple[int, ...]
    is_ldconfigs: bool = False

    def column(self, number: int) -> list[int]:
        """One 32-bit number of each row: 0 flags, 1 name's offset, 2 path's offset, 3 OS version."""
        return memoryview(self.rows).cast("I")[number::6].tolist()

    def hwcaps(self) -> list[int]:
        return memoryview(self.rows).cast("Q")[2::3].tolist()

    def part(self, first: int, end: int) -> Table:
        return self._replace(names=self.names[first:end], rows=self.rows[_ROW_SIZE * first : _ROW_SIZE * end])

    def path(self, row: int) -> bytes:
        start = _words(self.rows, _ROW_SIZE * row + 8, 1)[0] - self.base
        return self.strings[start : self.strings.index(0, start)]


class Entry(NamedTuple):
    """One library of ours; flags: of `FLAGS`; spare: for an image that has none of this name."""

    soname: bytes
    path: bytes
    flags: int
    spare: bool = False


def parse_cache(data: bytes) -> Table:
    """In any of glibc's layouts: old, old with the new one inside, new."""
    if len(data) > LARGEST:
        raise MalformedCache(f"{len(data)} bytes are more than any real cache has")
    if data.startswith(_NEW_MAGIC):
        return _read_new(data, 0)
    if not data.startswith(_OLD_MAGIC) or len(data) < _OLD_HEADER_SIZE:
        raise MalformedCache("it does not start as a cache")
    (count,) = _words(data, 12, 1)
    end = _OLD_HEADER_SIZE + _OLD_ROW_SIZE * count
    if end > len(data) or count > _MAX_ROWS:
        raise MalformedCache(f"{count} rows do not fit in")
    for start in (end + 4 & ~7, end):  # aligned as on 64-bit machines, or as on 32-bit ones
        if data.startswith(_NEW_MAGIC, start):
            return _read_new(data, start)
    old = [data[start : start + _OLD_ROW_SIZE] for start in range(_OLD_HEADER_SIZE, end, _OLD_ROW_SIZE)]
    return _checked(Table(data[end:], 0, b"".join([row.ljust(_ROW_SIZE, b"\0") for row in old]), [], ()))


def paths_of(data: bytes, sonames: Collection[bytes]) -> list[bytes]:
    """In the cache's order, at most `_MAX_PATHS`; MalformedCache."""
    table = parse_cache(data)
    rows = [row for row, name in enumerate(table.names) if name in sonames]
    return [table.path(row) for row in rows[:_MAX_PATHS]]


def without_spares(data: bytes | None, ours: tuple[Entry, ...], folders: tuple[bytes, ...]) -> tuple[Entry, ...]:
    """`ours` without the spare ones of whose names the cache `data` has one outside of `folders`; MalformedCache.
    Without a cache none of these is wanted: the loader would find ours before the image's in its own folders.
    """
    spare = {(it.soname, it.flags) for it in ours if it.spare and data}
    if spare and data:
        table = parse_cache(data)
        kinds = [(row, kind) for row, kind in enumerate(zip(table.names, table.column(0))) if kind in spare]
        spare.difference_update([kind for row, kind in kinds if not table.path(row).startswith(folders)])
    return tuple([it for it in ours if not it.spare or (it.soname, it.flags) in spare])


def _read_new(data: bytes, start: int) -> Table:
    """Offsets of strings count from `start`, as ldconfig writes them.  (Inside of the old layout glibc 2.33 to 2.41
    looks for the hwcaps names in another place, and so ignores them.)
    """
    rows_start = start + _HEADER_SIZE
    if rows_start > len(data):
        raise MalformedCache("the header is cut off")
    count, size, byte_order, extensions = _words(data, start + len(_NEW_MAGIC), 4)
    if byte_order & 0xFF and byte_order & 3 != _LITTLE_ENDIAN:
        raise MalformedCache("the byte order is another machine's")
    rows_end = rows_start + _ROW_SIZE * count
    if rows_end + size > len(data) or count > _MAX_ROWS:
        raise MalformedCache(f"{count} rows and {size} bytes of strings do not fit in")
    strings = data[rows_end : rows_end + size]
    return _checked(Table(strings, rows_end - start, data[rows_start:rows_end], [], *_extensions_at(data, extensions)))


def _extensions_at(data: bytes, start: int) -> tuple[tuple[int, ...], bool]:
    """The offsets of the hwcaps names, and whether ldconfig has written it, by the directory at `start`, 0 for none."""
    if not start:
        return (), False
    if start % 4 or start + 8 > len(data):
        raise MalformedCache("the offset of the extensions is wrong")
    magic, count = _words(data, start, 2)
    if magic != _EXTENSION_MAGIC or start + 8 + 16 * count > len(data) or count > _MAX_EXTENSIONS:
        raise MalformedCache("the directory of the extensions is broken")
    hwcaps: tuple[int, ...] = ()
    is_ldconfigs = False
    words = _words(data, start + 8, 4 * count)
    for tag, offset, size in zip(words[::4], words[2::4], words[3::4]):
        if offset + size > len(data):
            raise MalformedCache("an extension reaches beyond the end")
        if tag == _GENERATOR_TAG:
            is_ldconfigs = data.startswith(_LDCONFIG, offset)
        if tag != _HWCAPS_TAG:
            continue
        if size > 4 * _MAX_EXTENSIONS:
            raise MalformedCache("it names more hwcaps than there are")
        # glibc, too, ignores a section that is not aligned.
        hwcaps = _words(data, offset, size // _WORD_SIZE) if offset % 4 == size % 4 == 0 else ()
    return hwcaps, is_ldconfigs


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
    if length > _MAX_COMPARED:
        raise MalformedCache("the names are longer than those of any real cache")
    return table._replace(names=[strings[start - base : end] for start, end in zip(names, ends)])


def encode(table: Table, pieces: list[bytes]) -> bytes:
    """The new layout, with these of the table's rows.  Unknown extensions are dropped: they might be wrong now."""
    rows = b"".join(pieces)
    base = _HEADER_SIZE + len(rows)
    shift = base - table.base
    # All offsets move by one sum: the rows are one number, and none of its words overflows.
    ones = int.from_bytes(_packed(0, 1, 1, 0, 0, 0) * (len(rows) // _ROW_SIZE), "little")
    rows = (int.from_bytes(rows, "little") + shift * ones).to_bytes(len(rows), "little")
    size = len(table.strings)
    padding = bytes(-size % 4)
    start = base + size + len(padding)
    header = _packed(len(rows) // _ROW_SIZE, size, _LITTLE_ENDIAN, start, 0, 0, 0)
    return b"".join([_NEW_MAGIC, header, rows, table.strings, padding, _extensions(start, table.hwcap_names, shift)])


def _extensions(start: int, names: tuple[int, ...], shift: int) -> bytes:
    hwcaps = [offset + shift for offset in names]
    count = 2 if hwcaps else 1
    hwcaps_start = start + 8 + 16 * count
    sections = [_GENERATOR_TAG, 0, hwcaps_start + 4 * len(hwcaps), len(_GENERATOR)]
    if hwcaps:
        sections += [_HWCAPS_TAG, 0, hwcaps_start, 4 * len(hwcaps)]
    return _packed(_EXTENSION_MAGIC, count, *sections, *hwcaps) + _GENERATOR


def _words(data: bytes, start: int, count: int) -> tuple[int, ...]:
    """So many 32-bit numbers; without an import of struct."""
    return tuple(memoryview(data[start : start + _WORD_SIZE * count]).cast("I"))


def _packed(*words: int) -> bytes:
    return b"".join([word.to_bytes(_WORD_SIZE, "little") for word in words])


def merge(data: bytes | None, ours: Iterable[Entry], folders: tuple[bytes, ...] = ()) -> bytes:
    """The cache `data`, if any, with `ours` in it, as ldconfig since glibc 2.32 would write it; MalformedCache.

    Among entries of one name, flags and hwcap, of which ours have none, ours come first and in their order, so the
    loader takes them; the others stay.  An entry that is there already is moved, not doubled.  What it lists below
    these `folders`, which end with "/", is of an earlier driver and goes; if that is just ours, `data` stays as it is.

    All rows are sorted, not only ours, unless ldconfig has written the cache: some programs sort by plain bytes, and
    the loader's binary search misses names there.
    """
    theirs = parse_cache(data) if data else Table(b"", 0, b"", [], ())
    added = dict.fromkeys([entry[:3] for entry in ours])
    listed = _entries(theirs, folders)
    stale = [row for row, entry in enumerate(listed) if entry[1].startswith(folders)]
    if stale and data and added.keys() <= {*listed} and all([listed[row] in added for row in stale]):
        return data
    table = _before(_cut(theirs, stale), added)
    # C chars are unsigned on ARM.
    unsigned = NATIVE_FLAGS["aarch64"] in ([flags for _, _, flags in added] or theirs.column(0))
    repeated = {row + len(added) for row in (*_repeated_rows(theirs, added), *stale)}
    if theirs.is_ldconfigs and not repeated:
        return encode(table, _put_in_order(table, len(added), unsigned=unsigned))
    # The keys are gone before the rows are copied.
    order = sorted(range(len(table.names)), key=_keys(table, unsigned=unsigned).__getitem__, reverse=True)
    rows = table.rows
    return encode(table, [rows[_ROW_SIZE * row : _ROW_SIZE * row + _ROW_SIZE] for row in order if row not in repeated])


def _put_in_order(table: Table, ours: int, *, unsigned: bool) -> list[bytes]:
    """The rows as pieces, where those behind the first `ours` are in order: ours are put in by bisection."""
    keys = _keys(table.part(0, ours), unsigned=unsigned)
    known: dict[int, bytes] = {}
    pieces, first, rows = [], ours, table.rows
    for row in sorted(range(ours), key=keys.__getitem__, reverse=True):
        low, high = ours, len(table.names)
        while low < high:
            middle = (low + high) // 2
            if middle not in known:
                (known[middle],) = _keys(table.part(middle, middle + 1), unsigned=unsigned)
            if known[middle] > keys[row]:
                low = middle + 1
            else:
                high = middle
        # If theirs are not in order after all, none is lost.
        low = max(first, low)
        pieces += [rows[_ROW_SIZE * first : _ROW_SIZE * low], rows[_ROW_SIZE * row : _ROW_SIZE * row + _ROW_SIZE]]
        first = low
    return [*pieces, rows[_ROW_SIZE * first :]]


def _cut(table: Table, rows: list[int]) -> Table:
    """Without the strings of these rows, if they are the last ones: else they would grow with each driver."""
    if not rows:
        return table
    names, paths = table.column(1), table.column(2)
    start = min([min(names[row], paths[row]) for row in rows])
    others = [max(names[row], paths[row]) for row in {*range(len(names))}.difference(rows)]
    kept = table.strings[: start - table.base]
    # One string may be the end of another.
    is_last = max([*others, *table.hwcap_names], default=0) < start and kept[-1:] in (b"", b"\0")
    return table._replace(strings=kept) if is_last else table


def _before(table: Table, ours: Collection[tuple[bytes, bytes, int]]) -> Table:
    # A bytearray grows in place: an image's folder of newer CUDA libraries may hold thousands of names.
    strings, rows = bytearray(table.strings), bytearray()
    for soname, path, flags in ours:
        start = len(strings) + table.base
        # A name that is the end of its path needs no string of its own.
        strings += path + b"\0" if path.endswith(soname) else path + b"\0" + soname + b"\0"
        rows += _packed(flags, len(strings) + table.base - len(soname) - 1, start, 0, 0, 0)
    names = [soname for soname, _, _ in ours] + table.names
    return table._replace(strings=bytes(strings), rows=bytes(rows) + table.rows, names=names)


def _repeated_rows(table: Table, ours: Collection[tuple[bytes, bytes, int]]) -> list[int]:
    sonames = {soname for soname, _, _ in ours}
    flags, hwcaps = table.column(0), table.hwcaps()
    same = [row for row, name in enumerate(table.names) if name in sonames and not hwcaps[row]]
    return [row for row in same if (table.names[row], table.path(row), flags[row]) in ours]


def _entries(table: Table, folders: tuple[bytes, ...]) -> list[tuple[bytes, bytes, int]]:
    """Name, path and flags of each row; none if no path lies below these folders, as in most images."""
    if not any([folder in table.strings for folder in folders]):
        return []
    return [*zip(table.names, map(table.path, range(len(table.names))), table.column(0))]


def _keys(table: Table, *, unsigned: bool) -> list[bytes]:
    """For each row, bytes that compare as ldconfig compares entries; `unsigned`: whether C chars are."""
    found = name_keys(table.names, unsigned=unsigned) if table.names else []
    flags, hwcaps = table.column(0), table.hwcaps()
    suffixes = {kind: _suffix(*kind) for kind in set(zip(flags, hwcaps))}
    # In place: keys with and without their ends would take twice the memory.
    for row, kind in enumerate(zip(flags, hwcaps)):
        found[row] += suffixes[kind]
    return found


def name_keys(names: list[bytes], *, unsigned: bool) -> list[bytes]:
    """For each name, bytes that compare as glibc's _dl_cache_libcmp compares names; none is the start of another."""
    found: list[bytes] = []
    first, size = 0, 0
    for number, name in enumerate(names):
        size += len(name)
        if size > _AT_ONCE:
            found += _keys_of_block(names[first:number], unsigned=unsigned)
            first, size = number, len(name)
    return found + _keys_of_block(names[first:], unsigned=unsigned)


def _keys_of_block(names: list[bytes], *, unsigned: bool) -> list[bytes]:
    """In one block, as the methods of bytes are fast.  Each byte becomes its rank, each run of digits gets the same
    length, and each name ends with the rank of NUL.
    """
    order = _UNSIGNED if unsigned else _SIGNED
    end = bytes([order.index(0)])
    block = b"\0".join([*names, b""]).translate(bytes.maketrans(order, _BYTES))
    for rank, escaped in _ESCAPES:
        block = block.replace(rank, escaped)
    numbers = block.translate(_ONLY_DIGITS).split()
    pieces = [b""] * (2 * len(numbers) + 1)
    pieces[::2] = (end + block).translate(_NO_DIGITS).split()
    # Most runs of digits occur many times.
    equal = {run: _ONE + (_ZEROS + run)[-10:] if len(run) < 10 else _wrapped(run) for run in set(numbers)}
    pieces[1::2] = map(equal.__getitem__, numbers)
    return b"".join(pieces)[1:].replace(end, end + b" ").split()


def _wrapped(number: bytes) -> bytes:
    """Digits as the C int that glibc gets by overflow; the last 32 decide, as 2**32 divides 10**32."""
    value = int(number[-32:].translate(_FROM_DIGITS)) & 0xFFFFFFFF
    return (_ZERO if value >> 31 else _ONE) + (b"%010d" % value).translate(_TO_DIGITS)


def _suffix(flags: int, hwcap: int) -> bytes:
    """The end of a key, which decides among equal names, by compare() in elf/cache.c.  First come higher flags; then
    libraries of glibc-hwcaps subdirectories, in the order of their indices; then, from glibc before 2.37, those of
    legacy hwcaps, by the number of bits and the value; last those that every machine can use.
    """
    rank = (flags ^ 0x80000000).to_bytes(4, "big")  # in C it is an int
    if hwcap >> 42 == 1 << 20:  # below that are ten bits of ISA level and the index
        return rank + b"\1" + (0xFFFFFFFF - (hwcap & 0xFFFFFFFF)).to_bytes(4, "big")
    return rank + b"\0" + bytes([bin(hwcap).count("1")]) + hwcap.to_bytes(8, "big")
