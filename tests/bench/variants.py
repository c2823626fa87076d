# SPDX-License-Identifier: Apache-2.0
"""What is measured in every round, as data: which hook, in which container, on what saved inventory.

Must not: start anything.
"""

from __future__ import annotations

from typing import Any, NamedTuple

NONE, TRUE, BARE, OURS, CANDIDATE = "none", "true", "bare", "ours", "candidate"
WARM, COLD, STALE = "warm", "cold", "stale"
SMALL, LARGE, BUSYBOX, NEWER = "debian", "large", "busybox", "newer"
ORDINARY = "compute,utility"

# The row that every ratio is taken to.
REFERENCE = "bare"
MEMORY_GOAL = 1.3
# The one goal that is not a ratio: what a person notices.
COMMAND_GOAL_MS = 150


class Variant(NamedTuple):
    """One row of the table.  A goal of 0 is none."""

    key: str
    title: str
    hook: str
    root: str = SMALL
    devices: str | None = None
    capabilities: str | None = None
    saved: str = WARM
    goal: float = 0.0
    # Whether the administrator counts holders, and how many others have a lease.
    counted: bool = False
    leases: int = 0
    # Whether the root's upper layer lies on a disk: an engine's does, and each file made there takes 100 us and more.
    disk: bool = False
    # Whether a CDI spec of ours gives it the devices: the engine has made the nodes.
    cdi: bool = False


def _paths(hook: str, prefix: str, name: str) -> list[Variant]:
    """The containers that a hook may meet, on a host in its usual state."""

    def path(key: str, title: str, goal: float, **what: Any) -> Variant:
        return Variant(f"{prefix}{key}", f"{name}{title}", hook, goal=goal, **what)

    one = {"devices": "0", "capabilities": ORDINARY}
    return [
        path("no-request", "no GPU asked for", 0.25),
        path("gpu-1", "1 GPU, small root", 1.7, **one),
        path("busybox", "1 GPU, root without a loader", 1.7, root=BUSYBOX, **one),
        path("large", "1 GPU, root of 1,050 libraries", 1.75, root=LARGE, **one),
        path("newer", "1 GPU, an image with newer CUDA libraries", 1.8, root=NEWER, **one),
        path("gpu-8", "8 GPUs", 1.75, devices="all", capabilities=ORDINARY),
        path("all", "1 GPU, all capabilities", 1.9, devices="0", capabilities="all"),
        path("disk", "1 GPU, upper layer on a disk", 2.3, disk=True, **one),
    ]


def variants(candidate: bool) -> list[Variant]:
    """All rows, in the table's order."""
    rows = [
        Variant("none", "no hook", NONE),
        Variant("true", "/bin/true as the hook", TRUE),
        Variant(REFERENCE, "bare interpreter, python3 -IS -c pass: P", BARE),
        *_paths(OURS, "", ""),
        Variant("cold", "1 GPU, no saved inventory", OURS, SMALL, "0", ORDINARY, COLD),
        Variant("stale", "1 GPU, stale inventory", OURS, SMALL, "0", ORDINARY, STALE),
        Variant("cdi", "1 GPU, by CDI", OURS, SMALL, "0", ORDINARY, cdi=True),
        Variant("any", "any GPU", OURS, SMALL, "any", ORDINARY, counted=True),
        Variant("leases", "any GPU, 200 leases", OURS, SMALL, "any", ORDINARY, counted=True, leases=200),
    ]
    if candidate:
        rows += [row._replace(goal=0.0) for row in _paths(CANDIDATE, "candidate-", "candidate: ")]
    return rows


def by_key(key: str) -> Variant:
    return next(row for row in variants(False) if row.key == key)
