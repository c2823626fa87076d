# SPDX-License-Identifier: Apache-2.0
"""Many starts at a time: each is whole and right, or says why; killed ones and all others leave nothing.

The driver is upgraded in the middle, `inventory refresh` runs in a loop, one hook in twenty is killed.  HOSTILE_LOAD
says how many starts; 100 unless told, 1000 by hand.
"""

from __future__ import annotations

import json
import os
import re
import sys

from tests.hostile.load import NEW, OLD
from tests.hostile.scene import Kit
from tests.integration.engines import REPOSITORY, Installed, on_node

STARTS = int(os.environ.get("HOSTILE_LOAD", "100"))
AT_ONCE = 16


def test_many_starts_while_the_driver_is_upgraded(installed: Installed, kit: Kit) -> None:
    line = f"{sys.executable} -m tests.hostile.load {kit.file} {STARTS} {AT_ONCE}"
    out = on_node(installed, f"cd {REPOSITORY}; {line}", timeout=1800).printed()
    *rows, end = map(json.loads, out.splitlines())
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
