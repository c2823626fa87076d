# SPDX-License-Identifier: Apache-2.0
"""What a user wins by a set-user-ID starter that calls nvidia-container-cli as the host's root: nothing.

HOSTILE_LOAD says how often a call is stopped; a fifth of it, 200 by hand.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile.scene import Kit
from tests.integration.conftest import Maker
from tests.integration.engines import REPOSITORY, Installed, in_turn, on_node

USER = 64_123
TRIES = max(10, int(os.environ.get("HOSTILE_LOAD", "100")) // 5)
LINE = "/run/w/starter {mode} {root} /run/w/session --device=0 --compute --utility"
AS_USER = f"setpriv --reuid {USER} --regid {USER} --clear-groups"
BEFORE = """
ln -sf ../libexec/oci/hooks.d/oci-gpu-hook /usr/bin/nvidia-container-cli
oci-gpu-hook inventory refresh >/dev/null
mkdir -p /run/w/session && cp {starter} /run/w/starter && chmod 4755 /run/w/starter
for name in own shared; do
    cp -a {root} /run/w/$name
    for folder in dev proc sys tmp run; do mkdir -p /run/w/$name/$folder; done
done
chown -R {user}:{user} /run/w/own
"""
# What is left on the disk, and whether the user can open a node there.
LEFT = f"""
(cd {{root}} && find . -printf '%p %m %U %y %l\\n' | sort) | diff /run/before - && echo as before || :
for node in $(find {{root}} -type c); do {AS_USER} sh -c "true <$node" 2>&1 | sed 's/^/opened: /'; done
"""


@pytest.fixture(scope="module")
def starter(kit: Kit) -> Path:
    """The set-user-ID program."""
    found = kit.work / "starter"
    source = Path(__file__).with_name("starter.c")
    subprocess.run(["cc", "-O1", "-Wall", "-Werror", "-o", str(found), str(source)], check=True)
    return found


def before(kit: Kit, starter: Path) -> str:
    return BEFORE.format(starter=starter, root=kit.patterns["debian"], user=USER)


# A user's own folder, a folder of root's that the user may not write, and either below a filesystem of the call's own.
ROOTS = [(mode, root) for mode in ("bind", "readonly", "overlay") for root in ("own", "shared")]


@pytest.fixture(scope="module")
def seen(installed: Installed, kit: Kit, starter: Path) -> dict[str, list[str]]:
    scripts = {}
    for mode, name in ROOTS:
        root = f"/run/w/{name}"
        line = f"{AS_USER} {LINE.format(mode=mode, root=root)} 2>&1 || :"
        listing = f"(cd {root} && find . -printf '%p %m %U %y %l\\n' | sort) >/run/before"
        scripts[f"{mode} {name}"] = f"{listing}\n{line}\n{LEFT.format(root=root)}"
    return in_turn(installed, scripts, before(kit, starter), description="h100x8", cgroup="v1", booted=True)


@pytest.mark.parametrize(("mode", "root"), ROOTS)
def test_nothing_is_left_in_what_outlives_the_call(seen: dict[str, list[str]], mode: str, root: str) -> None:
    """No node, no file, no mount point: neither in the user's own folder nor in one that the user may not write."""
    lines = seen[f"{mode} {root}"]
    assert "as before" in lines, lines
    assert not any(line.startswith("opened: ") for line in lines), lines
    if mode == "overlay":
        assert "cuInit 0, 1 devices" in lines, lines
    else:
        assert "code 7" in lines and any("lies in a root of the host's" in line for line in lines), lines


def test_a_call_that_is_stopped_holds_no_start_of_the_node_up(
    installed: Installed, kit: Kit, starter: Path, bundle: Maker
) -> None:
    made = bundle("debian").asks("1").runs("/bin/sh", "-c", "echo started")
    line = f"{sys.executable} -m tests.hostile.stopping /run/w/starter /run/w/own {made.path} {TRIES}"
    script = f"{before(kit, starter)}\ncd {REPOSITORY}; {line}"
    out = on_node(installed, script, cgroup="v2", settings="gpu-holders = 1\n", booted=True).printed()
    found = json.loads(out.splitlines()[-1])
    print(found)
    assert found["wrong"] == []
    assert (found["tries"], found["locked"]) == (TRIES, 0)
    assert found["stopped"] > TRIES // 3
