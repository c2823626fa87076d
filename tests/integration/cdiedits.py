# SPDX-License-Identifier: Apache-2.0
"""The edits that an engine makes in a config.json by a CDI spec (CDI, SPEC.md), as CRI-O and containerd make them.

As a program on a node: ``cdiedits.py BUNDLE SPEC NAME...``.  Must not import the source tree's modules.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def inject(config: dict[str, Any], spec: dict[str, Any], *names: str) -> None:
    """Make the edits of these devices, the spec's own last; the numbers of nodes are looked up in /dev."""
    devices = [it["containerEdits"] for it in spec["devices"] if it["name"] in names]
    assert len(devices) == len(names), names
    linux = config["linux"]
    for edits in (*devices, spec["containerEdits"]):
        config["process"]["env"] += edits.get("env", [])
        for made in edits.get("deviceNodes", []):
            status = os.stat(made["path"])
            number = {"type": "c", "major": os.major(status.st_rdev), "minor": os.minor(status.st_rdev)}
            linux.setdefault("devices", []).append({"path": made["path"], "fileMode": 0o666, **number})
            linux["resources"].setdefault("devices", []).append({"allow": True, "access": "rw", **number})
        for started in edits.get("hooks", []):
            words = {key: started[key] for key in ("path", "args", "env") if key in started}
            config["hooks"].setdefault(started["hookName"], []).append(words)


if __name__ == "__main__":
    file = Path(sys.argv[1]) / "config.json"
    document = json.loads(file.read_text())
    inject(document, json.loads(Path(sys.argv[2]).read_text()), *sys.argv[3:])
    file.write_text(json.dumps(document))
