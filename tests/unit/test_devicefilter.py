# SPDX-License-Identifier: Apache-2.0
"""Device filters, as doctor's interpreter runs them, against the rules; tests/integration/test_cgroup.py verifies."""

from __future__ import annotations

import struct
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_gpu_hook.formats import devicerule
from oci_gpu_hook.formats.devicefilter import insn, is_loadable, prefix, program, runtime_defaults
from oci_gpu_hook.formats.devicerule import DeviceRule
from oci_gpu_hook.node.engines import containerdevices

MKNOD, READ, WRITE = 1, 2, 4
BLOCK, CHAR = 1, 2
LETTERS = {"m": MKNOD, "r": READ, "w": WRITE}


class Request(NamedTuple):
    """A struct bpf_cgroup_dev_ctx."""

    type: int
    major: int
    minor: int
    access: int


def run(instructions: bytes, request: Request) -> int:
    """As for the verifier, a register may be read only after it was written: else KeyError."""
    access = request.access << 16 | request.type
    return containerdevices._run(instructions, struct.pack("<III", access, request.major, request.minor))


def bits(access: str) -> int:
    return sum(LETTERS[letter] for letter in set(access))


def matches(rule: DeviceRule, request: Request) -> bool:
    kinds = {"a": (BLOCK, CHAR), "b": (BLOCK,), "c": (CHAR,), "u": (CHAR,)}
    has_number = rule.major in (None, request.major) and rule.minor in (None, request.minor)
    return has_number and request.type in kinds[rule.type]


def ours(rules: list[DeviceRule], request: Request) -> bool:
    return any(rule.allow and matches(rule, request) and request.access & ~bits(rule.access) == 0 for rule in rules)


def last_rule_wins(rules: list[DeviceRule], request: Request) -> bool:
    verdict = False
    for rule in rules:
        if not matches(rule, request):
            continue
        if rule.allow and not request.access & ~bits(rule.access):
            verdict = True
        if not rule.allow and request.access & bits(rule.access):
            verdict = False
    return verdict


# Few numbers, so that rules and requests meet.
numbers = st.sampled_from([0, 1, 2, 3, 195, 255, 4095, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
accesses = st.sampled_from(["r", "w", "m", "rw", "rm", "wm", "rwm", "mwr"])
rules = st.builds(
    DeviceRule, st.sampled_from(["a", "b", "c", "u"]), st.none() | numbers, st.none() | numbers, accesses, st.booleans()
)
# 8 is an access that no kernel has yet.
requests = st.builds(Request, st.sampled_from([BLOCK, CHAR]), numbers, numbers, st.integers(0, 15))


@st.composite
def originals(draw: st.DrawFn) -> bytes:
    """Programs as others write them: any register, forward jumps, the context read late."""
    blocks = []
    for _ in range(draw(st.integers(0, 5))):
        register = draw(st.sampled_from([0, 2, 3, 4, 5, 7, 8]))
        field = draw(st.sampled_from([0, 4, 8]))
        mask = draw(st.sampled_from([0xFFFF, 0x7FFFFFFF, 0xFF]))
        jump = draw(st.sampled_from([0x55, 0x15, 0x56]))
        verdict = draw(st.sampled_from([0, 1]))
        blocks += [
            insn(0x61, register, 1, field),
            insn(0x54, register, immediate=mask),
            insn(jump, register, offset=2, immediate=draw(st.integers(0, 4))),
            insn(0xB7, 0, immediate=verdict),
            insn(0x95),
        ]
    blocks += [insn(0xB4, 0, immediate=draw(st.sampled_from([0, 1]))), insn(0x95)]
    return b"".join(blocks)


@given(st.lists(rules, max_size=6), originals(), requests)
def test_a_prefixed_program_else_answers_as_before(listed: list[DeviceRule], original: bytes, request: Request) -> None:
    expected = 1 if ours(listed, request) else run(original, request)
    assert run(prefix(listed) + original, request) == expected
    # Another prefix may stand before it.
    assert run(prefix(listed[:2]) + prefix(listed[2:]) + original, request) == expected
    assert is_loadable(prefix(listed) + original)


DENY_ALL = insn(0xB4) + insn(0x95)


def test_no_jump_is_too_far_for_any_number_of_devices() -> None:
    """An instruction has 16 bits for it, signed, and a device takes three instructions."""
    listed = [DeviceRule("c", 195, minor, "rw") for minor in range(12_000)]
    instructions = prefix(listed) + DENY_ALL
    for minor in (0, 4_095, 4_096, 11_999):
        assert run(instructions, Request(CHAR, 195, minor, READ)) == 1
    assert run(instructions, Request(CHAR, 195, 12_000, READ)) == 0


@given(st.lists(rules, max_size=8), requests)
def test_a_whole_program_lets_the_last_rule_win(listed: list[DeviceRule], request: Request) -> None:
    assert run(program(listed), request) == last_rule_wins(listed, request)


def test_an_engines_usual_rules_leave_the_default_devices_and_the_listed_one() -> None:
    listed = [DeviceRule("a", None, None, "rwm", allow=False), DeviceRule("c", 10, 229, "rw")]
    instructions = program([*listed, *runtime_defaults()])

    def opened(type: int, major: int, access: int = READ | WRITE) -> set[int]:
        return {minor for minor in range(256) if run(instructions, Request(type, major, minor, access))}

    # null, zero, full, random and urandom; tty, ptmx and the ptys; neither mem and kmsg nor the host's console.
    assert (opened(CHAR, 1), opened(CHAR, 5), opened(CHAR, 136)) == ({3, 5, 7, 8, 9}, {0, 2}, {*range(256)})
    assert (opened(CHAR, 10), opened(CHAR, 195), opened(BLOCK, 8)) == ({229}, set(), set())
    assert opened(CHAR, 195, MKNOD) == opened(BLOCK, 8, MKNOD) == {*range(256)}
    # A denial of one access leaves the others.
    instructions = program([DeviceRule("c", 195, None, "rwm"), DeviceRule("c", 195, 0, "m", allow=False)])
    assert [0 in opened(CHAR, 195, access) for access in (READ, WRITE, MKNOD)] == [True, True, False]


def test_a_rule_that_no_device_can_match_is_left_out() -> None:
    listed = [DeviceRule("p", None, None, "rwm"), DeviceRule("c", 1 << 32, 3, "rw"), DeviceRule("c", 1, -1, "rw")]
    assert (program(listed), prefix(listed)) == (program([]), prefix([]))


def test_a_rule_reads_as_devices_allow_takes_it() -> None:
    assert devicerule.text_of(DeviceRule("c", 195, 0, "rw")) == "c 195:0 rw"
    assert devicerule.text_of(DeviceRule("a", None, None, "rwm")) == "a *:* rwm"


@pytest.mark.parametrize("registers", [0x0B, 0xB0, 0xBB])
def test_the_kernels_own_register_cannot_be_loaded_again(registers: int) -> None:
    assert not is_loadable(DENY_ALL + insn(0xBC, registers & 15, registers >> 4))
