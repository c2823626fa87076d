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
    r"exec /usr/bin/python3 (-\w+) -c '(.*?)' \"\$\{words\[@\]\}\" \"\$PYTHONPATH\"$",
    _TEXT,
    re.DOTALL | re.MULTILINE,
)
_exported = re.search(r"^ +export (PYTHON.*)$", _TEXT, re.MULTILINE)
assert _start and _exported
FLAGS, PROGRAM = _start.groups()
# What of the program is the hook's own start; before it stands how it is found.
MAIN = "from oci_gpu_hook.__main__ import main\nsys.exit(main())"
assert PROGRAM.endswith(MAIN)


def environment(library: Path = ROOT) -> dict[str, str]:
    """What the door has its interpreter see of PYTHON*: test_startup holds the real door to it."""
    words = _exported[1].replace("$library", str(library)).split() if _exported else []
    return dict(word.split("=", 1) for word in words)


def startup(library: Path = ROOT) -> str:
    """The last word that the door gives its program."""
    return environment(library)["PYTHONPATH"]


def command(program: str, *words: str) -> list[str]:
    """The interpreter that runs this, as the door would have it run `program`."""
    return [sys.executable, FLAGS, "-c", program, *words]


def door(folder: Path, main: str = MAIN, library: Path = ROOT) -> Path:
    """A copy of the door for the interpreter that runs this, with `main` in the place of the hook's own start."""
    text = _TEXT.replace(MAIN, main.replace("'", "'\\''"))
    text = text.replace("/usr/bin/python3", sys.executable)
    text = text.replace("/etc/oci-gpu-hook.conf", str(folder / "settings.conf"))
    copy = folder / "door"
    copy.write_text(text.replace("/usr/lib/oci-gpu-hook", str(library)))
    copy.chmod(0o755)
    return copy
