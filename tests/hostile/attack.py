# SPDX-License-Identifier: Apache-2.0
"""What one attack is."""

from __future__ import annotations

from typing import Callable, NamedTuple

from tests.hostile.scene import Scene

BOTH = ("runc", "crun")
# How the hook may end: it finds the right place, or it stops the start with a sentence.
EITHER = (0, 7)
SERVES = (0,)
BAD_STATE = (3,)


class Attack(NamedTuple):
    """One attack.

    why: its CVE, or its row of what was seen; make: fills the scene in; root: the kind of image; codes: how
    our hook may end; says: what its sentence must hold; bites: the runtimes under which the naive injector is caught;
    cgroup: the host's.
    """

    name: str
    why: str
    make: Callable[[Scene], None]
    root: str = "busybox"
    codes: tuple[int, ...] = EITHER
    says: str = ""
    bites: tuple[str, ...] = BOTH
    runtimes: tuple[str, ...] = BOTH
    cgroup: str = "v2"
