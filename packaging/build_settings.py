# SPDX-License-Identifier: Apache-2.0
"""Make the settings file of an installation from the manual and the program itself: `make generated`.

    build_settings.py FOLDER

Each setting is there once, commented out, with its default, below the first sentence of oci-gpu-hook.conf(5) on it.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

from build_man import SOURCES, default, values

from oci_gpu_hook.request.settingsfile import KINDS

_HEAD = """# SPDX-License-Identifier: Apache-2.0
# All settings of oci-gpu-hook, each with its default, to copy from: nothing reads this file.  "key = value" lines stand
# in /etc/oci-gpu-hook.conf and then in /etc/oci-gpu-hook.conf.d/*.conf, by the order of the names; what comes later
# holds.  Below [namespace NAME], [image PATTERN] and [caller nvidia-container-cli] it does for these.
# A mistake stops only containers that ask for GPUs.  See oci-gpu-hook.conf(5).
"""
_SETTING = re.compile(r"\.\. setting:: (\S+)\n\n((?:    .*\n)+)")
_COLUMNS = 120


def entry(key: str, described: str) -> str:
    """One setting; described: what the manual's source says of it first."""
    plain = re.sub(r"\\ |\*\*|(?<![\w\\])\*(?=\S)|(?<=[\S])(?<!\\)\*(?!\w)", "", " ".join(described.split()))
    first = re.split(r"(?<=\.) (?=[A-Z])", plain.replace("\\", ""))[0]
    facts = f"Values: {values(key)}.{'  For the whole host.' if KINDS[key].strictest is None else ''}"
    lines = [*textwrap.wrap(first, _COLUMNS - 2, break_on_hyphens=False), facts]
    value = "" if default(key) == "empty" else f" {default(key)}"
    return "".join([f"# {line}\n" for line in lines]) + f"#{key} ={value}"


if __name__ == "__main__":
    found = _SETTING.findall((SOURCES / "oci-gpu-hook.conf.5.rst").read_text())
    (Path(sys.argv[1]) / "oci-gpu-hook.conf").write_text("\n".join([_HEAD, *[f"{entry(*it)}\n" for it in found]]))
