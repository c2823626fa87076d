# SPDX-License-Identifier: Apache-2.0
"""Device rules as eBPF instructions, and instructions as text.  Pure.

A program of type BPF_PROG_TYPE_CGROUP_DEVICE is asked at each open and mknod of a device node: R1
points to a struct bpf_cgroup_dev_ctx (linux/bpf.h), and R0 is 1 to allow.  Every program of the
cgroup and of those above it must allow.

`prefix` goes in front of a program that exists, `program` stands in for one that the kernel does
not show, and `disassemble` is for people and tests.  Instructions are bytes, 8 for each
(Documentation/bpf/standardization/instruction-set.rst), little-endian as on x86_64 and aarch64.

Must not do I/O and must not know a cgroup or a GPU.
"""

from __future__ import annotations

try:
    # What struct is made of, without the file around it.
    from _struct import iter_unpack, pack
except ImportError:
    from struct import iter_unpack, pack

from oci_gpu_hook.oci import DeviceRule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# struct bpf_cgroup_dev_ctx: access_type has the device's type in its low half, the access in its
# high half.
_ACCESS_TYPE = 0
_MAJOR = 4
_MINOR = 8
_TYPES = {"b": 1, "c": 2, "u": 2}  # BPF_DEVCG_DEV_*; "u" is POSIX's other word for "c"
_ACCESS = {"m": 1, "r": 2, "w": 4}  # BPF_DEVCG_ACC_*
_HALF = 0xFFFF
_WORD = 0xFFFFFFFF

# Opcodes, named as the kernel's macros are: operation, class, operand (K immediate, X register).
_LDX_W = 0x61
_AND32_K = 0x54
_MOV32_K = 0xB4
_MOV32_X = 0xBC
_JEQ32_K = 0x16
_JNE32_K = 0x56
_EXIT = 0x95

# Which value lies in which register.  R1 stays as it is.  The verifier lets no program read another
# register before it is written, so whatever follows a prefix cannot notice that these were used.
_R0 = 0
_CTX = 1
_REQUEST = 2
_REQUEST_MAJOR = 3
_REQUEST_MINOR = 4
_SCRATCH = 5
_LAST_REGISTER = "a"

# A jump goes at most 32,767 instructions far, and a device takes three.
_MOST_TOGETHER = 4096


def runtime_defaults() -> tuple[DeviceRule, ...]:
    """What the OCI runtimes allow whatever config.json says.

    Making any node; null, zero, full, random, urandom, tty, ptmx and the ptys.  This is what runc and
    crun have in common, so that a program rebuilt with it opens nothing that the runtime had closed:
    runc adds /dev/net/tun (10:200; not 1.2.0 to 1.2.3), crun /dev/console (5:1; in a container it is
    a pty).
    """
    numbers = ((1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 2), (136, None))
    return (
        DeviceRule("c", None, None, "m"),
        DeviceRule("b", None, None, "m"),
        *[DeviceRule("c", major, minor, "rwm") for major, minor in numbers],
    )


