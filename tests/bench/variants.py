# SPDX-License-Identifier: Apache-2.0
"""What is measured in every round, as data: which hook, in which container, on what saved inventory."""

from __future__ import annotations

from typing import Any, NamedTuple

# KNOWN: ours, by the start program, for those who know that the container asks.
NONE, TRUE, BARE, OURS, KNOWN = "none", "true", "bare", "ours", "known"
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
    hook: str = OURS
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


ONE: dict[str, Any] = {"devices": "0", "capabilities": ORDINARY}
# All rows, in the table's order.
VARIANTS: tuple[Variant, ...] = (
    Variant("none", "no hook", NONE),
    Variant("true", "/bin/true as the hook", TRUE),
    Variant(REFERENCE, "bare interpreter, python3 -IS -c pass: P", BARE),
    Variant("no-request", "no GPU asked for", goal=0.25),
    Variant("gpu-1", "1 GPU, small root", goal=1.7, **ONE),
    Variant("busybox", "1 GPU, root without a loader", root=BUSYBOX, goal=1.7, **ONE),
    Variant("large", "1 GPU, root of 1,050 libraries", root=LARGE, goal=1.75, **ONE),
    Variant("newer", "1 GPU, an image with newer CUDA libraries", root=NEWER, goal=1.8, **ONE),
    Variant("gpu-8", "8 GPUs", devices="all", capabilities=ORDINARY, goal=1.75),
    Variant("all", "1 GPU, all capabilities", devices="0", capabilities="all", goal=1.9),
    Variant("disk", "1 GPU, upper layer on a disk", disk=True, goal=2.3, **ONE),
    Variant("cold", "1 GPU, no saved inventory", saved=COLD, **ONE),
    Variant("stale", "1 GPU, stale inventory", saved=STALE, **ONE),
    Variant("cdi", "1 GPU, by CDI", cdi=True, **ONE),
    Variant("any", "any GPU", devices="any", capabilities=ORDINARY, counted=True),
    Variant("leases", "any GPU, 200 leases", devices="any", capabilities=ORDINARY, counted=True, leases=200),
)
_KNOWN = [row for row in VARIANTS if row.key in ("gpu-1", "large", "gpu-8", "all", "disk")]
VARIANTS += tuple([row._replace(key=f"known-{row.key}", title=f"known: {row.title}", hook=KNOWN) for row in _KNOWN])


def by_key(key: str) -> Variant:
    return next(row for row in VARIANTS if row.key == key)
