# SPDX-License-Identifier: Apache-2.0
"""ELF files with a note on CUDA forward compatibility, as a real libcuda has one, or anything else in its place."""

from __future__ import annotations

import json
import struct

SECTION = ".note.cuda.fwd_compatibility"
OWNER = b"NVIDIA Corporation\0"

# As `readelf -p` shows them, of 575.57.08 and of Jetson Orin's 13.2.1.
R575 = {
    "format": 1,
    "CUDA version": "12.9",
    "driver": [535, 550, 560, 565, 570, 575],
    "device": [1, 2, 7, 8, 9, 10, 11, 12, 13, 14],
}
ORIN = {"format": 1, "CUDA version": "13.2"}


def note(description: bytes, owner: bytes = OWNER) -> bytes:
    """A section's content: one note, each part of it aligned to 4 bytes."""
    header = struct.pack("<III", len(owner), len(description), 1)
    return header + owner.ljust(len(owner) + 3 & ~3, b"\0") + description.ljust(len(description) + 3 & ~3, b"\0")


def said(document: object) -> bytes:
    """A section that says this."""
    return note(json.dumps(document).encode())


def library(content: bytes | None, *, name: str = SECTION, type: int = 7, flags: int = 0, size: int = -1) -> bytes:
    """A 64-bit ELF file with two sections, the note's and the names'; without content it has the names alone."""
    names = f"\0{name}\0.shstrtab\0".encode()
    content_at = 64
    names_at = content_at + len(content or b"")
    table_at = names_at + len(names)
    rows = [(0,) * 10, (2 + len(name), 3, 0, 0, names_at, len(names), 0, 0, 1, 0)]
    if content is not None:
        length = len(content) if size < 0 else size
        rows.append((1, type, flags, 0, content_at, length, 0, 0, 4, 0))
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, table_at, 0, 64, 56, 0, 64, len(rows), 1)
    return head + (content or b"") + names + b"".join([struct.pack("<IIQQQQIIQQ", *row) for row in rows])
