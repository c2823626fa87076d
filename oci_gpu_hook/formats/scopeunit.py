# SPDX-License-Identifier: Apache-2.0
"""What systemd knows of a scope's devices: read from its unit files, set by D-Bus calls.  Pure: bytes and values.

systemd puts a scope's device rules in force again whenever a property of it is set (`podman update`) and at every
daemon-reload, and so denies devices that were allowed without its knowledge.  A drop-in would be read at daemon-reload
only.  To set the property changes what systemd has in memory; it writes a drop-in itself, and removes that with the
scope.  crun from 1.28 on gives it no rules on v2 but BPFProgram=, where it has pinned its device program (BPF_OBJ_PIN,
bpf(2)): systemd attaches that at the same times, beside the programs that are there, and all must allow.

systemd.resource-control(5), org.freedesktop.systemd1(5); D-Bus Specification, "Message Protocol" and "Authentication
Protocol".  To load a library for D-Bus would take a start longer than the call itself.
"""

from __future__ import annotations

from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from oci_gpu_hook.formats.devicerule import DeviceRule

    # Path or pattern, and access: one entry of DeviceAllow=.
    Entry = tuple[str, str]
    # A value's alignment and its bytes.
    Value = tuple[int, bytes]

CALLS = 2  # in one message of `calls`

_SYSTEMD = "org.freedesktop.systemd1"
_OBJECT = "/org/freedesktop/systemd1"

# The drop-ins that systemd writes when a property is set later, in the order in which it reads them.  runc sets a
# scope's device rules in this way, after it has made the scope.
DROP_INS = ("50-DeviceAllow.conf", "50-DevicePolicy.conf")

_POLICY, _ALLOW, _PROGRAM = "DevicePolicy=", "DeviceAllow=", "BPFProgram=device:"
_RESTRICTING = ("strict", "closed")
_CRUN = "/sys/fs/bpf/crun"

_LITTLE_ENDIAN, _VERSION = ord("l"), 1
_METHOD_CALL, _ERROR = 1, 3  # types of messages
# The codes of header fields.
_PATH, _INTERFACE, _MEMBER, _ERROR_NAME, _REPLY_SERIAL, _TO, _SIGNATURE = 1, 2, 3, 4, 5, 6, 8
_FIXED_HEADER = 16
_MAX_BYTES = 1 << 27  # the specification's longest message


class ScopeUnit(NamedTuple):
    """allowed: what DeviceAllow= lets through, None for all; pinned: where crun has pinned its program, or ""."""

    name: str
    allowed: tuple[Entry, ...] | None
    pinned: str = ""


def parse_scope(name: str, text: str) -> ScopeUnit | None:
    """None if systemd does not restrict its devices: with a first entry all others are denied (DevicePolicy=auto)."""
    policy = pinned = ""
    allowed: list[Entry] = []
    # No other: an annotation of an image can name another container's to systemd.
    of_crun = f"{_CRUN}/{name.replace('.', '_')}"
    for line in text.split("\n"):
        if line.startswith(_POLICY):
            policy = line[len(_POLICY) :]
        elif line == _ALLOW:
            allowed.clear()
        elif line.startswith(_ALLOW):
            path, _, access = line[len(_ALLOW) :].partition(" ")
            allowed.append((path, access))
        elif line == _PROGRAM + of_crun:
            pinned = of_crun
    restricts = policy in _RESTRICTING or bool(allowed)
    return ScopeUnit(name, tuple(allowed) if restricts else None, pinned) if restricts or pinned else None


def entries(rules: Iterable[DeviceRule]) -> tuple[Entry, ...]:
    """Rules as entries of DeviceAllow=.  systemd takes the numbers from such a path; no file need be there (240)."""
    folders = {"c": "char", "b": "block"}
    return tuple([(f"/dev/{folders[rule.type]}/{rule.major}:{rule.minor}", rule.access) for rule in rules])


