# SPDX-License-Identifier: Apache-2.0
"""How many examples of a property are tried.

All on the Python of `make unit`, and on each in `tests/unit-pythons.sh`; `make test` has it try a tenth on the other
Pythons: a fault of the code's own is found by the search on the first, and what another Python lacks by any example.
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

USUAL = 100
_PART = int(os.environ.get("OCI_GPU_HOOK_EXAMPLES_PART", "1"))


def examples(most: int = USUAL, **how: Any) -> settings:
    """Settings of a property that is tried with so many."""
    return settings(max_examples=max(1, most // _PART), **how)
