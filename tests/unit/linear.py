# SPDX-License-Identifier: Apache-2.0
"""Whether something takes time in proportion to its input: one ratio, of the same process, and no absolute time.

Processor time, and the least of some rounds: what else the machine does adds to both sides or to neither.
"""

from __future__ import annotations

import gc
import time
from typing import Callable

# Ten times the input takes ten times as long where time is linear, and a hundred times where it is quadratic.
_FACTOR = 10
_MOST = 40
_ROUNDS = 5


def is_linear(act: Callable[[int], object], entries: int = 1_000) -> bool:
    """Whether `act` of ten times the entries takes about ten times as long; `act` makes its own input."""
    return _least(act, entries * _FACTOR) <= _MOST * _least(act, entries)


def _least(act: Callable[[int], object], entries: int) -> float:
    found = []
    # To collect takes longer than most acts: it is kept out of them, not done before each.
    gc.disable()
    try:
        for _ in range(_ROUNDS):
            begin = time.process_time()
            act(entries)
            found.append(time.process_time() - begin)
    finally:
        gc.enable()
    return max(min(found), 1e-6)
