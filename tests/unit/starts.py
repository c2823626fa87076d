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


AMD = '{"activation_flag": "OCI_AMD", "inventory": {}}'


class Script:
    """A script of hooks.d in a folder of its own, with settings, a vendor's file, a bundle and an interpreter there."""

    def __init__(self, folder: Path, name: str, interpreter: str) -> None:
        self.folder, self.bundle, self.settings = folder, folder / "bundle", folder / "settings.conf"
        self.bundle.mkdir()
        self.write("vendors/amd.json", AMD)
        text = script(name)
        for path, ours in (
            ("/usr/bin/python3", self.write("bin/python", interpreter)),
            ("/{etc,usr/local/share,usr/share}/oci-gpu-hook/vendors", str(folder / "vendors")),
            ("/etc/oci-gpu-hook.conf", str(self.settings)),
        ):
            assert path in text
            text = text.replace(path, ours)
        self.program = Path(self.write(f"bin/{name}", text))

    def write(self, name: str, text: str) -> str:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return str(path)