def prefix(rules: Iterable[DeviceRule]) -> bytes:
    """Instructions that return 1 for what `rules` allow, and for the rest go on to what follows.

    The whole request must be within one rule's access: ``rw`` does not let a mknod through.  Rules
    that differ in nothing but the minor share all comparisons but the last.
    """
    alike: dict[tuple[object, ...], list[DeviceRule]] = {}
    for number, rule in enumerate(rules):
        if rule.allow and _can_match(rule):
            shared = (rule.type, rule.access, rule.major, number // _MOST_TOGETHER)
            alike.setdefault(shared, []).append(rule)
    return b"".join([_load_request(), *[_allow_whole(*some) for some in alike.values()]])


def program(rules: Iterable[DeviceRule]) -> bytes:
    """A whole filter, with the meaning of linux.resources.devices (runtime-spec, config-linux.md).

    The last rule that fits decides: one that allows fits a request that is wholly within its
    access, one that denies fits a request for any of its access.  What none fits is denied.
    """
    blocks = [_load_request()]
    for rule in reversed(tuple(rules)):
        if _can_match(rule):
            blocks.append(_allow_whole(rule) if rule.allow else _deny_any(rule))
    return b"".join([*blocks, _return(0)])


def is_loadable(instructions: bytes) -> bool:
    """Whether instructions that the kernel showed can be loaded again.

    With net.core.bpf_jit_harden the kernel hides constants by a register R11 of its own.
    """
    # The second byte has two registers, a hexadecimal digit each.
    return max(instructions[1::8].hex(), default="0") <= _LAST_REGISTER


def _load_request() -> bytes:
    return (
        _insn(_LDX_W, _REQUEST, _CTX, _ACCESS_TYPE)
        + _insn(_LDX_W, _REQUEST_MAJOR, _CTX, _MAJOR)
        + _insn(_LDX_W, _REQUEST_MINOR, _CTX, _MINOR)
    )


def _allow_whole(rule: DeviceRule, *others: DeviceRule) -> bytes:
    """Return 1 where nothing but the rule's access is asked for; `others` differ in their minors."""
    # One comparison for two things: the type, and that no access which the rule lacks is asked for,
    # be it one that no kernel has yet.
    mask = (~_access(rule) & _HALF) << 16
    wanted = 0
    if rule.type != "a":
        mask |= _HALF
        wanted = _TYPES[rule.type]
    allowed = _return(1)
    body = b"".join([_minor(some, allowed) for some in (rule, *others)])
    body = _major(rule, body)
    return _masked_request(mask) + _skip_unless_equal(_SCRATCH, wanted, body)


def _deny_any(rule: DeviceRule) -> bytes:
    """Return 0 where any of the rule's access is asked for."""
    denied = _return(0)
    body = _masked_request(_access(rule) << 16)
    body += _insn(_JEQ32_K, _SCRATCH, offset=len(denied) // 8, immediate=0) + denied
    body = _major(rule, _minor(rule, body))
    if rule.type == "a":
        return body
    return _masked_request(_HALF) + _skip_unless_equal(_SCRATCH, _TYPES[rule.type], body)


def _minor(rule: DeviceRule, body: bytes) -> bytes:
    if rule.minor is None:
        return body
    return _skip_unless_equal(_REQUEST_MINOR, rule.minor, body)


def _major(rule: DeviceRule, body: bytes) -> bytes:
    if rule.major is None:
        return body
    return _skip_unless_equal(_REQUEST_MAJOR, rule.major, body)


def _masked_request(mask: int) -> bytes:
    return _insn(_MOV32_X, _SCRATCH, _REQUEST) + _insn(_AND32_K, _SCRATCH, immediate=mask)


def _skip_unless_equal(register: int, value: int, body: bytes) -> bytes:
    return _insn(_JNE32_K, register, offset=len(body) // 8, immediate=value) + body


def _return(verdict: int) -> bytes:
    return _insn(_MOV32_K, _R0, immediate=verdict) + _insn(_EXIT)


def _access(rule: DeviceRule) -> int:
    bits = 0
    for letter in rule.access:
        bits |= _ACCESS.get(letter, 0)
    return bits


def _can_match(rule: DeviceRule) -> bool:
    """Whether any device can be meant: config.json may hold numbers and types that no node has."""
    return (
        (rule.type == "a" or rule.type in _TYPES)
        and (rule.major is None or 0 <= rule.major <= _WORD)
        and (rule.minor is None or 0 <= rule.minor <= _WORD)
    )


def _insn(code: int, dst: int = 0, src: int = 0, offset: int = 0, *, immediate: int = 0) -> bytes:
    """One struct bpf_insn; immediates are 32 bits, whatever their sign."""
    return pack("<BBhI", code, src << 4 | dst, offset, immediate & _WORD)


# The text is that of the kernel's verifier and of bpftool, so that it can be compared with theirs.
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
    """One line for each instruction, numbered from 0; what it does not know it shows as bytes."""
    lines = []
    for number, (code, registers, offset, immediate) in enumerate(
        iter_unpack("<BBhi", instructions)
    ):
        text = _text(code, registers & 0xF, registers >> 4, offset, immediate)
        raw = instructions[number * 8 : number * 8 + 8]
        lines.append(f"{number:4}: {text or 'data ' + raw.hex()}\n")
    return "".join(lines)


def _text(code: int, dst: int, src: int, offset: int, immediate: int) -> str:
    """The instruction in words; "" where it is none that a device filter has."""
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
        operand = f"{name}{src}" if code & _X else f"{immediate & _WORD:#x}"
        return f"if {name}{dst} {_CONDITIONS[operation]} {operand} goto pc{offset:+}"
    if group in (_LDX, _ST, _STX) and code & 0xE0 == _MEM:
        cell = f"*({_SIZES[code & 0x18]} *)(r{src if group == _LDX else dst} {offset:+})"
        if group == _LDX:
            return f"r{dst} = {cell}"
        return f"{cell} = " + (f"r{src}" if group == _STX else str(immediate))
    return ""
