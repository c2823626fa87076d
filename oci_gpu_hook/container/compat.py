# SPDX-License-Identifier: Apache-2.0
"""The libcuda that an image of CUDA's has for hosts with an older driver, and which drivers and GPUs it is made for.

Its ELF section ``.note.cuda.fwd_compatibility`` says so, a note (System V ABI, chapter 5) of a JSON object.  The image
is hostile: the file is opened below the root, never in a volume, and each part is read up to a bound.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.formats import jsontext
from oci_gpu_hook.formats.decimal import decimals
from oci_gpu_hook.kernel import syscalls
from oci_gpu_hook.kernel.descriptors import closing, exactly, reopened
from oci_gpu_hook.kernel.filetypes import is_regular
from oci_gpu_hook.record import NamedTuple

CUDA = "libcuda.so."

_RESOLVE = syscalls.RESOLVE_BELOW | syscalls.RESOLVE_NO_XDEV

# elf(5), of 64 bits and little-endian as all supported machines are; the header and each section's row have 64 bytes.
_ELF, _SIZE = b"\x7fELF\x02\x01", 64
_SHT_NOTE, _SHF_COMPRESSED = 7, 0x800
_SECTION_NAME = b".note.cuda.fwd_compatibility\0"
_OWNER = b"NVIDIA Corporation"
_NOTE = "its note on forward compatibility"

# Real libraries have some forty sections, and a note of 120 bytes.
_MAX_SECTIONS, _LARGEST_NOTE = 512, 1 << 16
# CUDA has had some twenty branches of its driver, and sixteen brands of GPUs.
_MAX_NUMBERS, _MAX_NUMBER = 1 << 14, 99_999


class Note(NamedTuple):
    """What a libcuda says of itself: CUDA's version, () for none; lists of driver branches and of NVML's brands."""

    cuda: tuple[int, ...]
    drivers: tuple[int, ...] | None
    brands: tuple[int, ...] | None


class Compat(NamedTuple):
    """names: all in the folder; library: such as ``libcuda.so.575.57.08``; fault: why none can be used, else ""."""

    folder: str
    names: tuple[str, ...]
    library: str = ""
    version: tuple[int, ...] = ()
    note: Note | None = None
    fault: str = ""


def compat_of(root_fd: int, folder: str, names: tuple[str, ...]) -> Compat | None:
    """None if no libcuda with a version is among `names`."""
    found = [name for name in names if name.startswith(CUDA) and "." in name[len(CUDA) :]]
    if not found:
        return None
    compat = Compat(folder, names, found[0], version_of(found[0][len(CUDA) :]))
    if len(found) > 1:
        return compat._replace(fault="it has more than one libcuda.so")
    if not compat.version:
        return compat._replace(fault="it has a libcuda.so whose name has no version")
    try:
        return compat._replace(note=_note_of(root_fd, f"{folder}/{found[0]}"))
    except (OSError, ValueError) as err:
        reason = "it cannot be read" if isinstance(err, OSError) else err
        return compat._replace(fault=f"{found[0]} cannot be used: {reason}")


def version_of(text: str) -> tuple[int, ...]:
    return decimals(text, _MAX_NUMBER)


def _note_of(root_fd: int, path: str) -> Note | None:
    """None without a note.  OSError or ValueError if it cannot be read."""
    with closing(syscalls.openat2(root_fd, path, posix.O_PATH, resolve=_RESOLVE)) as named:
        if not is_regular(syscalls.known_of(named)):
            raise ValueError("it is not a regular file")
        with closing(reopened(named)) as fd:
            section = _section(fd)
    return None if section is None else _parsed(section)


def _section(fd: int) -> bytes | None:
    head = exactly(fd, 0, _SIZE)
    if not head.startswith(_ELF):
        raise ValueError("it is not a 64-bit library")
    table_at = memoryview(head).cast("Q")[5]
    size, count, names = memoryview(head).cast("H")[29:]
    if count > _MAX_SECTIONS or (count and (size != _SIZE or names >= count)):
        raise ValueError("its table of sections makes no sense")
    # Eight words a row: type and name's offset, flags, address, offset, size, and what is not needed here.
    table = memoryview(exactly(fd, table_at, count * _SIZE)).cast("Q").tolist()
    rows = [table[at : at + 8] for at in range(0, 8 * count, 8)]
    for named, flags, _, start, length, *_ in rows:
        type, name = named >> 32, named & 0xFFFFFFFF
        if type != _SHT_NOTE or exactly(fd, rows[names][3] + name, len(_SECTION_NAME)) != _SECTION_NAME:
            continue
        if flags & _SHF_COMPRESSED:
            raise ValueError(f"{_NOTE} is compressed")
        if length > _LARGEST_NOTE:
            raise ValueError(f"{_NOTE} has {length} bytes")
        return exactly(fd, start, length)
    return None


def _parsed(section: bytes) -> Note:
    """The note in a section; ValueError if there is none, or its JSON is not of the shape that is known."""
    owner_size, size = [int.from_bytes(section[at : at + 4], "little") for at in (0, 4)]
    begin = 12 + (owner_size + 3 & ~3)
    if section[12 : 12 + owner_size].rstrip(b"\0") != _OWNER or begin + size > len(section):
        raise ValueError(f"{_NOTE} is cut off, or not NVIDIA's")
    try:
        said = jsontext.loads(section[begin : begin + size].rstrip(b"\0"))
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise ValueError(f"{_NOTE} is not a JSON object")
    version = said.get("CUDA version", "")
    cuda = version_of(version) if isinstance(version, str) else ()
    note = Note(cuda, _numbers(said.get("driver")), _numbers(said.get("device")))
    if not cuda and note.drivers is None:
        raise ValueError(f"{_NOTE} names no driver and no CUDA")
    return note


def _numbers(value: object) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) > _MAX_NUMBERS:
        raise ValueError(f"{_NOTE} has a list that makes no sense")
    if not all([type(item) is int and 0 <= item <= _MAX_NUMBER for item in value]):
        raise ValueError(f"{_NOTE} lists something other than numbers")
    return tuple(sorted({*value}))
