# SPDX-License-Identifier: Apache-2.0
"""The lanes in virtual machines, which `make test` does not start, name tests that exist."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from itertools import chain

import pytest

from tests.aarch64 import rows as aarch64
from tests.memory import rows as memory
from tests.unit import starts

LANES: dict[str, Iterable[tuple[str, ...]]] = {"aarch64": aarch64.ROWS.values(), "memory": memory.ROWS.values()}


@pytest.mark.parametrize("lane", LANES)
def test_each_row_names_tests_that_exist(lane: str) -> None:
    named = [*chain.from_iterable(LANES[lane])]
    line = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *named]
    done = subprocess.run(line, capture_output=True, text=True, cwd=starts.ROOT)
    assert done.returncode == 0, done.stderr
