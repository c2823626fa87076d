# SPDX-License-Identifier: Apache-2.0
"""Nodes of mode 0660: a container's user opens those that the container got, and none opens more than on the host."""

from __future__ import annotations

import pytest

from tests.integration.conftest import Maker
from tests.integration.engines import Bundle, Installed, in_turn, start
from tests.integration.inside import node

# Of the host's group 44.  The nodes of the simulated driver give ENXIO to those who may open them.
NARROW = "chgrp 44 /dev/nvidia*[0-9l]; chmod 0660 /dev/nvidia*[0-9l]\n"
GPU = node(0)
LOOK = f"(exec 3<>{GPU}) 2>&1; stat -c '%a %g' {GPU}"
OPENED = "No such device or address"


def as_user(made: Bundle, uid: int, gid: int, *groups: int) -> Bundle:
    made.config["process"]["user"] = {"uid": uid, "gid": gid, "additionalGids": list(groups)}
    # As engines do for another user than root: no capability is left to it.
    made.config["process"]["capabilities"] = {}
    return made.asks("0", "utility").runs("/bin/sh", "-c", f"{LOOK} || :")


# Who the container's process is, and mode and group of the node.
USERS = {
    "a user": ((1000, 1000), "660 1000"),
    "a user in the group": ((1000, 1000, 44), "660 44"),
    "a user of root's group": ((1000, 0), "660 0"),
    "root without capabilities": ((0, 0), "660 44"),
}


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_a_containers_user_opens_its_devices(installed: Installed, bundle: Maker, runtime: str) -> None:
    scripts = {}
    for name, (ids, _) in USERS.items():
        scripts[name] = f"{start(runtime, as_user(bundle('busybox'), *ids))} 2>&1"
    found = in_turn(installed, scripts, NARROW)
    for name, (_, made) in USERS.items():
        opened, *rest = [line for line in found[name] if not line.startswith("time=")]
        assert OPENED in opened and rest == [made], (name, found[name])
