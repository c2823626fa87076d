# SPDX-License-Identifier: Apache-2.0
"""A running container, looked at from the host: what its device cgroup allows, its labels, what became of its root.

Must not change the container, or judge: it tells what was seen.
"""

from __future__ import annotations

import errno
import glob
import os

from .mounting import label

_CGROUPS = "/sys/fs/cgroup"
_MADE = ("dev/nvidia*", "dev/shm", "etc/ld.so.cache", "usr/bin/nvidia-smi")


def look(pid: int) -> dict[str, str]:
    """What is seen of the container that process `pid` is the first of."""
    with open(f"/proc/{pid}/attr/current", encoding="ascii") as file:
        _, _, domain, level = file.read().rstrip("\0\n").split(":", 3)
    paths = [path for name in _MADE for path in glob.glob(f"/proc/{pid}/root/{name}")]
    own = f"system_u:object_r:container_file_t:{level}"
    # A mount's files keep the host's labels; a node and /dev/shm have the container's own.
    wrong = [path for path in paths if "/dev/" in path and label(path) != own]
    return {
        "domain": domain,
        "labels": " ".join(f"{path}:{label(path)}" for path in wrong) or "own",
        "allowed": " ".join(allowed(pid)) or "none",
        "left": " ".join(left(pid)) or "nothing",
    }


def allowed(pid: int) -> list[str]:
    """The host's GPUs whose nodes the container's device cgroup lets a process open."""
    with open(f"/proc/{pid}/cgroup", encoding="ascii") as file:
        [path] = [line[3:].rstrip("\n") for line in file if line.startswith("0::")]
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            with open(f"{_CGROUPS}{path}/cgroup.procs", "w", encoding="ascii") as file:
                file.write("0")
            os.write(writing, " ".join(filter(_opens, sorted(glob.glob("/dev/nvidia[0-9]*")))).encode())
        except OSError as error:
            os.write(writing, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8") as file:
        found = file.read().split()
    os.waitpid(child, 0)
    return found


def _opens(path: str) -> bool:
    """EPERM is the device cgroup's answer; SELinux, which may not let us, and the driver are asked after it."""
    try:
        os.close(os.open(path, os.O_RDONLY))
    except OSError as error:
        return error.errno != errno.EPERM
    return True


def left(pid: int) -> list[str]:
    """What is in the upper layer of its root beside empty mount points, links to them, and the loader's cache."""
    with open(f"/proc/{pid}/mountinfo", encoding="utf-8") as file:
        [options] = [line.rpartition(" - ")[2] for line in file if line.split()[4] == "/"]
    [upper] = [word[9:] for word in options.rstrip().split(",") if word.startswith("upperdir=")]
    found = []
    for folder, _, names in os.walk(upper):
        for name in names:
            path = os.path.join(folder, name)
            inside = path[len(upper) :]
            if not os.path.islink(path) and os.path.getsize(path) and inside != "/etc/ld.so.cache":
                found.append(inside)
    return found
