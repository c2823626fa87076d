# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.fuzz SECONDS [TARGET ...]``: each target for its share of the time; what it finds, smallest first.

Prints how many examples each target had.  The exit status is 1 where one was found that breaks its rule: it belongs
into the unit tests, as a case of its own.
"""

from __future__ import annotations

import gc
import resource
import sys
import time
import traceback
from typing import Any

from hypothesis import HealthCheck, given, settings

from tests.fuzz import commands, targets
from tests.fuzz.targets import check
from tests.unit.bounded import TooManySteps

# Far above what any example may take: only one that would take all of the machine's memory ends here.
_ADDRESS_SPACE = 4 << 30
_BATCH = 200
TARGETS = {**targets.TARGETS, **commands.COMMANDS}


def fuzz(name: str, seconds: float) -> tuple[int, str]:
    """How many examples there were, and what was found, "" for nothing."""
    count = 0

    @settings(max_examples=_BATCH, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(TARGETS[name].values)
    def run(value: Any) -> None:
        nonlocal count
        count += 1
        try:
            check(TARGETS[name], value)
        except TooManySteps:
            raise AssertionError("too many steps") from None

    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            run()
        except Exception:
            return count, traceback.format_exc()
        # What examples leave in cycles grows old before Python looks for it: 40 MB a second.
        gc.collect()
    return count, ""


def main(words: list[str]) -> int:
    seconds, names = float(words[0]), words[1:] or list(TARGETS)
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    found = 0
    for name in names:
        count, why = fuzz(name, seconds / len(names))
        print(f"{name:16} {count:8} examples  {'FOUND' if why else 'nothing found'}", flush=True)
        if why:
            found += 1
            print(why[-6_000:], flush=True)
    return int(found > 0)


sys.exit(main(sys.argv[1:]))
