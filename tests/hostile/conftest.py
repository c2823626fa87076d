# SPDX-License-Identifier: Apache-2.0
"""What the attacks share: one installation, roots, and every attack of a lane played once on few nodes."""

from __future__ import annotations

import json
import pickle
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.scene import Kit
from tests.integration.conftest import _as_root, bundle, driver, installed, patterns
from tests.integration.engines import REPOSITORY, Installed, on_node

__all__ = ["_as_root", "bundle", "driver", "installed", "patterns"]

PRELOAD = """
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* Only in the hook: the container itself has lost the host's folder, and a shell that starts it is no hook. */
__attribute__((constructor)) static void planted(void) {
    const char *path = getenv("PLANTED");
    if (path) open(path, O_CREAT | O_WRONLY, 0644);
}
"""


@pytest.fixture(scope="session")
def kit(tmp_path_factory: pytest.TempPathFactory, installed: Installed, patterns: dict[str, Path]) -> Kit:
    work = tmp_path_factory.mktemp("work")
    preload = work / "preload.so"
    compile = ["cc", "-shared", "-fPIC", "-x", "c", "-o", str(preload), "-"]
    subprocess.run(compile, input=PRELOAD, text=True, check=True)
    for folder in (work, *list(work.parents)[:2]):
        folder.chmod(0o755)
    made = Kit(work, patterns, installed.hooks(), preload)
    made.file.write_bytes(pickle.dumps(tuple(made)))
    return made


def parameters(request: pytest.FixtureRequest, name: str) -> list[tuple[str, dict[str, str]]]:
    """Of each selected test that has this one: the test's name, and all its parameters."""
    found = [(item.name, getattr(item, "callspec", None)) for item in request.session.items]
    return [(test, call.params) for test, call in found if call is not None and name in call.params]


def played(module: str, kit: Kit, *words: str, before: str = ":", **how: Any) -> list[Any]:
    """What a module of this folder prints for each start on a node, whose shell runs `before` first."""
    line = [sys.executable, "-m", f"tests.hostile.{module}", f"{kit.file}", *words]
    done = on_node(f"{before}; cd {REPOSITORY}; {shlex.join(line)}", **how)
    # No assert: pytest would explain this text again for each of some hundred tests.
    if done.code:
        raise RuntimeError(done.err[-2000:])
    return [*map(json.loads, done.out.splitlines())]
