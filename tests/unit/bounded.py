# SPDX-License-Identifier: Apache-2.0
"""How much memory something takes at most, by what Python itself allots and no look at the machine.

What a single call into C takes beside Python's objects is not seen.
"""

from __future__ import annotations

import gc
import tracemalloc
from typing import Callable

MIB = 1 << 20
# What a start may take beyond the interpreter and its own modules; a part of it must not take all.
MOST = 64 * MIB


def peak(act: Callable[[], object]) -> int:
    """The bytes that `act` holds at its worst moment, beyond what was there before."""
    # When the collector runs depends on `act` alone, and it does not look at all that a session has beside.
    gc.freeze()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        act()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
        gc.unfreeze()
