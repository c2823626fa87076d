# SPDX-License-Identifier: Apache-2.0
"""How much memory something takes at most, and whether its work is in proportion to its input.

By what Python itself allots, and by steps: no look at the machine, and no clock.  What a single call into C takes
beside Python's objects is not seen.
"""

from __future__ import annotations

import dis
import gc
import sys
import tracemalloc
from types import CodeType, FrameType
from typing import Any, Callable

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


# A step is a line that is executed, each round of a comprehension included; and, for work that is done within one line,
# each byte or item of a large object that a variable is newly bound to, or that `in` searches.

# Ten times the input takes ten times the steps where the work is linear, and a hundred times where it is quadratic.
_FACTOR = 10
_MAX = 15
_LARGE = 64
_SEARCHED = (bytes, bytearray, str, list, tuple)


class TooManySteps(BaseException):
    """It was stopped; nothing that is tested may take it for an error of its own."""


class _Counter:
    """Counts steps as a trace function, and stops what it traces at `most`."""

    def __init__(self, most: float) -> None:
        self.steps, self.most = 0, most
        # Kept, so that no other object gets its address.
        self.seen: dict[int, object] = {}

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "call":
            frame.f_trace_opcodes = bool(_searches_of(frame.f_code))
            return self.trace
        if event == "opcode":
            name = _searches_of(frame.f_code).get(frame.f_lasti)
            searched = frame.f_locals.get(name) if name else None
            if isinstance(searched, _SEARCHED):
                self.steps += len(searched)
        else:
            self.steps += 1
            for value in frame.f_locals.values():
                if isinstance(value, _SEARCHED) and len(value) > _LARGE and id(value) not in self.seen:
                    self.seen[id(value)] = value
                    self.steps += len(value)
        if self.steps > self.most:
            raise TooManySteps
        return self.trace


# By the code's address, which a hash of it would take long to find: it is kept, so that no other code gets that.
_KNOWN: dict[int, tuple[CodeType, dict[int, str]]] = {}


def _searches_of(code: CodeType) -> dict[int, str]:
    """At which instructions `in` searches a local variable, and which."""
    if id(code) in _KNOWN:
        return _KNOWN[id(code)][1]
    found: dict[int, str] = {}
    name = ""
    for instruction in dis.get_instructions(code):
        if instruction.opname == "CONTAINS_OP" and name:
            found[instruction.offset] = name
        loaded = instruction.argval if instruction.opname.startswith("LOAD_") else ""
        # Python 3.13 loads two variables at once.
        name = str(loaded[-1] if isinstance(loaded, tuple) and loaded else loaded)
    _KNOWN[id(code)] = code, found
    return found


def steps(act: Callable[[], object], most: float = float("inf")) -> int:
    """How many steps `act` takes; TooManySteps where there are more than `most`."""
    counter = _Counter(most)
    before = sys.gettrace()
    sys.settrace(counter.trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return counter.steps


def is_linear(act: Callable[[int], object], entries: int = 100) -> bool:
    """Whether `act` of ten times the entries takes about ten times the steps; `act` makes its own input."""
    # Twice: Python 3.12 and later report no instructions of the first frame in which they are asked for.
    few = max([steps(lambda: act(entries)) for _ in range(2)])
    try:
        steps(lambda: act(entries * _FACTOR), _MAX * few)
    except TooManySteps:
        return False
    return True
