#!/usr/bin/python3 -I
# SPDX-License-Identifier: Apache-2.0
"""The runtime of an engine that knows no hooks.d: it adds the node's hooks to config.json as hooks.d registers them.

It is started as ``hooked-runc`` or ``hooked-crun``, with the words of the real one, whose place it takes; as
``simulated-runc`` it adds the simulated driver's own hook alone.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

SIMULATED = "/usr/libexec/gpunode/hooks.d"
REGISTERED = "/usr/share/containers/oci/hooks.d"


def add_hooks(bundle: str, folders: list[str]) -> None:
    """Put the hooks of these folders before those that are there."""
    path = Path(bundle, "config.json")
    config = json.loads(path.read_text())
    added: dict[str, list[object]] = {}
    for file in [file for folder in folders for file in sorted(Path(folder).glob("*.json"))]:
        registered = json.loads(file.read_text())
        for stage in registered["stages"]:
            added.setdefault(stage, []).append(registered["hook"])
    hooks = config.setdefault("hooks", {})
    for stage, items in added.items():
        hooks[stage] = items + hooks.get(stage, [])
    path.write_text(json.dumps(config))


words = sys.argv[1:]
kind, _, runtime = os.path.basename(sys.argv[0]).partition("-")
if "create" in words:
    given = dict(zip(words, words[1:]))
    add_hooks(given.get("--bundle", "."), [SIMULATED, REGISTERED][: 2 if kind == "hooked" else 1])
os.execvp(runtime, [runtime, *words])
