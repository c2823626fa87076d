# SPDX-License-Identifier: Apache-2.0
"""The blocks of the manual that people paste, as they stand there.

Must not know what a block is for: its test does.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

PAGE = Path(__file__).parents[1] / "packaging/man/oci-gpu-hook.8.rst"


def blocks(section: str) -> list[str]:
    """The literal blocks of a section, or of a part of one, in their order."""
    text = re.split(r"\n(?=.+\n(?:=+|-+)\n)", PAGE.read_text())
    (found,) = [part for part in text if part.startswith(f"{section}\n")]
    return [textwrap.dedent(it).strip("\n") + "\n" for it in re.findall(r"::\n\n((?:    .*\n|\n)+)", found)]
