# SPDX-License-Identifier: Apache-2.0
"""Device rules as eBPF instructions: a prefix for an existing program, or a whole one.  Pure.

A program of type BPF_PROG_TYPE_CGROUP_DEVICE runs at each open and mknod of a device node: R1 points to a struct
bpf_cgroup_dev_ctx (linux/bpf.h), and R0 is 1 to allow.  Every program of the cgroup and of those above it must allow.
Instructions are 8 bytes each (Documentation/bpf/standardization/instruction-set.rst), little-endian.
"""

from __future__ import annotations

from oci_gpu_hook.formats.devicerule import DeviceRule

# struct bpf_cgroup_dev_ctx: the low half of access_type is the device's type, the high half the access.
_ACCESS_TYPE, _MAJOR, _MINOR = 0, 4, 8
TYPES = {"b": 1, "c": 2, "u": 2}  # BPF_DEVCG_DEV_*; "u" is POSIX's other word for "c"
_ACCESS = {"m": 1, "r": 2, "w": 4}  # BPF_DEVCG_ACC_*
_HALF, _WORD = 0xFFFF, 0xFFFFFFFF

# Opcodes, named as the kernel's macros are: operation, class, operand (K immediate, X register).
_LDX_W, _AND32_K, _MOV32_K, _MOV32_X = 0x61, 0x54, 0xB4, 0xBC
_JEQ32_K, _JNE32_K, _EXIT = 0x16, 0x56, 0x95

# The values in the registers.  R1 never changes.  The verifier refuses a program that reads any other register before
# it has written it, so the program behind a prefix cannot notice that the prefix used them.
_R0, _CTX, _REQUEST, _REQUEST_MAJOR, _REQUEST_MINOR, _SCRATCH = range(6)
_LAST_REGISTER = "a"

# A jump goes at most 32,767 instructions far, and a device takes three.
_MAX_TOGETHER = 4096


def prefix(rules: tuple[DeviceRule, ...] | list[DeviceRule]) -> bytes:
    """Instructions that return 1 for a request that `rules` allow, and pass any other on to the program behind them.
    The whole request must be within one rule's access: ``rw`` does not let a mknod through.  Rules that differ only in
    the minor share all comparisons but the last.
    """
    groups: dict[tuple[object, ...], list[DeviceRule]] = {}
    for number, rule in enumerate(rules):
        if rule.allow and _can_match(rule):
            groups.setdefault((rule.type, rule.access, rule.major, number // _MAX_TOGETHER), []).append(rule)
    return b"".join([_load_request(), *[_allow_whole(*group) for group in groups.values()]])


def is_loadable(instructions: bytes) -> bool:
    """Whether instructions that the kernel has shown can be loaded again: bpf_jit_harden hides constants in R11."""
    # The second byte of an instruction holds two registers, one hexadecimal digit each.
    return max(instructions[1::8].hex(), default="0") <= _LAST_REGISTER


def runtime_defaults() -> tuple[DeviceRule, ...]:
    """What the OCI runtimes allow whatever config.json says: mknod of any device; and null, zero, full, random,
    urandom, tty, ptmx and the ptys.  What runc and crun have in common, so that a rebuilt program allows nothing that
    the runtime denied: runc also allows /dev/net/tun (10:200; not 1.2.0 to 1.2.3), and crun /dev/console (5:1, a pty).
    """
    numbers = ((1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 2), (136, None))
    mknod = [DeviceRule(type, None, None, "m") for type in ("c", "b")]
    return (*mknod, *[DeviceRule("c", first, second, "rwm") for first, second in numbers])


def program(rules: tuple[DeviceRule, ...] | list[DeviceRule]) -> bytes:
    """A whole filter, to replace one that the kernel does not show.  It means what linux.resources.devices does.  The
    last rule that fits decides: one that allows fits a request that is wholly within its access, one that denies fits a
    request for any of its access.  A request that no rule fits is denied.
    """
    blocks = [_allow_whole(rule) if rule.allow else _deny_any(rule) for rule in reversed(rules) if _can_match(rule)]
    return b"".join([_load_request(), *blocks, _verdict(0)])


def _load_request() -> bytes:
    places = ((_REQUEST, _ACCESS_TYPE), (_REQUEST_MAJOR, _MAJOR), (_REQUEST_MINOR, _MINOR))
    return b"".join([insn(_LDX_W, register, _CTX, offset) for register, offset in places])


def _allow_whole(rule: DeviceRule, *others: DeviceRule) -> bytes:
    # One comparison checks the type, and that the request has no access bit beyond the rule's, nor a later kernel's.
    mask, wanted = (~_access(rule) & _HALF) << 16, 0
    if rule.type != "a":
        mask, wanted = mask | _HALF, TYPES[rule.type]
    allowed = _verdict(1)
    body = b"".join([_if_equal(_REQUEST_MINOR, each.minor, allowed) for each in (rule, *others)])
    return _masked_request(mask) + _if_equal(_SCRATCH, wanted, _if_equal(_REQUEST_MAJOR, rule.major, body))


def _deny_any(rule: DeviceRule) -> bytes:
    denied = _verdict(0)
    body = _masked_request(_access(rule) << 16)
    body += insn(_JEQ32_K, _SCRATCH, offset=len(denied) // 8, immediate=0) + denied
    body = _if_equal(_REQUEST_MAJOR, rule.major, _if_equal(_REQUEST_MINOR, rule.minor, body))
    return body if rule.type == "a" else _masked_request(_HALF) + _if_equal(_SCRATCH, TYPES[rule.type], body)


def _masked_request(mask: int) -> bytes:
    return insn(_MOV32_X, _SCRATCH, _REQUEST) + insn(_AND32_K, _SCRATCH, immediate=mask)


def _if_equal(register: int, value: int | None, body: bytes) -> bytes:
    return body if value is None else insn(_JNE32_K, register, offset=len(body) // 8, immediate=value) + body


def _verdict(value: int) -> bytes:
    return insn(_MOV32_K, _R0, immediate=value) + insn(_EXIT)


def _access(rule: DeviceRule) -> int:
    return sum([bit for letter, bit in _ACCESS.items() if letter in rule.access])


def _can_match(rule: DeviceRule) -> bool:
    """Whether any device can match: config.json may hold numbers and types that no device has."""
    numbers = [number for number in (rule.major, rule.minor) if number is not None]
    return rule.type in ("a", *TYPES) and all([0 <= number <= _WORD for number in numbers])


def insn(code: int, dst: int = 0, src: int = 0, offset: int = 0, *, immediate: int = 0) -> bytes:
    """One struct bpf_insn; immediates are 32 bits, whatever their sign."""
    operands = (offset & _HALF).to_bytes(2, "little") + (immediate & _WORD).to_bytes(4, "little")
    return bytes((code, src << 4 | dst)) + operands
