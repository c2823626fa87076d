# SPDX-License-Identifier: Apache-2.0
"""eBPF instructions of a device filter as text.

The text is like that of the kernel's verifier and of bpftool, so that it can be compared with theirs.
"""

from __future__ import annotations

from struct import iter_unpack

_EXIT = 0x95

_OPERATORS = {
    0x00: "+=", 0x10: "-=", 0x20: "*=", 0x30: "/=", 0x40: "|=", 0x50: "&=",
    0x60: "<<=", 0x70: ">>=", 0x90: "%=", 0xA0: "^=", 0xB0: "=", 0xC0: "s>>=",
}  # fmt: skip
_CONDITIONS = {
    0x10: "==", 0x20: ">", 0x30: ">=", 0x40: "&", 0x50: "!=", 0x60: "s>",
    0x70: "s>=", 0xA0: "<", 0xB0: "<=", 0xC0: "s<", 0xD0: "s<=",
}  # fmt: skip
_SIZES = {0x00: "u32", 0x08: "u16", 0x10: "u8", 0x18: "u64"}
_LDX, _ST, _STX, _ALU, _JMP, _JMP32, _ALU64 = range(1, 8)
_MEM = 0x60
_X = 0x08


def disassemble(instructions: bytes) -> str:
    """One line for each instruction, numbered from 0; an unknown instruction is shown as bytes."""
    lines = []
    for number, (code, registers, offset, immediate) in enumerate(iter_unpack("<BBhi", instructions)):
        text = _text(code, registers & 0xF, registers >> 4, offset, immediate)
        raw = instructions[number * 8 : number * 8 + 8]
        lines.append(f"{number:4}: {text or 'data ' + raw.hex()}\n")
    return "".join(lines)


def _text(code: int, dst: int, src: int, offset: int, immediate: int) -> str:
    """The instruction as text; "" for one that no device filter has."""
    group, operation = code & 7, code & 0xF0
    if group in (_ALU, _ALU64) and operation in _OPERATORS:
        name = "w" if group == _ALU else "r"
        operand = f"{name}{src}" if code & _X else str(immediate)
        return f"{name}{dst} {_OPERATORS[operation]} {operand}"
    if code == _EXIT:
        return "exit"
    if code == _JMP:
        return f"goto pc{offset:+}"
    if group in (_JMP, _JMP32) and operation in _CONDITIONS:
        name = "w" if group == _JMP32 else "r"
        operand = f"{name}{src}" if code & _X else f"{immediate & 0xFFFFFFFF:#x}"
        return f"if {name}{dst} {_CONDITIONS[operation]} {operand} goto pc{offset:+}"
    if group in (_LDX, _ST, _STX) and code & 0xE0 == _MEM:
        cell = f"*({_SIZES[code & 0x18]} *)(r{src if group == _LDX else dst} {offset:+})"
        if group == _LDX:
            return f"r{dst} = {cell}"
        return f"{cell} = " + (f"r{src}" if group == _STX else str(immediate))
    return ""
