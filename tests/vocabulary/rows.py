# SPDX-License-Identifier: Apache-2.0
"""Every row of the vocabulary of NVIDIA's stack, whether it is served or refused, and the check that shows it.

The rows follow the project's reference to that stack: its inputs, section 1, and what it injects, section 2.
"""

from __future__ import annotations

from pathlib import Path

from tests.vocabulary.injected import INJECTED
from tests.vocabulary.requests import IN_REQUEST
from tests.vocabulary.settings import IN_SETTINGS

ROWS = (*IN_REQUEST, *IN_SETTINGS, *INJECTED)
# "SECTION|NAME" of every row that there is.
LISTED = Path(__file__).with_name("rows.txt").read_text().splitlines()
