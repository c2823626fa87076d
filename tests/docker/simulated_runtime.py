#!/usr/bin/python3 -IS
# SPDX-License-Identifier: Apache-2.0
"""runc or crun on a simulated node: it adds the simulated driver's own hook to config.json, before all others.

Started as ``simulated-runc`` or ``simulated-crun``, with the words of the real one, whose place it takes.  A new procfs
shows no simulated driver (tests/gpunode/README.md), and Docker reads no hooks.d.
"""

from __future__ import annotations

import json
import os
import sys

HOOKS = "/usr/libexec/gpunode/hooks.d/00-gpunode-procdriver.json"


def add_hook(bundle: str) -> None:
    """What is no config.json is left to the real one."""
    path = os.path.join(bundle, "config.json")
    try:
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
    except (OSError, ValueError):
        return
    with open(HOOKS, encoding="utf-8") as file:
        registered = json.load(file)
    hooks = config.setdefault("hooks", {})
    for stage in registered["stages"]:
        hooks[stage] = [registered["hook"], *hooks.get(stage, [])]
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file)


words = sys.argv[1:]
runtime = os.path.basename(sys.argv[0]).partition("-")[2]
if "create" in words or "run" in words:
    add_hook(dict(zip(words, words[1:])).get("--bundle", "."))
os.execvp(runtime, [runtime, *words])
