# SPDX-License-Identifier: Apache-2.0
"""Many starts at a time on a node whose driver is upgraded meanwhile: a line of JSON for each.

    node.py ... -- python -m tests.hostile.load KIT STARTS AT_ONCE

`inventory refresh` runs in a loop, and one hook in twenty is killed.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable

from tests.hostile import canary, linux
from tests.hostile.play import own_ipc
from tests.hostile.scene import ENVIRONMENT, OWN_LIBRARIES, STAGE, Kit
from tests.integration import roots
from tests.integration.engines import Bundle, meanwhile

OLD, NEW = "580.65.06", "580.65.09"
KILLED_OF_100 = 5
VERSION = Path("/proc/driver/nvidia/version")
LOOK = f"for file in {OWN_LIBRARIES}/lib*.so.*; do echo $file; done; ls /dev/nvidiactl"


def upgrade() -> None:
    """The kernel module's next release, and its libraries by turns: for a moment they do not fit."""
    places = (Path("/usr/lib") / roots.MULTIARCH, Path("/usr/lib64"))
    folder = next(place for place in places if (place / f"libcuda.so.{OLD}").exists())
    for old in sorted(folder.glob(f"*.so.{OLD}")):
        data = old.read_bytes().replace(OLD.encode(), NEW.encode())
        new = old.with_name(old.name.replace(OLD, NEW))
        new.write_bytes(data)
        new.chmod(0o755)
    VERSION.write_text(VERSION.read_text().replace(OLD, NEW))
    subprocess.run(["ldconfig", "-X"], check=True)
    for old in folder.glob(f"*.so.{OLD}"):
        old.unlink()


def refresh() -> None:
    subprocess.run(["/usr/bin/oci-gpu-hook", "inventory", "refresh"], capture_output=True, env=ENVIRONMENT)


def killed(hook: dict[str, Any], seconds: float) -> dict[str, Any]:
    args = ["timeout", "-s", "KILL", f"{seconds:.3f}", hook["path"], STAGE]
    return {**hook, "path": "/usr/bin/timeout", "args": args}


def run(runtime: str, made: Bundle, name: str, meanwhile: Callable[[], object] = lambda: None) -> tuple[int, str, str]:
    """One container, from its start to its end: its exit code, what it said, and what its runtime said."""
    # Files, not pipes: what a killed runtime has started would hold them open.
    with open(made.path / "out", "w") as out, open(made.path / "err", "w") as err:
        process = subprocess.Popen([runtime, "run", "--bundle", str(made.path), name], stdout=out, stderr=err)
    meanwhile()
    process.wait(timeout=1200)
    subprocess.run([runtime, "delete", "--force", name], capture_output=True)
    return process.returncode, (made.path / "out").read_text(), (made.path / "err").read_text()


def start(kit: Kit, work: Path, number: int, is_killed: bool) -> dict[str, Any]:
    path = work / str(number)
    node, ours = kit.hooks[STAGE]
    if is_killed:
        # A runtime that is killed leaves its cgroup: what counts is that the hook leaves nothing.
        ours = killed(ours, random.Random(number).uniform(0.005, 0.06))
    made = Bundle(path, {STAGE: [node, ours]}, kit.patterns["busybox"]).asks("0", "utility")
    made.runs("/bin/sh", "-c", f"{LOOK} 2>&1; echo whole")
    code, said, told = run("runc", made, f"load-{os.getpid()}-{number}")
    files = [it for it in (path / "rootfs").rglob("*") if it.is_file() and not it.is_symlink() and it.stat().st_size]
    left = [str(it) for it in files if not str(it).startswith(f"{path}/rootfs/bin/")]
    shutil.rmtree(path)
    libraries = sorted(set(re.findall(rf"{OWN_LIBRARIES}/(lib\S+\.so\.\d{{3}}\S*)", said)))
    found = {"killed": is_killed, "code": code, "left": left, "libraries": libraries}
    return {**found, "whole": "whole" in said, "err": told[-500:]}


def main() -> None:
    """Before and after it the host is the same, but for the driver's files."""
    kit, starts, at_once = Kit.read(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    own_ipc()
    linux.adopt_orphans()
    work = kit.work / "load"
    work.mkdir()
    chosen = set(random.Random(1).sample(range(starts), starts * KILLED_OF_100 // 100))

    def one(number: int) -> dict[str, Any]:
        if number == starts // 2:
            upgrade()
        return start(kit, work, number, number in chosen)

    before = canary.look([], work, f"load-{os.getpid()}")
    with meanwhile(refresh), ThreadPoolExecutor(at_once) as pool:
        for row in pool.map(one, range(starts)):
            print(json.dumps(row), flush=True)
    after = canary.look([], work, f"load-{os.getpid()}")
    work.rmdir()
    # ldconfig has written its cache again.
    left = [it for it in canary.differences(before, after) if ": /etc" not in it]
    print(json.dumps({"left": left + canary.children(set())}))


if __name__ == "__main__":
    main()
