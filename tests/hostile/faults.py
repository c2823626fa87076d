# SPDX-License-Identifier: Apache-2.0
"""A hook of a real container that starts ours again and again, each time with another system call that fails or kills.

Each start gets a copy of the container's mount namespace, with a process and a cgroup of its own, so that one container
serves for hundreds of starts at the one moment that counts.

    faults.py FOLDER CALLS PART OF    the state on stdin; CALLS: "all", or names with commas

It plays every OFth cell from PART on, and writes them to FOLDER/rows-PART.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from tests.hostile import linux

HOOK = "/usr/libexec/oci/hooks.d/oci-gpu-hook"
# What changes a container or a host, by the names that strace has for them.
CHANGING = ("mkdirat", "mknodat", "symlinkat", "unlinkat", "open_tree", "mount_setattr", "move_mount",
            "fsopen", "fsconfig", "fsmount", "umount2", "renameat", "setns", "bpf", "write")  # fmt: skip
ERRORS = ("ENOSPC", "EROFS", "EPERM", "EMFILE", "ENOMEM", "EINTR", "EIO")
KILLED = "SIGKILL"
# The one file of the image that is written: beside it, and renamed.
CACHE = "/etc/ld.so.cache"
BESIDE = "/etc/.ld.so.cache.oci-gpu-hook"
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "SHELL": "/bin/bash"}


class Cell(NamedTuple):
    call: str
    number: int
    fault: str

    def option(self) -> str:
        what = "signal=KILL" if self.fault == KILLED else f"error={self.fault}"
        return f"inject={self.call}:{what}:when={self.number}"


class Stand:
    def __init__(self, pid: int, name: str) -> None:
        ready, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            # With its parent it ends, and it keeps none of the runtime's pipes.
            linux.check(ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0), "prctl")
            for fd in (0, 1, 2):
                os.dup2(os.open("/dev/null", os.O_RDWR), fd)
            linux.setns(f"/proc/{pid}/ns/mnt")
            linux.check(ctypes.CDLL(None).unshare(linux.CLONE_NEWNS), "unshare")
            os.write(write, b"x")
            signal.pause()
        os.close(write)
        os.read(ready, 1)
        os.close(ready)
        devices = Path("/sys/fs/cgroup/devices")
        self.v1 = devices.is_dir()
        self.cgroup = (devices if self.v1 else devices.parent) / name
        self.cgroup.mkdir()
        (self.cgroup / "cgroup.procs").write_text(str(self.pid))
        if self.v1:
            (self.cgroup / "devices.deny").write_text("a")

    def look(self, root: str) -> dict[str, Any]:
        with open(f"/proc/{self.pid}/mountinfo") as file:
            mounts = sorted(line.split(" - ")[0].split()[4] for line in file)
        with open("/proc/self/mountinfo") as file:
            host = [line.replace("//deleted", "") for line in file]
        listed = self.cgroup / "devices.list"
        devices = listed.read_text() if self.v1 else linux.device_programs(str(self.cgroup))
        cache = Path(root + CACHE).read_bytes().hex()
        return {"mounts": mounts, "devices": devices, "root": names(root), "host": host, "cache": cache}

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.cgroup.rmdir()


def names(root: str) -> list[str]:
    found = []
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            it = os.lstat(f"{folder}/{name}")
            size = 0 if stat.S_ISDIR(it.st_mode) else it.st_size
            found.append(f"{folder[len(root) :]}/{name} {it.st_mode:o} {size}")
    return sorted(found)


def tidy(root: str, before: dict[str, Any]) -> None:
    """As it was: what a killed start has made goes."""
    Path(root + CACHE).write_bytes(bytes.fromhex(before["cache"]))
    known = {line.split(" ")[0] for line in before["root"]}
    for folder, folders, files in os.walk(root, topdown=False):
        for name in (*folders, *files):
            path = f"{folder}/{name}"
            if path[len(root) :] not in known:
                (os.rmdir if os.path.isdir(path) and not os.path.islink(path) else os.unlink)(path)


class Start(NamedTuple):
    """How one ended, what it said, and what there was before and after it."""

    code: int
    said: str
    before: dict[str, Any]
    after: dict[str, Any]


def start(state: dict[str, Any], *options: str) -> Start:
    """Our hook, under strace where it has options, in a copy of the container; afterwards all is as it was."""
    stand = Stand(state["pid"], f"fault-{os.getpid()}")
    before = stand.look(state["root"])
    tracer = ["strace", "-f", "--seccomp-bpf", "-qq", *options] if options else []
    words = json.dumps({**state, "pid": stand.pid})
    done = subprocess.run(
        [*tracer, HOOK, "createRuntime"], input=words, capture_output=True, text=True, env=ENVIRONMENT, timeout=1200
    )
    after = stand.look(state["root"])
    stand.end()
    tidy(state["root"], before)
    return Start(done.returncode, done.stderr, before, after)


def calls(state: dict[str, Any], log: str) -> dict[str, int]:
    """How often a start makes each changing call, on a host with a saved inventory."""
    for _ in range(3):
        its = start(state, "-o", log, "-e", f"trace={','.join(CHANGING)}")
        assert its.code == 0, its.said
    counts: dict[str, int] = {}
    # A call that this strace does not know has a number for a name, and is shown whatever was asked for.
    for name in re.findall(r"^\d+ +(?!syscall_)(\w+)\(", Path(log).read_text(), re.MULTILINE):
        counts[name] = counts.get(name, 0) + 1
    return counts


def judged(cell: Cell, its: Start, whole: int) -> list[str]:
    code, said, before, after = its
    wrong = []
    if after["host"] != before["host"]:
        wrong.append("the host's mounts have changed")
    if cell.fault == KILLED:
        new = [line for line in after["root"] if line not in before["root"]]
        full = [line for line in new if line.split(" ")[1].startswith("100") and not line.endswith(" 0")]
        return wrong + [f"left: {line}" for line in full if line.split(" ")[0] not in (CACHE, BESIDE)]
    if "Traceback" in said or "internal error" in said or code == 1:
        wrong.append(f"our bug: {said[-400:]}")
    if code not in (0, 3, 6, 7):
        wrong.append(f"exit {code}: {said[-200:]}")
    if code and not said.startswith("oci-gpu-hook: "):
        wrong.append(f"no sentence: {said[:200]}")
    if code:
        wrong += [f"left: {key}: {before[key]} {after[key]}"[:900] for key in before if after[key] != before[key]]
    elif not said:
        # A cache that cannot be written is mounted.
        mounted = [path for path in after["mounts"] if not path.endswith(CACHE)]
        wrong += [f"{len(mounted)} mounts"] if len(mounted) - len(before["mounts"]) != whole else []
    return wrong


def main() -> None:
    folder, wanted, part, of = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    state = json.load(sys.stdin)
    config = json.loads(Path(state["bundle"], "config.json").read_text())
    state["root"] = os.path.join(state["bundle"], config["root"]["path"])
    counts = calls(state, f"{folder}/trace-{part}")
    cells = [
        Cell(name, number, fault)
        for name, count in sorted(counts.items())
        if wanted == "all" or name in wanted.split(",")
        for number in range(1, count + 1)
        for fault in (*ERRORS, KILLED)
    ]
    plain = start(state)
    whole = len(plain.after["mounts"]) - len(plain.before["mounts"])
    with open(f"{folder}/rows-{part}", "w") as output:
        for cell in cells[part::of]:
            its = start(state, "-o", "/dev/null", "-e", f"trace={cell.call}", "-e", cell.option())
            print(json.dumps([*cell, its.code, judged(cell, its, whole)]), file=output, flush=True)


if __name__ == "__main__":
    main()
