# SPDX-License-Identifier: Apache-2.0
"""Device rules as eBPF instructions, to be put in front of an existing program.  Pure.

A program of type BPF_PROG_TYPE_CGROUP_DEVICE runs at each open and mknod of a device node: R1 points to a struct
bpf_cgroup_dev_ctx (linux/bpf.h), and R0 is 1 to allow.  Every program of the cgroup and of those above it must allow.

Instructions are bytes, 8 for each (Documentation/bpf/standardization/instruction-set.rst), little-endian as on x86_64
and aarch64.  `devicefilter_whole` makes a whole program.
"""

from __future__ import annotations

try:
    # The C module that `struct` wraps: one file less to load.
    from _struct import pack
except ImportError:
    from struct import pack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from oci_gpu_hook.formats.devicerule import DeviceRule

# struct bpf_cgroup_dev_ctx: the low half of access_type is the device's type, the high half the access.
_ACCESS_TYPE = 0
_MAJOR = 4
_MINOR = 8
TYPES = {"b": 1, "c": 2, "u": 2}  # BPF_DEVCG_DEV_*; "u" is POSIX's other word for "c"
_ACCESS = {"m": 1, "r": 2, "w": 4}  # BPF_DEVCG_ACC_*
HALF = 0xFFFF
_WORD = 0xFFFFFFFF

# Opcodes, named as the kernel's macros are: operation, class, operand (K immediate, X register).
_LDX_W = 0x61
_AND32_K = 0x54
_MOV32_K = 0xB4
_MOV32_X = 0xBC
JEQ32_K = 0x16
_JNE32_K = 0x56
_EXIT = 0x95

# The values in the registers.  R1 never changes.  The verifier refuses a program that reads any other register before
# it has written it, so the program behind a prefix cannot notice that the prefix used them.
_R0 = 0
_CTX = 1
_REQUEST = 2
_REQUEST_MAJOR = 3
_REQUEST_MINOR = 4
SCRATCH = 5
_LAST_REGISTER = "a"

# A jump goes at most 32,767 instructions far, and a device takes three.
_MOST_TOGETHER = 4096


def prefix(rules: Iterable[DeviceRule]) -> bytes:
    """Instructions that return 1 for a request that `rules` allow, and pass any other on to the program behind them.

    The whole request must be within one rule's access: ``rw`` does not let a mknod through.  Rules that differ only in
    the minor share all comparisons but the last.
    """
    groups: dict[tuple[object, ...], list[DeviceRule]] = {}
    for number, rule in enumerate(rules):
        if rule.allow and can_match(rule):
            shared = (rule.type, rule.access, rule.major, number // _MOST_TOGETHER)
            groups.setdefault(shared, []).append(rule)
    return b"".join([load_request(), *[allow_whole(*group) for group in groups.values()]])


def is_loadable(instructions: bytes) -> bool:
    """Whether instructions that the kernel has shown can be loaded again.

    With net.core.bpf_jit_harden the kernel hides constants in R11, a register of its own.
    """
    # The second byte of an instruction holds two registers, one hexadecimal digit each.
    return max(instructions[1::8].hex(), default="0") <= _LAST_REGISTER


def load_request() -> bytes:
    """Load the request's type and access, major and minor into their registers."""
    return (
        insn(_LDX_W, _REQUEST, _CTX, _ACCESS_TYPE)
        + insn(_LDX_W, _REQUEST_MAJOR, _CTX, _MAJOR)
        + insn(_LDX_W, _REQUEST_MINOR, _CTX, _MINOR)
    )


def allow_whole(rule: DeviceRule, *others: DeviceRule) -> bytes:
    """Return 1 if the request is within the rule's access; `others` differ from it only in the minor."""
    # One comparison checks two things: the type, and that the request has no access bit beyond those of the rule, not
    # even one that a later kernel may add.
    mask = (~access(rule) & HALF) << 16
    wanted = 0
    if rule.type != "a":
        mask |= HALF
        wanted = TYPES[rule.type]
    allowed = verdict(1)
    body = b"".join([minor(each, allowed) for each in (rule, *others)])
    body = major(rule, body)
    return masked_request(mask) + skip_unless_equal(SCRATCH, wanted, body)


def minor(rule: DeviceRule, body: bytes) -> bytes:
    """Run `body` if the request has the rule's minor."""
    if rule.minor is None:
        return body
    return skip_unless_equal(_REQUEST_MINOR, rule.minor, body)


def major(rule: DeviceRule, body: bytes) -> bytes:
    """Run `body` if the request has the rule's major."""
    if rule.major is None:
        return body
    return skip_unless_equal(_REQUEST_MAJOR, rule.major, body)


def masked_request(mask: int) -> bytes:
    """Put the request's type and access, ANDed with `mask`, into the scratch register."""
    return insn(_MOV32_X, SCRATCH, _REQUEST) + insn(_AND32_K, SCRATCH, immediate=mask)


def skip_unless_equal(register: int, value: int, body: bytes) -> bytes:
    """Run `body` if the register has this value, else skip it."""
    return insn(_JNE32_K, register, offset=len(body) // 8, immediate=value) + body


def verdict(value: int) -> bytes:
    """Return `value`: 1 allows the request, 0 denies it."""
    return insn(_MOV32_K, _R0, immediate=value) + insn(_EXIT)


def access(rule: DeviceRule) -> int:
    """The rule's access as the kernel's bits."""
    bits = 0
    for letter in rule.access:
        bits |= _ACCESS.get(letter, 0)
    return bits


def can_match(rule: DeviceRule) -> bool:
    """Whether any device can match: config.json may hold numbers and types that no device has."""
    return (
        (rule.type == "a" or rule.type in TYPES)
        and (rule.major is None or 0 <= rule.major <= _WORD)
        and (rule.minor is None or 0 <= rule.minor <= _WORD)
    )


def insn(code: int, dst: int = 0, src: int = 0, offset: int = 0, *, immediate: int = 0) -> bytes:
    """One struct bpf_insn; immediates are 32 bits, whatever their sign."""
    return pack("<BBhI", code, src << 4 | dst, offset, immediate & _WORD)
