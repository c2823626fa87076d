# SPDX-License-Identifier: Apache-2.0
"""The D-Bus calls that set a scope's DeviceAllow=.  Pure: bytes.

systemd keeps the device rules that the runtime gave it with the scope.  It puts them in force again whenever a property
of the scope is set (`podman update`, `systemctl set-property`) and at every daemon-reload, and so denies devices that
were allowed without its knowledge.  A drop-in would be read at daemon-reload only.  To set the property changes what
systemd has in memory; systemd then writes a drop-in itself, and removes it with the scope.

systemd.resource-control(5), DeviceAllow= and DevicePolicy=; org.freedesktop.systemd1(5).
"""

from __future__ import annotations

from oci_gpu_hook.formats import dbus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from oci_gpu_hook.formats.devicerule import DeviceRule
    from oci_gpu_hook.formats.scopeunit import Entry

CALLS = 2  # in one message of `allow_more` or `allow_only`

_DESTINATION = "org.freedesktop.systemd1"
_OBJECT = "/org/freedesktop/systemd1"
_MANAGER = "org.freedesktop.systemd1.Manager"
_PEER = "org.freedesktop.DBus.Peer"


def entries(rules: Iterable[DeviceRule]) -> tuple[Entry, ...]:
    """Rules as entries of DeviceAllow=.  systemd takes the numbers from such a path; no file need be there (240)."""
    folders = {"c": "char", "b": "block"}
    return tuple([(f"/dev/{folders[rule.type]}/{rule.major}:{rule.minor}", rule.access) for rule in rules])


def allow_more(serial: int, unit: str, allowed: Iterable[Entry]) -> bytes:
    """The calls that add `allowed` to the unit's DeviceAllow=; `serial` is the first one's."""
    return _set_device_allow(serial, unit, [allowed])


def allow_only(serial: int, unit: str, allowed: Iterable[Entry]) -> bytes:
    """The calls that replace the unit's DeviceAllow= with `allowed`: an empty value clears it first."""
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
        serial, _DESTINATION, _OBJECT, _MANAGER, "SetUnitProperties", signature="sba(sv)", body=bytes(body.data)
    )
    # systemd answers a call before it puts the rules in force, and reads the next message after that: once it answers a
    # Ping they are in force.  On cgroup v1 it denies all devices for a moment, so no workload may run yet.
    return call + dbus.method_call(serial + 1, _DESTINATION, _OBJECT, _PEER, "Ping")
