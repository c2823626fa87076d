# SPDX-License-Identifier: Apache-2.0
"""What a device cgroup answers to a request: by its rules (v1), or by its eBPF programs (v2), read and run here.  Pure.

Only what device programs are made of is known: comparisons and calculations on the request
(Documentation/bpf/standardization/instruction-set.rst).  Must not guess: the answer to anything else is None.
"""

from __future__ import annotations

import operator
import re
import struct
from collections.abc import Callable

from oci_gpu_hook.formats.devicefilter import TYPES

_READ, _WRITE = 2, 4  # BPF_DEVCG_ACC_READ and _WRITE
_EXIT, _JUMP, _LDDW = 0x95, 0x05, 0x18
# These read no register that they write.
_MOVES = (0xB4, 0xB7)
# struct bpf_insn: opcode, both registers, offset, immediate.
_INSTRUCTION = struct.Struct("<BBhi")
# Of 4, 2 and 1 bytes of the request.
_LOADS = {0x61: 4, 0x69: 2, 0x71: 1}
_CALCULATIONS: dict[int, Callable[[int, int], int]] = {
    0x00: operator.add,
    0x10: operator.sub,
    0x40: operator.or_,
    0x50: operator.and_,
    0x60: operator.lshift,
    0x70: operator.rshift,
    0xA0: operator.xor,
    0xB0: lambda left, right: right,
}
_COMPARISONS: dict[int, Callable[[int, int], object]] = {
    0x10: operator.eq,
    0x20: operator.gt,
    0x30: operator.ge,
    0x40: operator.and_,
    0x50: operator.ne,
    0xA0: operator.lt,
    0xB0: operator.le,
}
# The verifier lets no program run for longer.
_MAX_STEPS = 1_000_000


def by_rules(text: str, major: int, minor: int) -> bool:
    """Whether ``devices.list`` of v1 lets a character device be opened for reading and writing."""
    # The kernel writes "rwm" in this order.
    return bool(re.search(rf"^(a \*:\*|c (\*|{major}):(\*|{minor}) rw)", text, re.MULTILINE))


def by_programs(programs: list[bytes | None], major: int, minor: int) -> bool | None:
    """Whether all programs that are in effect let it be opened; None if one is hidden or not understood."""
    request = struct.pack("<III", TYPES["c"] | (_READ | _WRITE) << 16, major, minor)
    answers = [None if code is None else _answer(code, request) for code in programs]
    if False in answers:
        return False
    return None if None in answers else True


def _answer(code: bytes, request: bytes) -> bool | None:
    try:
        return _run(code, request) != 0
    except (KeyError, ValueError, struct.error):
        return None


def _run(code: bytes, context: bytes) -> int:
    """The value that a program returns; R1 points to the request, and is the only register that no number is in."""
    registers: dict[int, int] = {}
    at = 0
    for _ in range(_MAX_STEPS):
        opcode, both, offset, immediate = _INSTRUCTION.unpack_from(code, 8 * at)
        dst, src = both & 15, both >> 4
        at += 1
        if opcode == _EXIT:
            return registers[0]
        if opcode in _LOADS:
            size = _LOADS[opcode]
            if src in registers or not 0 <= offset <= len(context) - size:
                raise ValueError("device programs have no such instruction")
            registers[dst] = int.from_bytes(context[offset : offset + size], "little")
        elif opcode == _LDDW:
            registers[dst] = immediate & 0xFFFFFFFF | (_INSTRUCTION.unpack_from(code, 8 * at)[3] & 0xFFFFFFFF) << 32
            at += 1
        elif opcode == _JUMP:
            at += offset
        elif opcode & 7 in (4, 5, 6, 7):
            mask = 0xFFFFFFFF if opcode & 7 in (4, 6) else 0xFFFFFFFFFFFFFFFF
            right = (registers[src] if opcode & 8 else immediate) & mask
            left = 0 if opcode & 0xF7 in _MOVES else registers[dst] & mask
            if opcode & 7 in (4, 7):
                registers[dst] = _CALCULATIONS[opcode & 0xF0](left, right) & mask
            elif _COMPARISONS[opcode & 0xF0](left, right):
                at += offset
        else:
            raise ValueError("device programs have no such instruction")
    raise ValueError("it does not end")
