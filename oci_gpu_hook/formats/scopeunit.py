# SPDX-License-Identifier: Apache-2.0
"""Parse a systemd scope's transient unit file and its drop-ins.  Pure.

systemd.resource-control(5), DeviceAllow= and DevicePolicy=.
"""

from __future__ import annotations

from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    # Path or pattern, and access: one entry of DeviceAllow=.
    Entry = tuple[str, str]

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
    """The scope that these files describe; None where systemd does not restrict its devices.

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
