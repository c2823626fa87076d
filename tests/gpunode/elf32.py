# SPDX-License-Identifier: Apache-2.0
"""Writes the smallest i386 shared object that ldconfig accepts: headers, a dynamic section, names.

The 32-bit twins of the driver's libraries only have to be found, so no 32-bit compiler is needed.
Must not: touch the file system.
"""

from __future__ import annotations

import struct

_ET_DYN, _EM_386 = 3, 3
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_NEEDED, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT, _DT_SONAME = (0, 1, 5, 6, 10, 11, 14)
_HEADER, _PROGRAM_HEADER, _SYMBOL = 52, 32, 16
_READ = 4


def shared_object(soname: str) -> bytes:
    # ldconfig knows by libc.so.6 that it is no library of Linux libc 5.
    names = b"\0libc.so.6\0" + soname.encode("ascii") + b"\0"
    dynamic_at = _HEADER + 2 * _PROGRAM_HEADER
    symbols_at = dynamic_at + 7 * 8
    names_at = symbols_at + _SYMBOL
    pairs = (
        (_DT_STRTAB, names_at),
        (_DT_STRSZ, len(names)),
        (_DT_SYMTAB, symbols_at),
        (_DT_SYMENT, _SYMBOL),
        (_DT_NEEDED, 1),
        (_DT_SONAME, names.index(soname.encode("ascii"))),
        (_DT_NULL, 0),
    )
    dynamic = b"".join(struct.pack("<2I", *pair) for pair in pairs)
    size = names_at + len(names)
    header = struct.pack(
        "<16sHHIIIIIHHHHHH",
        b"\x7fELF\x01\x01\x01",  # 32 bits, little end first, version 1; zeros follow
        _ET_DYN,
        _EM_386,
        1,
        0,
        _HEADER,
        0,
        0,
        _HEADER,
        _PROGRAM_HEADER,
        2,
        0,
        0,
        0,
    )
    load = struct.pack("<8I", _PT_LOAD, 0, 0, 0, size, size, _READ, 4096)
    at = (dynamic_at,) * 3
    section = struct.pack("<8I", _PT_DYNAMIC, *at, len(dynamic), len(dynamic), _READ, 4)
    return header + load + section + dynamic + bytes(_SYMBOL) + names
