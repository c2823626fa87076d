# SPDX-License-Identifier: Apache-2.0
"""All attacks, by family."""

from __future__ import annotations

from tests.hostile import inputs, links, races, sources, volumes
from tests.hostile.attack import Attack

FAMILIES: dict[str, list[Attack]] = {
    "links": links.ATTACKS,
    "volumes": volumes.ATTACKS,
    "sources": sources.ATTACKS,
    "inputs": inputs.ATTACKS,
    "races": races.ATTACKS,
}
# A race is lost by chance: so often a container is started, the naive one's until it is caught.
STARTS = {attack.name: 4 for attack in FAMILIES["races"]}
BY_NAME = {attack.name.replace("/", "-"): attack for it in FAMILIES.values() for attack in it}
