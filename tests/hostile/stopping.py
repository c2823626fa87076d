# SPDX-License-Identifier: Apache-2.0
"""A user stops calls of a set-user-ID starter at every moment, while root starts containers whose holders are counted.

stopping.py STARTER ROOT BUNDLE TRIES

By turns ^Z on the user's terminal, and the freezer of a cgroup that the user was given.  Prints one line of JSON: how
many calls were stopped, at how many of these the leases' lock was held, and each start that failed or took too long.
"""

from __future__ import annotations

import json
import os
import pty
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

USER = 64_123
LOCK = "/run/oci-gpu-hook/leases.lock"
# A start takes a fraction of a second; one that waits for the lock says so after ten.
SECONDS = 60


def is_locked() -> bool:
    """Whether any process has the leases' lock (proc_locks(5))."""
    try:
        inode = os.stat(LOCK).st_ino
    except FileNotFoundError:
        return False
    return any(line.split()[5].endswith(f":{inode}") for line in Path("/proc/locks").read_text().splitlines())


class Call:
    """One call, as the foreground job of a shell of the user's, and in a cgroup of the user's."""

    def __init__(self, words: list[str], cgroup: Path) -> None:
        self._cgroup = cgroup
        reader, writer = os.pipe()
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            _shell(words, cgroup, writer)
        os.close(writer)
        os.read(reader, 1)
        os.close(reader)

    def stop(self, *, by_terminal: bool) -> None:
        if by_terminal:
            os.write(self._terminal, b"\x1a")
        else:
            self._freeze("1")

    def _freeze(self, value: str) -> None:
        (self._cgroup / "cgroup.freeze").write_text(value)

    def end(self) -> bool:
        """End it; gives whether it had not ended by itself."""
        left = (self._cgroup / "cgroup.procs").read_text()
        (self._cgroup / "cgroup.kill").write_text("1")
        self._freeze("0")
        os.waitpid(self.pid, 0)
        os.close(self._terminal)
        return bool(left)


def _shell(words: list[str], cgroup: Path, begun: int) -> NoReturn:
    """The leader of the terminal's session, which has one job; an orphaned group is not stopped by ^Z (setpgid(2))."""
    reader, writer = os.pipe()
    job = os.fork()
    if job == 0:
        (cgroup / "cgroup.procs").write_text("0")
        os.read(reader, 1)
        os.write(begun, b"x")
        os.setgroups([])
        os.setresgid(USER, USER, USER)
        os.setresuid(USER, USER, USER)
        os.execv(words[0], words)
    os.setpgid(job, job)
    os.tcsetpgrp(0, job)
    os.close(begun)
    os.write(writer, b"x")
    os.waitpid(job, 0)
    os._exit(0)


def main() -> None:
    """Runs on a node with cgroup v2."""
    starter, root, bundle, tries = sys.argv[1:]
    cgroup = Path(f"/sys/fs/cgroup/user-{os.getpid()}")
    cgroup.mkdir()
    for name in ("", "cgroup.procs", "cgroup.freeze"):
        os.chown(cgroup / name, USER, USER)
    words = [starter, "overlay", root, "/run/w/session", "--device=0", "--compute", "--utility"]
    began = time.monotonic()
    os.waitpid(Call(words, cgroup).pid, 0)
    longest = time.monotonic() - began
    dice = random.Random(7)
    wrong: list[str] = []
    stopped = locked = 0
    for number in range(int(tries)):
        call = Call(words, cgroup)
        time.sleep(dice.uniform(0, longest))
        call.stop(by_terminal=number % 2 == 0)
        time.sleep(0.01)
        locked += is_locked()
        began = time.monotonic()
        line = ["runc", "run", "--bundle", bundle, f"stopping-{number}"]
        try:
            done = subprocess.run(line, capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL)
            if done.returncode:
                wrong.append(f"{number}: {time.monotonic() - began:.0f} s: {done.stderr[-300:]}")
        except subprocess.TimeoutExpired:
            wrong.append(f"{number}: hangs")
        subprocess.run(["runc", "delete", "--force", f"stopping-{number}"], check=False, capture_output=True)
        stopped += call.end()
        if len(wrong) > 3:
            break
    took = {"call_ms": round(longest * 1000), "stopped": stopped, "locked": locked}
    print(json.dumps({"tries": number + 1, **took, "wrong": wrong}))
    while (cgroup / "cgroup.procs").read_text():
        time.sleep(0.01)
    cgroup.rmdir()


if __name__ == "__main__":
    main()
