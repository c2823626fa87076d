# SPDX-License-Identifier: Apache-2.0
"""A row of the vocabulary of NVIDIA's stack, and the words of its answer."""

from __future__ import annotations

from typing import Callable, NamedTuple

SERVED, REFUSED = "served", "refused"


class Row(NamedTuple):
    """A row of the project's reference to that stack, by its section and name there.

    answer: SERVED; or REFUSED, where a sentence says so, or nothing can be asked for, and a comment says why.
    holds: True if the answer is as the row says.
    """

    section: str
    name: str
    answer: str
    holds: Callable[[], bool]
