# SPDX-License-Identifier: Apache-2.0
"""A container on a node whose saved inventory lies, and what becomes of the file.

The lie is another minor for GPU 0: whoever believes it gives the container another's GPU.  Must not import the source
tree's modules.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from tests.integration import inside
from tests.integration.engines import Bundle, Installed

FOLDER = "/run/oci-gpu-hook"
FILE = f"{FOLDER}/inventory"
# Behind ls: what is there beside the answers that starts have kept; one that was left unfinished shows.
NO_ANSWERS = "| grep -v '^answer[.][0-9a-f]*$' || true"
REFRESH = "oci-gpu-hook inventory refresh >/dev/null\n"
# Of h100x8: the first GPU by address has minor 2, the second 0; the lie says 7.
TRUE, SECOND, LIE = "/dev/nvidia2", "/dev/nvidia0", "/dev/nvidia7"
# By the bytes of the file: a number is an "i" and four of them, a string a "u", its length and itself.
HAS_LIED = f"LC_ALL=C grep -aqP '00000000:1b:00\\.0i\\x07\\0' {FILE}"
ASKED_NVML = f"LC_ALL=C grep -aqP 'u\\x03\\0\\0\\0009\\.0u' {FILE}"
LIES = f"""LC_ALL=C sed -i 's/\\(00000000:1b:00\\.0i\\)\\x02/\\1\\x07/' {FILE}
{HAS_LIED}
"""


class After(NamedTuple):
    """What lies there when the container has ended: names, ``stat`` of the file, whether it is true again."""

    names: list[str]
    file: str
    true: bool


def started(
    installed: Installed, made: Bundle, spoil: str, **node: Any
) -> tuple[inside.Seen, After]:
    """A container on a node whose saved inventory was true, then lied, and then was spoiled."""
    after = made.path / "after"
    look = f"""
{{ ls -A {FOLDER}/ {NO_ANSWERS}; }} >{after}.names
stat -c '%F %a %u:%g' {FILE} >{after}.file || true
if oci-gpu-hook inventory show >/dev/null 2>&1 && ! {HAS_LIED}
then echo true; fi >{after}.true
"""
    before = f"{REFRESH}{LIES}{spoil}\nafterwards() {{ {look} }}\ntrap afterwards EXIT"
    seen = inside.look(installed, made, refresh=False, before=before, **node)
    texts = [Path(f"{after}.{name}").read_text().split("\n") for name in ("names", "file", "true")]
    names, (file, *_), (true, *_) = texts
    return seen, After([name for name in names if name], file, true == "true")


def has_gpu(seen: inside.Seen, *nodes: str) -> None:
    seen.has_exactly(*inside.COMPUTE, *nodes)


REBUILT = After(["inventory"], "regular file 644 0:0", True)
