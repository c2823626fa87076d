# SPDX-License-Identifier: Apache-2.0
"""The word size, the machine, the SONAME and the needs of an ELF file (System V ABI, chapters 4 and 5; elf(5)).

Only headers, the dynamic section and a few strings are read; no section headers, as stripping may remove them.  Must
not be imported by a start that has a saved inventory.
"""

from __future__ import annotations

import posix
from struct import Struct

from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel.descriptors import closing, exactly

# Real libraries have about ten program headers and a few KiB of dynamic section; a SONAME is a file's name (NAME_MAX).
_MAX_SEGMENTS, _MAX_NEEDED = 512, 512
_LARGEST_DYNAMIC, _LONGEST_NAME = 1 << 20, 255

_MAGIC = b"\x7fELF"
_HEADER_SIZE = 64  # of 64-bit files; 52 of 32-bit ones
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_NEEDED, _DT_STRTAB, _DT_SONAME = 0, 1, 5, 14


# Of each word size, in formats of `struct`: e_machine, e_phoff, e_phentsize, e_phnum of the header; p_type, p_offset,
# p_vaddr, p_filesz of a program header; d_tag, d_val of an entry of the dynamic section.
_LAYOUTS = {1: (32, "18xH8xI10xHH6x", "III4xI12x", "iI"), 2: (64, "18xH12xQ14xHH6x", "I4xQQ8xQ16x", "qQ")}
_BYTE_ORDERS = {1: "<", 2: ">"}


def identity_of(host: HostRoot, path: str) -> tuple[tuple[int, int], str] | None:
    """e_machine (62 is x86_64, 183 aarch64) and word size in bits; and SONAME, as os.fsdecode gives it, "" for none.
    None if the file is not an ELF file, or contradicts itself.
    """
    try:
        kind, names = _parsed(host, path, _DT_SONAME, 1)
    except (ValueError, OSError):
        return None
    # Of several SONAMEs the last counts, as in glibc.
    return kind, b"".join(names).decode("utf-8", "surrogateescape")


def needs_of(host: HostRoot, path: str) -> list[str]:
    try:
        return [name.decode() for name in _parsed(host, path, _DT_NEEDED, _MAX_NEEDED)[1]]
    except (ValueError, OSError):
        return []


def _parsed(host: HostRoot, path: str, tag: int, most: int) -> tuple[tuple[int, int], list[bytes]]:
    """e_machine and word size, and the names in the last entries with this tag."""
    with closing(host.open(path, posix.O_RDONLY | posix.O_NONBLOCK)) as fd:
        head = posix.pread(fd, _HEADER_SIZE, 0)
        if not head.startswith(_MAGIC) or len(head) <= 5 or head[4] not in _LAYOUTS or head[5] not in _BYTE_ORDERS:
            raise ValueError("no ELF file, or of an unknown class")
        bits, *formats = _LAYOUTS[head[4]]
        header, segment, dynamic = [Struct(_BYTE_ORDERS[head[5]] + text) for text in formats]
        if len(head) < header.size:
            raise ValueError("the file is cut off")
        machine, offset, entry_size, count = header.unpack_from(head)
        if count and (entry_size != segment.size or count > _MAX_SEGMENTS):
            raise ValueError("program headers that make no sense")
        segments = [*segment.iter_unpack(exactly(fd, offset, count * segment.size))]
        return (machine, bits), _names(fd, segments, dynamic, tag, most)


def _names(fd: int, segments: list[tuple[int, int, int, int]], entry: Struct, wanted: int, most: int) -> list[bytes]:
    """segments: type, offset in the file, address and size of each."""
    values: list[int] = []
    table = 0
    for _, offset, _, size in [segment for segment in segments if segment[0] == _PT_DYNAMIC][-1:]:
        if size > _LARGEST_DYNAMIC:
            raise ValueError("a dynamic section that makes no sense")
        for tag, value in entry.iter_unpack(exactly(fd, offset, size - size % entry.size)):
            if tag == _DT_NULL:
                break
            if tag == _DT_STRTAB:
                table = value
            elif tag == wanted:
                values.append(value)
    return [_name(fd, segments, table + value) for value in values[-most:]]


def _name(fd: int, segments: list[tuple[int, int, int, int]], address: int) -> bytes:
    """The file's name at an address: the segment that is loaded there says where in the file it is."""
    for kind, offset, start, size in segments:
        within = address - start
        if kind == _PT_LOAD and 0 <= within < size:
            name, end, _ = exactly(fd, offset + within, min(size - within, _LONGEST_NAME + 1)).partition(b"\0")
            if not end or b"/" in name or name in (b".", b".."):
                raise ValueError("the name is not a file name")
            return name
    raise ValueError("the name lies outside of what is loaded")
