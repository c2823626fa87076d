# SPDX-License-Identifier: Apache-2.0
"""What systemd knows of a container's scope, and how it is told of more devices.  Pure: text and bytes.

systemd keeps the rules that the runtime gave it with the scope, and puts them in force anew whenever a property of the
scope is set (`podman update`, `systemctl set-property`) and at every daemon-reload: what was opened behind its back is
closed then.  A drop-in alone is read at daemon-reload only; setting the property changes what systemd has in memory,
and systemd writes the drop-in itself and removes it with the scope.

systemd.resource-control(5), DeviceAllow= and DevicePolicy=; org.freedesktop.systemd1(5).  Must not do I/O.
"""

from __future__ import annotations

from oci_gpu_hook import dbus
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from oci_gpu_hook.oci import DeviceRule

    # Path or pattern, and access: one entry of DeviceAllow=.
    Entry = tuple[str, str]

# What systemd writes beside the unit's own file where a property is set later, in the order in which it reads them.
# runc gives a scope its device rules so, when it has it.
DROP_INS = ("50-DeviceAllow.conf", "50-DevicePolicy.conf")

CALLS = 2  # in one message of `allow_more` or `allow_only`

_DESTINATION = "org.freedesktop.systemd1"
_OBJECT = "/org/freedesktop/systemd1"
_MANAGER = "org.freedesktop.systemd1.Manager"
_PEER = "org.freedesktop.DBus.Peer"
_POLICY = "DevicePolicy="
_ALLOW = "DeviceAllow="
_RESTRICTING = ("strict", "closed")


class ScopeUnit(NamedTuple):
    """A scope whose devices systemd restricts: its name, and what DeviceAllow= lets through."""

    name: str
    allowed: tuple[Entry, ...]


def scope_unit(name: str, text: str) -> ScopeUnit | None:
    """The scope that a transient unit file and its drop-ins describe; None where systemd does not restrict its devices.

    One that allows all has no entry, and would lose all others by its first (DevicePolicy=auto).
    """
    policy = ""
    allowed: list[Entry] = []
    for line in text.split("\n"):
        if line.startswith(_POLICY):
            policy = line[len(_POLICY) :]
        elif line == _ALLOW:
            allowed.clear()
        elif line.startswith(_ALLOW):
            path, _, access = line[len(_ALLOW) :].partition(" ")
            allowed.append((path, access))
    if policy not in _RESTRICTING and not allowed:
        return None
    return ScopeUnit(name, tuple(allowed))


def entries(rules: Iterable[DeviceRule]) -> tuple[Entry, ...]:
    """Rules as DeviceAllow= has them: systemd takes the numbers from such a path, there need be no such file (240)."""
    folders = {"c": "char", "b": "block"}
    return tuple(
        [(f"/dev/{folders[rule.type]}/{rule.major}:{rule.minor}", rule.access) for rule in rules]
    )


def allow_more(serial: int, unit: str, allowed: Iterable[Entry]) -> bytes:
    """The calls that add `allowed` to the unit's DeviceAllow=; `serial` is the first one's."""
    return _set_device_allow(serial, unit, [allowed])


def allow_only(serial: int, unit: str, allowed: Iterable[Entry]) -> bytes:
    """The calls that make `allowed` all that the unit's DeviceAllow= has: an empty value clears it."""
    return _set_device_allow(serial, unit, [(), allowed])


def _set_device_allow(serial: int, unit: str, values: Iterable[Iterable[Entry]]) -> bytes:
    body = dbus.Writer()
    body.string(unit)
    body.uint32(1)  # runtime: until the next boot, as the unit itself
    properties = body.begin_array(8)
    for value in values:
        body.align(8)
        body.string("DeviceAllow")
        body.signature("a(ss)")
        items = body.begin_array(8)
        for path, access in value:
            body.align(8)
            body.string(path)
            body.string(access)
        body.end_array(items)
    body.end_array(properties)
    call = dbus.method_call(
        serial,
        _DESTINATION,
        _OBJECT,
        _MANAGER,
        "SetUnitProperties",
        signature="sba(sv)",
        body=bytes(body.data),
    )
    # systemd answers first and puts the rules in force then, before it looks at the next message: its answer to that
    # says that they are.  On cgroup v1 it closes all devices for a moment, which no workload is to see.
    return call + dbus.method_call(serial + 1, _DESTINATION, _OBJECT, _PEER, "Ping")
