# SPDX-License-Identifier: Apache-2.0
"""What each capability brings of a driver, and what that loads and the capability does not bring.

    python3 closure.py INVENTORY

INVENTORY: what ``oci-gpu-hook info --saved --json`` says on the node where this runs.  A library loads what
its dynamic section needs, and may open each library of the driver whose name stands in it.
"""

from __future__ import annotations

import json
import mmap
import re
import subprocess
import sys
from typing import Any

CAPABILITIES = ("utility", "compute", "video", "graphics", "display", "ngx")
NAME = re.compile(rb"lib[A-Za-z0-9_-]+(?=[.]so)")


def loaded_by(path: str, drivers: set[str]) -> dict[str, str]:
    """The driver's libraries that the file loads, each with how."""
    said = subprocess.run(["readelf", "-d", path], check=True, capture_output=True, text=True).stdout
    needed = {it.partition(".so")[0] for it in re.findall(r"\(NEEDED\).*\[(.*)\]", said)}
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        named = {it.decode() for it in NAME.findall(data)}
    return {it: "needs" if it in needed else "opens" for it in sorted((needed | named) & drivers)}


def main(found: dict[str, Any]) -> None:
    """Prints the table: what each capability brings; then what it does not, and which of its libraries load that."""
    paths: dict[str, str] = {}
    brought_by: dict[str, set[str]] = {}
    for it in found["libraries"]:
        if it["bits"] == 64:
            name = it["file"].partition(".so")[0]
            paths[name] = it["path"]
            brought_by.setdefault(name, set()).update(it["capabilities"])
    loads = {name: loaded_by(path, {*paths} - {name}) for name, path in paths.items()}
    for capability in CAPABILITIES:
        brought = sorted([name for name, its in brought_by.items() if capability in its])
        print(f"{capability}: {' '.join(brought)}")
        lacks: dict[tuple[str, str], list[str]] = {}
        for name in brought:
            for other, how in loads[name].items():
                if other not in brought:
                    lacks.setdefault((other, how), []).append(name)
        for (other, how), names in sorted(lacks.items()):
            print(f"  without {other}, which {' '.join(names)} {how}")


if __name__ == "__main__":
    with open(sys.argv[1]) as listing:
        main(json.load(listing))
