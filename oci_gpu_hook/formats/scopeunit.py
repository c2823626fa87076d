# SPDX-License-Identifier: Apache-2.0
"""DeviceAllow= of a systemd scope: read from its unit files, set by D-Bus calls.  Pure.

systemd keeps the device rules that the runtime gave it with the scope.  It puts them in force again whenever a property
of the scope is set (`podman update`, `systemctl set-property`) and at every daemon-reload, and so denies devices that
were allowed without its knowledge.  A drop-in would be read at daemon-reload only.  To set the property changes what
systemd has in memory; systemd then writes a drop-in itself, and removes it with the scope.

systemd.resource-control(5), DeviceAllow= and DevicePolicy=; org.freedesktop.systemd1(5).
"""

from __future__ import annotations

from oci_gpu_hook.formats import dbus
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from oci_gpu_hook.formats.devicerule import DeviceRule

    # Path or pattern, and access: one entry of DeviceAllow=.
    Entry = tuple[str, str]

CALLS = 2  # in one message of `allow_more` or `allow_only`

_DESTINATION = "org.freedesktop.systemd1"
_OBJECT = "/org/freedesktop/systemd1"

# The drop-ins that systemd writes when a property is set later, in the order in which it reads them.  runc sets a
# scope's device rules in this way, after it has made the scope.
DROP_INS = ("50-DeviceAllow.conf", "50-DevicePolicy.conf")

_POLICY = "DevicePolicy="
_ALLOW = "DeviceAllow="
_RESTRICTING = ("strict", "closed")


class ScopeUnit(NamedTuple):
    """A scope whose devices systemd restricts: its name, and what DeviceAllow= lets through."""

    name: str
    allowed: tuple[Entry, ...]


def parse(name: str, text: str) -> ScopeUnit | None:
    """The scope that these files describe; None if systemd does not restrict its devices.

    A scope that allows all devices has no entry: with a first entry, all other devices are denied (DevicePolicy=auto).
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
    """Rules as entries of DeviceAllow=.  systemd takes the numbers from such a path; no file need be there (240)."""
    folders = {"c": "char", "b": "block"}
    return tuple([(f"/dev/{folders[rule.type]}/{rule.major}:{rule.minor}", rule.access) for rule in rules])


def allow_more(serial: int, unit: str, allowed: Iterable[Entry]) -> bytes:
    """The calls that add `allowed` to the unit's DeviceAllow=; `serial` is that of the first."""
    return _set_device_allow(serial, unit, [allowed])


def allow_only(serial: int, unit: str, allowed: Iterable[Entry]) -> bytes:
    """The calls that replace the unit's DeviceAllow= with `allowed`: an empty value clears it first."""
    return _set_device_allow(serial, unit, [(), allowed])


def _set_device_allow(serial: int, unit: str, values: Iterable[Iterable[Entry]]) -> bytes:
    properties = []
    for value in values:
        items = [dbus.aligned(dbus.string(path), dbus.string(access)) for path, access in value]
        properties.append(dbus.aligned(dbus.string("DeviceAllow"), dbus.signature("a(ss)"), *dbus.structs(items)))
    # 1, runtime: until the next boot, as the unit itself.
    body = dbus.aligned(dbus.string(unit), dbus.uint32(1), *dbus.structs(properties))
    manager, peer = "org.freedesktop.systemd1.Manager", "org.freedesktop.DBus.Peer"
    call = dbus.method_call(serial, _DESTINATION, _OBJECT, manager, "SetUnitProperties", types="sba(sv)", body=body)
    # systemd answers a call before it puts the rules in force, and reads the next message after that: once it answers a
    # Ping they are in force.  On cgroup v1 it denies all devices for a moment, so no workload may run yet.
    return call + dbus.method_call(serial + 1, _DESTINATION, _OBJECT, peer, "Ping")
