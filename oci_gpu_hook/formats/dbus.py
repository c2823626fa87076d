# SPDX-License-Identifier: Apache-2.0
"""D-Bus messages: the part of the protocol that a method call and its answer need.  Pure: bytes from values and back.

D-Bus Specification, "Message Protocol" and "Authentication Protocol".  To load a library for it would take a container
start longer than the call itself.  Must not do I/O, and must not know whom a message is for.
"""

from __future__ import annotations

from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    # A value's alignment and its bytes.
    Value = tuple[int, bytes]

ERROR = 3  # a message's type

_METHOD_CALL = 1
_VERSION = 1
_LITTLE_ENDIAN = ord("l")
# The codes of header fields.
_PATH, _INTERFACE, _MEMBER, _ERROR_NAME, _REPLY_SERIAL, _DESTINATION, _SIGNATURE = 1, 2, 3, 4, 5, 6, 8
_FIXED_HEADER = 16
_MOST_BYTES = 1 << 27  # the specification's longest message


class Answer(NamedTuple):
    """A received message: its type, the serial of the call that it answers (0 for none), an error's name and text."""

    type: int
    reply_serial: int
    error_name: str
    text: str


def aligned(*values: Value) -> bytes:
    """Values one after another, each on a multiple of its alignment."""
    data = b""
    for alignment, value in values:
        data += bytes(-len(data) % alignment) + value
    return data


def uint32(value: int) -> Value:
    """A UINT32, or a BOOLEAN, which is written alike."""
    return 4, value.to_bytes(4, "little")


def string(text: str) -> Value:
    """A STRING or OBJECT_PATH."""
    encoded = text.encode()
    return 4, uint32(len(encoded))[1] + encoded + b"\0"


def signature(text: str) -> Value:
    """A SIGNATURE, with which each variant begins."""
    return 1, bytes([len(text)]) + text.encode() + b"\0"


def structs(items: Iterable[bytes]) -> tuple[Value, Value]:
    """An ARRAY of structs: its length, and what it holds."""
    data = aligned(*[(8, item) for item in items])
    return uint32(len(data)), (8, data)


def authentication(uid: int) -> bytes:
    """All that a client sends first.  It need not wait for an answer: the peer learns the user from the kernel."""
    return b"\0AUTH EXTERNAL " + str(uid).encode().hex().encode() + b"\r\nBEGIN\r\n"


def method_call(
    serial: int, destination: str, path: str, interface: str, member: str, *, types: str = "", body: bytes = b""
) -> bytes:
    """The message that calls a method; `body` holds the arguments, of these `types`."""
    texts = (
        (_PATH, "o", path),
        (_INTERFACE, "s", interface),
        (_MEMBER, "s", member),
        (_DESTINATION, "s", destination),
        (_SIGNATURE, "g", types),
    )
    fields = [
        aligned((1, bytes([code])), signature(kind), signature(text) if kind == "g" else string(text))
        for code, kind, text in texts
        if text
    ]
    start = bytes([_LITTLE_ENDIAN, _METHOD_CALL, 0, _VERSION])
    return aligned((1, start), uint32(len(body)), uint32(serial), *structs(fields), (8, body))


def first_answer(data: bytes) -> tuple[Answer | None, bytes]:
    """The first message in `data`, None while it is incomplete, and the bytes after it; ValueError if it is none."""
    if len(data) < _FIXED_HEADER:
        return None, data
    if data[0] != _LITTLE_ENDIAN or data[3] != _VERSION:
        raise ValueError("no message of D-Bus version 1")
    fields_end = _FIXED_HEADER + _uint32(data, 12)
    body_at = fields_end + -fields_end % 8
    end = body_at + _uint32(data, 4)
    if end > _MOST_BYTES:
        raise ValueError("a message longer than D-Bus allows")
    if len(data) < end:
        return None, data
    fields = _fields(data, fields_end)
    text = ""
    if data[1] == ERROR and str(fields.get(_SIGNATURE, "")).startswith("s"):
        text = _string(data, body_at)[0]
    serial = fields.get(_REPLY_SERIAL, 0)
    name = str(fields.get(_ERROR_NAME, ""))
    return Answer(data[1], serial if isinstance(serial, int) else 0, name, text), data[end:]


def _fields(data: bytes, end: int) -> dict[int, str | int]:
    """The header fields by code."""
    found: dict[int, str | int] = {}
    at = _FIXED_HEADER
    while at < end:
        at += -at % 8
        code, length = data[at], data[at + 1]
        kind = data[at + 2 : at + 2 + length]
        at += 3 + length
        if kind == b"g":
            length = data[at]
            found[code] = data[at + 1 : at + 1 + length].decode(errors="replace")
            at += 2 + length
        elif kind in (b"s", b"o", b"u"):
            at += -at % 4
            found[code], at = (_uint32(data, at), at + 4) if kind == b"u" else _string(data, at)
        else:
            raise ValueError("a header field of a type that D-Bus does not have there")
    return found


def _string(data: bytes, at: int) -> tuple[str, int]:
    """The string at `at`, and where it ends."""
    end = at + 4 + _uint32(data, at)
    return data[at + 4 : end].decode(errors="replace"), end + 1


def _uint32(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")
