# SPDX-License-Identifier: Apache-2.0
"""Enter the container's mount namespace, and leave it again.

A tree can be attached only from the mount namespace that it is attached in (move_mount(2)).
"""

from __future__ import annotations

import posix

from oci_gpu_hook.errors import ApplyError
from oci_gpu_hook.kernel import syscalls

_HINT = "a security policy of the host may forbid setns(2)"


def enter(namespace: int) -> int:
    """Enter the mount namespace that is open at `namespace`; gives a descriptor of the one that is left."""
    home = posix.open("/proc/self/ns/mnt", posix.O_RDONLY | posix.O_CLOEXEC)
    _set(namespace, "enter")
    return home


def leave(home: int) -> None:
    """Go back to the namespace that `enter` left."""
    _set(home, "leave")


def _set(namespace: int, verb: str) -> None:
    try:
        syscalls.setns(namespace, syscalls.CLONE_NEWNS)
    except OSError as err:
        raise ApplyError(f"cannot {verb} the container's mount namespace: {err}", _HINT) from err
