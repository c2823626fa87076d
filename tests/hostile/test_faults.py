# SPDX-License-Identifier: Apache-2.0
"""At each changing system call of a start: every error that a kernel may give there, and SIGKILL.

A start goes on and is complete, or says what it left out, or says why it failed and leaves nothing; a killed one leaves
no more than empty mount points in the container's own root, and the loader's cache, the old one or the new one.
"""

from __future__ import annotations

import collections
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.faults import ERRORS
from tests.integration.engines import PROCDRIVER, REPOSITORY, Bundle, on_node, start

HERE = REPOSITORY / "tests/hostile/faults.py"
PARTS = 2
# Which calls, by the cgroup: on v1 the last operation alone is another one.
MATRIX = {"v2": "all", "v1": "write,setns"}


def play(root: Path, folder: Path, cgroup: str, part: int) -> list[list[Any]]:
    path = folder / f"part-{part}"
    path.mkdir()
    # As engines have it: of an overlay the loader's cache is written.
    shutil.copytree(root, path / "image", symlinks=True)
    for place in ("dev", "proc", "sys", "etc/ld.so.conf.d"):
        (path / "image" / place).mkdir(parents=True)
    shutil.copy("/etc/ld.so.cache", path / "image/etc")
    for place in ("rootfs", "upper", "work"):
        (path / place).mkdir()
    layers = f"lowerdir={path}/image,upperdir={path}/upper,workdir={path}/work"
    mount = f"mount -t overlay -o {layers} none {path}/rootfs\n"
    words = ["python3", "-S", str(HERE), str(path), MATRIX[cgroup], str(part), str(PARTS)]
    hook = {"path": "/usr/bin/python3", "args": words, "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]}
    made = Bundle(path, {"createRuntime": [PROCDRIVER, hook]}).asks("0", "utility")
    script = mount + start("runc", made.runs("/bin/sh", "-c", "true"))
    on_node(script, cgroup=cgroup, description="v100").printed()
    return [json.loads(line) for line in (path / f"rows-{part}").read_text().splitlines()]


@pytest.mark.parametrize("cgroup", MATRIX)
def test_a_fault_at_each_changing_call(patterns: dict[str, Path], tmp_path: Path, cgroup: str) -> None:
    with ThreadPoolExecutor(PARTS) as pool:
        parts = [pool.submit(play, patterns["busybox"], tmp_path, cgroup, part) for part in range(PARTS)]
        rows = [row for part in parts for row in part.result()]
    wrong = [row for row in rows if row[4]]
    cells = collections.Counter(row[0] for row in rows)
    print(f"{cgroup}: {len(rows)} cells: {dict(cells)}")
    assert not wrong, "\n".join(map(str, wrong[:20]))
    assert len(rows) % (len(ERRORS) + 1) == 0
    assert len(rows) >= {"v2": 700, "v1": 50}[cgroup]
