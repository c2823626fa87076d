# SPDX-License-Identifier: Apache-2.0
"""A row for each test, which shows what its name says.

Must not run anything.
"""

from __future__ import annotations

import re
from pathlib import Path

# One after the other: a driver is the whole machine's.
WORKERS = 0

_FILE = "test_limits.py"
_TESTS = re.findall(r"^def (test_\w+)", Path(__file__).with_name(_FILE).read_text(), re.MULTILINE)
ROWS = {test[len("test_") :].replace("_", " "): (f"tests/memory/{_FILE}::{test}",) for test in _TESTS}
