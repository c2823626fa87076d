# SPDX-License-Identifier: Apache-2.0
"""What systemd is told, byte for byte, and what is read of its unit files and answers."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_gpu_hook.formats import scopeunit
from oci_gpu_hook.formats.devicerule import DeviceRule

RULES = (DeviceRule("c", 195, 0, "rw"), DeviceRule("c", 195, 255, "rw"))
UNIT = "libpod-0123.scope"


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("[Scope]\nDelegate=yes\n", None),
        ("[Scope]\nDevicePolicy=auto\nDeviceAllow=\n", None),
        ("[Scope]\nDevicePolicy=strict\n", ()),
        ("[Scope]\nDevicePolicy=closed\n", ()),
        ("[Scope]\nDevicePolicy=strict\nDevicePolicy=auto\n", None),
        # With an entry, auto restricts too.
        ("DevicePolicy=auto\nDeviceAllow=/dev/null rwm\n", (("/dev/null", "rwm"),)),
        (
            "DeviceAllow=/dev/zero r\nDeviceAllow=\nDeviceAllow=char-pts rwm\nDeviceAllow=block-* m\n",
            (("char-pts", "rwm"), ("block-*", "m")),
        ),
        # What a container's name can put into the description is one line of another key.
        ("[Unit]\nDescription=DeviceAllow=/dev/null rw\n", None),
    ],
)
def test_what_restricts_a_scope(text: str, allowed: tuple[scopeunit.Entry, ...] | None) -> None:
    expected = None if allowed is None else scopeunit.ScopeUnit(UNIT, allowed)
    assert scopeunit.parse_scope(UNIT, text) == expected


def test_the_program_that_crun_has_pinned_for_this_scope_is_found() -> None:
    own, other = ("/sys/fs/bpf/crun/libpod-0123_scope", "/sys/fs/bpf/crun/libpod-4567_scope")
    text = f"[Scope]\nBPFProgram=\nBPFProgram=device:{own}\n"
    assert scopeunit.parse_scope(UNIT, text) == scopeunit.ScopeUnit(UNIT, None, own)
    assert scopeunit.parse_scope(UNIT, f"{text}DevicePolicy=strict\n") == scopeunit.ScopeUnit(UNIT, (), own)
    for line in (f"device:{other}", f"egress:{own}", f"device:{own}/../x", f"device:/run{own}"):
        assert scopeunit.parse_scope(UNIT, f"BPFProgram={line}\n") is None


def test_entries_name_devices_by_number() -> None:
    it = (*RULES, DeviceRule("b", 259, 3, "r"))
    assert scopeunit.entries(it) == (("/dev/char/195:0", "rw"), ("/dev/char/195:255", "rw"), ("/dev/block/259:3", "r"))


def test_to_allow_only_some_the_list_is_cleared_first() -> None:
    more = scopeunit.calls(1, UNIT, scopeunit.entries(RULES))
    only = scopeunit.calls(1, UNIT, scopeunit.entries(RULES), only=True)
    assert (more.count(b"DeviceAllow\0"), only.count(b"DeviceAllow\0")) == (1, 2)


def answer(type: int, *fields: bytes, body: bytes = b"") -> bytes:
    """A message as a peer writes it: each field on a multiple of 8, and the end of the last one not padded."""
    joined = b""
    for field in fields:
        joined += bytes(-len(joined) % 8) + field
    header = struct.pack("<cBBBIII", b"l", type, 1, 1, len(body), 7, len(joined))
    return header + joined + bytes(-len(joined) % 8) + body


REPLY = b"\x05\x01u\0" + struct.pack("<I", 2)
SENDER = b"\x07\x01s\0" + struct.pack("<I5s", 4, b":1.0\0")
NAME = b"\x04\x01s\0" + struct.pack("<I8s", 7, b"a.b.Bad\0")
SIGNED = b"\x08\x01g\0\x01s\0"
WORDS = struct.pack("<I10s", 9, b"not today\0")

METHOD_RETURN, ERROR = 2, 3
RETURNED = answer(METHOD_RETURN, REPLY, SENDER)
REFUSED = answer(ERROR, SENDER, REPLY, NAME, SIGNED, body=WORDS)
SIGNAL = answer(4, SENDER, body=b"whatever")


def test_answers_are_read_one_after_another() -> None:
    data, found = RETURNED + SIGNAL + REFUSED + RETURNED[:20], []
    while True:
        message, data = scopeunit.first_answer(data)
        if message is None:
            break
        found.append(message)
    assert found == [(2, None), (0, None), (2, "not today")]
    assert scopeunit.first_answer(answer(ERROR, REPLY, NAME)) == ((2, "a.b.Bad"), b"")
    assert data == RETURNED[:20]


@pytest.mark.parametrize("message", [RETURNED, REFUSED, SIGNAL], ids=["return", "error", "signal"])
def test_a_message_that_is_not_whole_waits_for_the_rest(message: bytes) -> None:
    for size in range(len(message)):
        assert scopeunit.first_answer(message[:size]) == (None, message[:size])


@pytest.mark.parametrize("data", [b"REJECTED EXTERNAL\r\n", b"B" + RETURNED[1:], b"l\2\0\1" + b"\xff" * 12])
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        scopeunit.first_answer(data)


@given(st.binary(max_size=80))
def test_no_bytes_give_another_error(data: bytes) -> None:
    try:
        scopeunit.first_answer(b"l\2\0\1" + data)
    except (ValueError, IndexError):
        pass
