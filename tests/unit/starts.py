# SPDX-License-Identifier: Apache-2.0
"""How the door starts Python: flags, environment and program, all read from the door itself."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOOR = ROOT / "hooks.d/oci-gpu-hook"
_TEXT = DOOR.read_text()

_start = re.search(
    r"exec /usr/bin/python3 (-\w+) -c '(.*?)' \"\$@\"$", _TEXT, re.DOTALL | re.MULTILINE
)
assert _start
FLAGS, PROGRAM = _start.groups()
# What of the program is the hook's own start; before it stands how it is found.
MAIN = "rooms.run()"
assert PROGRAM.endswith(f"import rooms\n{MAIN}")
_LIBRARY = "/usr/lib/oci-gpu-hook"


def environment(library: Path = ROOT) -> dict[str, str]:
    """What the door has its interpreter see of PYTHON*: test_startup holds the real door to it."""
    words = re.findall(r"\b(PYTHON\w+)=(\S+)", _TEXT.replace(_LIBRARY, str(library)))
    return dict(words)


def command(program: str, *words: str) -> list[str]:
    """The interpreter that runs this, as the door would have it run `program`."""
    return [sys.executable, FLAGS, "-c", program, *words]


def door(folder: Path, main: str = MAIN, library: Path = ROOT) -> Path:
    """A copy of the door for the interpreter that runs this, with `main` in the place of the hook's own start."""
    text = _TEXT.replace(MAIN, main.replace("'", "'\\''"))
    text = text.replace("/usr/bin/python3", sys.executable)
    text = text.replace("/etc/oci-gpu-hook.conf", str(folder / "settings.conf"))
    copy = folder / "door"
    copy.write_text(text.replace(_LIBRARY, str(library)))
    copy.chmod(0o755)
    return copy
