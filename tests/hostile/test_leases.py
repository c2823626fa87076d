# SPDX-License-Identifier: Apache-2.0
"""Many starts at a time; and leases under load, under faults, and under users who want what is not theirs.

HOSTILE_LOAD says how many starts; 100 unless told, 1000 by hand.
"""

from __future__ import annotations

import json
import os
import re
import sys

from tests.hostile.conftest import played
from tests.hostile.load import NEW, OLD
from tests.hostile.scene import Kit
from tests.integration.conftest import Maker
from tests.integration.engines import REPOSITORY, in_turn, on_node, start

STARTS = int(os.environ.get("HOSTILE_LOAD", "100"))
AT_ONCE = 16
ONE = "gpu-holders = 1\n"


def test_many_starts_while_the_driver_is_upgraded(kit: Kit) -> None:
    """Each is whole and right, or says why; killed ones and all others leave nothing."""
    *rows, end = played("load", kit, f"{STARTS}", f"{AT_ONCE}", timeout=1800)
    assert end["left"] == []
    assert len(rows) == STARTS
    whole = [row for row in rows if row["whole"]]
    # One release's libraries, and all of them.
    releases = {version: set() for version in (OLD, NEW)}  # type: dict[str, set[tuple[str, ...]]]
    for row in whole:
        (version,) = {OLD, NEW} & {text[-9:] for text in row["libraries"]}
        releases[version].add(tuple(row["libraries"]))
        assert not row["left"], row
    assert [len(kinds) for kinds in releases.values()] == [1, 1], releases
    stopped = [row for row in rows if not row["whole"] and not row["killed"]]
    for row in stopped:
        # 7 where a file of the old driver went after it was cloned: a mount of what is gone attaches to nothing.
        assert re.search(r"exit status [67], .*oci-gpu-hook: .+", row["err"], re.DOTALL), row
        assert "Traceback" not in row["err"] and not row["left"], row
    killed = sum(row["killed"] for row in rows)
    print(f"{len(whole)} of {len(rows)} starts whole, {killed} killed, {len(stopped)} said why")
    assert len(whole) >= len(rows) * 8 // 10


def test_no_gpu_ever_has_two_holders_and_none_stays_taken(kit: Kit) -> None:
    """Eight GPUs, sixteen who want one, under runc and crun by turns; then eight get theirs, one each."""
    line = f"{sys.executable} -m tests.hostile.rush {kit.file}"
    both = f"cd {REPOSITORY}; {line} {STARTS} {AT_ONCE} runc crun; {line} 8 8 runc"
    out = on_node(both, cgroup="v1", settings=ONE, timeout=1800).printed()
    rows = [json.loads(row) for row in out.splitlines()]
    ends = [row for row in rows if "twice" in row]
    assert [end["twice"] for end in ends] == [0, 0]
    assert ends[0]["looks"] > STARTS // 10
    assert ends[0]["busy"] > 1
    assert ends[1]["left"].count("leases") == 1
    assert {name for name in ends[1]["left"] if name.startswith("leases")} <= {"leases", "leases.lock", "leases.new"}
    starts = rows[: rows.index(ends[0])]
    refused = [row for row in starts if not row["whole"] and not row["killed"]]
    for row in refused:
        # crun keeps what its hooks say to itself.
        assert re.search("0 have room|exit (status |code: )5", row["err"]), row
    whole = [row for row in starts if row["whole"]]
    print(f"{len(whole)} of {len(starts)} starts whole, {len(refused)} found no room, {ends[0]['busy']} at a time")
    assert len(starts) == STARTS
    assert len(whole) >= STARTS // 4
    last = rows[len(starts) + 1 : -1]
    assert [row["whole"] or row["killed"] for row in last] == [True] * 8, last


KILLED = {
    "fcntl": range(1, 3),
    "openat": range(1, 400, 40),
    "write": range(1, 5),
    "rename,renameat,renameat2": range(1, 3),
}


def test_a_start_that_is_killed_at_any_call_holds_nothing(bundle: Maker) -> None:
    """Of its choice, its lock, its writing and its renaming; the next start gets all, and finds one file at most."""
    made = bundle("debian").asks("any:8").runs("/bin/sh", "-c", "echo started")
    path, node = made.config["hooks"]["createRuntime"][-1]["path"], made.config["hooks"]["createRuntime"][0]
    scripts = {}
    for calls, numbers in KILLED.items():
        for number in numbers:
            words = ["strace", "-f", "-o", "/dev/null", "-e", f"trace={calls}"]
            words += ["-e", f"inject={calls}:signal=KILL:when={number}", path, "createRuntime"]
            killed = bundle("debian").asks("any:8")
            killed.config["hooks"]["createRuntime"] = [node, {"path": "/usr/bin/strace", "args": words}]
            killed.runs("/bin/sh", "-c", "echo lives")
            scripts[f"{calls} {number}"] = f"{start('runc', killed)} 2>/dev/null || :\n{start('runc', made)}"
    scripts["left"] = "ls /run/oci-gpu-hook"
    found = in_turn(scripts, settings=ONE)
    left = found.pop("left")
    assert all(lines[-1:] == ["started"] for lines in found.values()), found
    assert sum(lines[0] != "lives" for lines in found.values()) >= 4, found
    assert {name for name in left if name.startswith("leases")} <= {"leases", "leases.lock", "leases.new"}


def test_a_user_can_neither_take_keep_forge_nor_free_a_lease(bundle: Maker) -> None:
    """Not by the files, not by their lock, and a rootless engine of his gets no GPU and no lease."""
    made = bundle("debian").asks("any").runs("/bin/sh", "-c", "echo /dev/nvidia[0-9]*")
    as_user = "setpriv --reuid 64123 --regid 64123 --clear-groups"
    tries = """
import os
folder = "/run/oci-gpu-hook"
opened = (("leases", os.O_WRONLY), ("leases.lock", os.O_RDONLY), ("leases.lock", os.O_RDWR), ("new", os.O_CREAT))
acts = [lambda name=name, flags=flags: os.open(f"{folder}/{name}", flags) for name, flags in opened]
for act in (*acts, lambda: os.unlink(f"{folder}/leases")):
    try:
        print("done", act())
    except PermissionError:
        pass
print("tried")
"""
    script = f"{start('runc', made)}\n{as_user} python3 -c '{tries}'\n{start('runc', made, 'again')}"
    first, tried, second = in_turn({"all": script}, settings=ONE)["all"]
    assert first == second and first.startswith("/dev/nvidia")
    assert tried == "tried"
