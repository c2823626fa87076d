# SPDX-License-Identifier: Apache-2.0
"""The scripts of hooks.d as they are installed, and how the entry script starts Python, read from the script itself."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def script(name: str) -> str:
    """The text of a script of hooks.d as packaging/install.sh makes it for /usr and /usr/bin/python3."""
    _, _, asking = (ROOT / "hooks.d/asking.bash").read_text().partition("\n\n")
    shared = re.compile(r"^ *# shellcheck source=.*\n *source .*\n", re.MULTILINE)
    text, count = shared.subn(lambda _: asking, (ROOT / "hooks.d" / name).read_text())
    assert count == 1
    return text


# The hook as oci-gpu-runtime adds it.
_added = re.search(r"^hook='(.*)'$", script("oci-gpu-runtime"), re.MULTILINE)
assert _added
ADDED = _added[1]

_TEXT = script("oci-gpu-hook")

_start = re.search(r"exec /usr/bin/python3 (-\w+ -X utf8) -c '(.*?)' \"\$@\"$", _TEXT, re.DOTALL | re.MULTILINE)
assert _start
FLAGS, PROGRAM = _start[1].split(), _start[2]
# The program's last line starts the hook; the lines before it find it.
MAIN = "linked.run()"
assert PROGRAM.endswith(f"import linked\n{MAIN}")
_LIBRARY = "/usr/lib/oci-gpu-hook"


def command(main: str, *words: str, library: Path = ROOT) -> list[str]:
    """The interpreter that runs this, as the entry script starts it, but for `main` and the package below `library`."""
    return [sys.executable, *FLAGS, "-c", PROGRAM.replace(MAIN, main).replace(_LIBRARY, str(library)), *words]


def entry(folder: Path, main: str = MAIN, library: Path = ROOT) -> Path:
    """A copy of the entry script, for the interpreter that runs this."""
    text = _TEXT.replace(MAIN, main.replace("'", "'\\''"))
    text = text.replace("/usr/bin/python3", sys.executable)
    text = text.replace("/etc/oci-gpu-hook.conf", str(folder / "settings.conf"))
    copy = folder / "entry"
    copy.write_text(text.replace(_LIBRARY, str(library)))
    copy.chmod(0o755)
    return copy