def calls(serial: int, unit: str, allowed: Iterable[Entry], *, only: bool = False) -> bytes:
    """The calls that add `allowed` to the unit's DeviceAllow=, or let it be all; `serial` is that of the first."""
    properties = []
    # An empty value clears what is there.
    for value in ((), allowed) if only else (allowed,):
        items = [_aligned(_string(path), _string(access)) for path, access in value]
        properties.append(_aligned(_string("DeviceAllow"), _signature("a(ss)"), *_structs(items)))
    # 1, runtime: until the next boot, as the unit itself.
    body = _aligned(_string(unit), _uint32(1), *_structs(properties))
    call = _method_call(serial, f"{_SYSTEMD}.Manager", "SetUnitProperties", "sba(sv)", body)
    # systemd puts the rules in force after its answer, and then reads the next message: once it answers a Ping they are
    # in force.  On cgroup v1 it denies all devices for a moment, so no workload may run yet.
    return call + _method_call(serial + 1, "org.freedesktop.DBus.Peer", "Ping")


# --- D-Bus: the part of the protocol that a method call and its answer need


def _aligned(*values: Value) -> bytes:
    data = b""
    for alignment, value in values:
        data += bytes(-len(data) % alignment) + value
    return data


def _uint32(value: int) -> Value:
    return 4, value.to_bytes(4, "little")


def _string(text: str) -> Value:
    encoded = text.encode()
    return 4, _uint32(len(encoded))[1] + encoded + b"\0"


def _signature(text: str) -> Value:
    return 1, bytes([len(text)]) + text.encode() + b"\0"


def _structs(items: Iterable[bytes]) -> tuple[Value, Value]:
    data = _aligned(*[(8, item) for item in items])
    return _uint32(len(data)), (8, data)


def authentication(uid: int) -> bytes:
    """A client need not wait for an answer: the peer learns the user from the kernel."""
    return b"\0AUTH EXTERNAL " + str(uid).encode().hex().encode() + b"\r\nBEGIN\r\n"


def _method_call(serial: int, interface: str, member: str, types: str = "", body: bytes = b"") -> bytes:
    texts = [(_PATH, "o", _OBJECT), (_INTERFACE, "s", interface), (_MEMBER, "s", member), (_TO, "s", _SYSTEMD)]
    texts += [(_SIGNATURE, "g", types)] if types else []
    values = [(code, kind, _signature(text) if kind == "g" else _string(text)) for code, kind, text in texts]
    fields = [_aligned((1, bytes([code])), _signature(kind), value) for code, kind, value in values]
    start = bytes([_LITTLE_ENDIAN, _METHOD_CALL, 0, _VERSION])
    return _aligned((1, start), _uint32(len(body)), _uint32(serial), *_structs(fields), (8, body))


def first_answer(data: bytes) -> tuple[tuple[int, str | None] | None, bytes]:
    """The first message in `data`, None while it is incomplete, and the bytes after it; ValueError if it is none.  Of a
    message the serial of the call that it answers, 0 for none, and what it says if it is an error, else None.
    """
    if len(data) < _FIXED_HEADER:
        return None, data
    if data[0] != _LITTLE_ENDIAN or data[3] != _VERSION:
        raise ValueError("no message of D-Bus version 1")
    fields_end = _FIXED_HEADER + _uint32_at(data, 12)
    body_at = fields_end + -fields_end % 8
    end = body_at + _uint32_at(data, 4)
    if end > _MAX_BYTES:
        raise ValueError("a message longer than D-Bus allows")
    if len(data) < end:
        return None, data
    fields, text = _fields(data, fields_end), b""
    if fields.get(_SIGNATURE, b"").startswith(b"s"):
        text = data[body_at + 4 : body_at + 4 + _uint32_at(data, body_at)]
    said = (text or fields.get(_ERROR_NAME, b"")).decode(errors="replace") if data[1] == _ERROR else None
    return (_uint32_at(fields.get(_REPLY_SERIAL, b""), 0), said), data[end:]


def _fields(data: bytes, end: int) -> dict[int, bytes]:
    """By the fields' codes, texts without their lengths."""
    found = {}
    at = _FIXED_HEADER
    while at < end:
        at += -at % 8
        code, length = data[at], data[at + 1]
        kind = data[at + 2 : at + 2 + length]
        at += 3 + length
        if kind == b"g":
            begin, length = at + 1, data[at]
        elif kind == b"u":
            begin, length = at + -at % 4, 4
        elif kind in (b"s", b"o"):
            begin = at + -at % 4 + 4
            length = _uint32_at(data, begin - 4)
        else:
            raise ValueError("a header field of a type that D-Bus does not have there")
        found[code] = data[begin : begin + length]
        # A text has a NUL behind it.
        at = begin + length + (kind != b"u")
    return found


def _uint32_at(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")
