# SPDX-License-Identifier: Apache-2.0
"""Which devices a container gets that asks for any.  Pure.

Of those that have room, the ones with the fewest holders; of these, for several, those that reach each other by NVLink,
then those of one NUMA node; then the lowest numbers.  Must not know where holders are counted.
"""

from __future__ import annotations

from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Candidate(NamedTuple):
    """A device that may be chosen.

    key: see `Provision.holds`; name: by which a request asks for it; peers: keys of the devices that
    it reaches by NVLink; node: its NUMA node, -1 for none.
    """

    key: str
    name: str
    holders: int = 0
    peers: tuple[str, ...] = ()
    node: int = -1


def choose(candidates: Sequence[Candidate], count: int) -> tuple[Candidate, ...]:
    """`count` of the candidates, which are in the host's order; all of them if there are no more."""
    if count >= len(candidates):
        return tuple(candidates)
    most = sorted([it.holders for it in candidates])[count - 1]
    # With fewer holders than the last one that is needed: these are chosen whatever they are near to.
    certain = [it for it in candidates if it.holders < most]
    others = [it for it in candidates if it.holders == most]
    begun = [certain] if certain else [[it] for it in others]
    found = [_grown(chosen, others, count) for chosen in begun]
    best = max(found, key=_nearness)
    return tuple([it for it in candidates if it in best])


def _grown(chosen: list[Candidate], others: list[Candidate], count: int) -> list[Candidate]:
    """`chosen` and as many of the others as are missing, each the nearest to those before it."""
    chosen = [*chosen]
    while len(chosen) < count:
        left = [it for it in others if it not in chosen]
        # Of equal ones `max` gives the first.
        chosen.append(max(left, key=lambda it: _near(it, chosen)))
    return chosen


def _near(device: Candidate, others: Iterable[Candidate]) -> tuple[int, int]:
    """How many of the others it reaches by NVLink, and how many are of its NUMA node."""
    others = [it for it in others if it is not device]
    return sum([it.key in device.peers for it in others]), sum([it.node == device.node for it in others])


def _nearness(devices: list[Candidate]) -> tuple[int, int]:
    pairs = [_near(it, devices) for it in devices]
    return sum([links for links, _ in pairs]), sum([nodes for _, nodes in pairs])
