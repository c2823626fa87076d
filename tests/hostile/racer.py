# SPDX-License-Identifier: Apache-2.0
"""Exchanges two names in a tight loop until it is told to end, and prints how often: an even number.

racer.py ONE OTHER [FLAG]                            FLAG: only while that file is there; FLAG.idle says that it rests
"""

from __future__ import annotations

import os
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from tests.hostile import linux

PAIRS = 50


def rest(flag: str, ended: list[int]) -> None:
    open(f"{flag}.idle", "w").close()
    while not os.path.exists(flag) and not ended:
        time.sleep(0.001)
    os.unlink(f"{flag}.idle")


def main() -> None:
    one, other, *flags = sys.argv[1:]
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: ended.append(number))
    count = 0
    os.write(2, b"ready\n")
    while not ended:
        if flags and not os.path.exists(flags[0]):
            rest(flags[0], ended)
        for _ in range(PAIRS):
            linux.exchange(one, other)
            linux.exchange(one, other)
        count += 2 * PAIRS
    print(count)


if __name__ == "__main__":
    main()
