# SPDX-License-Identifier: Apache-2.0
"""What the host is like, as a value: files, labels, mounts, cgroups, processes; and what differs between two moments.

Must not: change anything.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

# Where a host's own files lie that an image would like to reach; what the runtimes and the hook keep there is theirs.
PLACES = ("/dev", "/etc", "/lib/firmware/nvidia", "/mnt", "/run")
THEIRS = ("/dev/pts", "/run/runc", "/run/crun", "/run/oci-gpu-hook", "/run/c", "/run/libpod",
          "/run/containers", "/run/lock")  # fmt: skip
LABEL = "security.selinux"
World = dict[str, object]


def look(folders: list[Path], scene: Path, group: str) -> World:
    """The host at this moment; folders: the canaries; group: a word in the names of the container's cgroups.

    Kernel threads live in the machine's own mount namespace: what is mounted there below the scene counts too.
    """
    world: World = {}
    for place in (*PLACES, *map(str, folders)):
        _files(place, world)
    for name in os.listdir("/tmp"):
        world[f"/tmp/{name}"] = "there"
    if os.path.lexists("/tmp/nvidia-mps"):
        _files("/tmp/nvidia-mps", world)
    for line in mounts("self"):
        world[f"mount {line.split(' - ')[0].replace('//deleted', '')}"] = "there"
    world.update({f"mount of the machine {line}": "" for line in mounts("1") if f"{scene}/" in line})
    for folder, names, _ in os.walk("/sys/fs/cgroup"):
        world.update({f"cgroup {folder}/{name}": "there" for name in names if group in name})
    return world


def mounts(process: str) -> list[str]:
    with open(f"/proc/{process}/mountinfo", encoding="utf-8", errors="replace") as file:
        return file.read().splitlines()


def _files(top: str, world: World) -> None:
    if os.path.isdir(top) and not os.path.islink(top):
        for entry in os.scandir(top):
            if entry.path not in THEIRS:
                _files(entry.path, world)
    world[top] = _facts(top)


def _facts(path: str) -> tuple[object, ...]:
    """All that a look, a chmod, a chown, a write or a relabel would change."""
    try:
        it = os.lstat(path)
        label = os.getxattr(path, LABEL, follow_symlinks=False)
    except FileNotFoundError:
        return ("gone",)
    except OSError:
        label = b""
    # Of what is no canary a folder's times tell of the runtimes' files too, and crun touches nodes.
    times = () if path in PLACES or stat.S_ISCHR(it.st_mode) else (it.st_size, it.st_mtime_ns, it.st_ctime_ns)
    text = os.readlink(path) if os.path.islink(path) else ""
    return (it.st_mode, it.st_uid, it.st_gid, it.st_rdev, times, text, str(label))


def children(known: set[int]) -> list[str]:
    """The processes below this one, which must have ended by now but for the known ones."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) not in known:
            try:
                text = Path(f"/proc/{name}/stat").read_text()
            except OSError:
                continue
            state, parent = text.rpartition(")")[2].split()[:2]
            if parent == str(os.getpid()) and state != "Z":
                found.append(f"process {text.partition('(')[2].rpartition(')')[0]}")
    return found


def differences(before: World, after: World) -> list[str]:
    lines = [f"new: {key}" for key in after if key not in before]
    lines += [f"gone: {key}" for key in before if key not in after]
    lines += [
        f"changed: {key}: {before[key]} {after[key]}" for key in before if key in after and before[key] != after[key]
    ]
    return lines
