# SPDX-License-Identifier: Apache-2.0
"""Whether any user of this host has containers of his own, by what rootless engines leave behind.

Only users of /etc/passwd are looked at: homes that a directory service names may be mounted by a look at them.  Reads
only.  Never on the hook's path.
"""

from __future__ import annotations

from oci_gpu_hook.host.root import HostRoot

# Of a session, below /run/user/UID; of a user, below his home.
_SESSIONS = ("libpod", "containers", "crun", "runc", "docker", "docker.sock", "containerd-rootless")
_HOMES = (".local/share/containers/storage", ".local/share/docker", ".local/share/nerdctl")
_FIRST_USER = 1000
_HOME, _FIELDS = 5, 7


def is_used(root: HostRoot) -> bool:
    """Whether a user has containers of his own, or has had them."""
    sessions = [f"/run/user/{uid}" for uid in root.names("/run/user") if uid != "0"]
    if any([name in _SESSIONS for folder in sessions for name in root.names(folder)]):
        return True
    return any([root.stat(f"{home}/{part}") for home in _homes(root) for part in _HOMES])


def _homes(root: HostRoot) -> list[str]:
    text = (root.read("/etc/passwd") or b"").decode("utf-8", "replace")
    rows = [line.split(":") for line in text.splitlines()]
    users = [row for row in rows if len(row) == _FIELDS and row[2].isdecimal()]
    return [row[_HOME] for row in users if int(row[2]) >= _FIRST_USER]
