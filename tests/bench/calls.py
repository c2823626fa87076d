# SPDX-License-Identifier: Apache-2.0
"""System calls of the hook on each path, children included, counted from what strace writes inside a real start.

Must not: take any time, for strace slows all of them down.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterable
from typing import Any

from tests.bench.rounds import Node, start
from tests.bench.stage import Hook, Kit, Scene, hook_of
from tests.bench.variants import WARM, by_key

PATHS = ("bare", "no-request", "gpu-1", "gpu-8")

_CALL = re.compile(r"^(?:\[pid +\d+\] |\d+ +)?(\w+)\(")
_PATH = re.compile(r'"((?:[^"\\]|\\.)*)"')
_FAILED = re.compile(r"\) += -1 E")
_OPENS = {"open", "openat", "openat2", "open_tree"}
_FORKS = {"fork", "vfork", "clone", "clone3"}


def count(lines: Iterable[str]) -> dict[str, Any]:
    """The figures of one trace.  A call that strace shows in two parts counts where it began.  Pure."""
    names: Counter[str] = Counter()
    files = []
    for line in lines:
        call, path = _CALL.match(line), _PATH.search(line)
        if call:
            names[call[1]] += 1
            if call[1] in _OPENS and path and not _FAILED.search(line):
                files.append(path[1])
    return {
        "calls": sum(names.values()),
        "processes": sum(names[name] for name in _FORKS),
        "programs": names["execve"] + names["execveat"],
        "files": files,
        "names": names.most_common(),
    }


def play(kit: Kit) -> dict[str, Any]:
    strace = shutil.which("strace")
    assert strace is not None, "the bench counts system calls with strace"
    state = Node()
    found = {}
    for key in PATHS:
        state.make(WARM)
        trace = kit.scratch / f"{key}.strace"
        variant = by_key(key)
        hook = hook_of(kit, variant.hook)
        assert hook is not None
        words = ["strace", "-f", "-qq", "-s", "256", "-o", str(trace), "-a", "1"]
        # strace starts a program by its path; a hook's own first word is its name, which no hook may depend on.
        scene = Scene(kit, variant, f"strace-{key}", Hook(strace, [*words, hook.program, *hook.words[1:]]))
        sample = start(scene)
        scene.remove()
        if sample.said:
            raise RuntimeError(f"{variant.title} under strace: {sample.said}")
        found[key] = {"title": variant.title, **count(trace.read_text(errors="replace").splitlines())}
    return found
