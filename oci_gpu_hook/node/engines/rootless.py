# SPDX-License-Identifier: Apache-2.0
"""Whether any user of this host has containers of his own, by what rootless engines leave behind.

Only users of /etc/passwd are looked at, and of their homes only those on filesystems that answer by themselves: a look
at others may mount them, or wait for a server.  Reads only.
"""

from __future__ import annotations

from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.machine import untrusted

# Of a session, below /run/user/UID; of a user, below his home.
_SESSIONS = ("libpod", "containers", "crun", "runc", "docker", "docker.sock", "containerd-rootless")
_HOMES = (".local/share/containers/storage", ".local/share/docker", ".local/share/nerdctl")
_FIRST_USER = 1000
_HOME, _FIELDS = 5, 7


def is_used(root: HostRoot) -> bool:
    """Whether a user has containers of his own, or has had them."""
    mounts = untrusted.our_mounts()
    for name in root.names("/run/user"):
        if name.isdecimal() and int(name):
            names = untrusted.users_names(root, f"/run/user/{name}", int(name), mounts)
            if not set(_SESSIONS).isdisjoint(names):
                return True
    places = [(f"{home}/{part}", uid) for uid, home in homes(root).items() for part in _HOMES]
    return any([untrusted.is_users(root, path, uid, mounts) for path, uid in places])


def homes(root: HostRoot) -> dict[int, str]:
    """The homes of /etc/passwd's users, by the user's number."""
    text = (root.read("/etc/passwd") or b"").decode("utf-8", "replace")
    rows = [line.split(":") for line in text.splitlines()]
    users = [row for row in rows if len(row) == _FIELDS and row[2].isdecimal()]
    return {int(row[2]): row[_HOME] for row in users if int(row[2]) >= _FIRST_USER}
