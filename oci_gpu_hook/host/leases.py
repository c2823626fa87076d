# SPDX-License-Identifier: Apache-2.0
"""Leases: which container of this node holds which devices; and which of its GPUs are not healthy.

All leases are one file in /run, which is replaced under a lock.  A lease is valid while the container's cgroup has a
process, or its first process lives, wherever it was moved.  Must not ask a GPU, or decide who gets what.
"""

from __future__ import annotations

import posix
from time import time

from oci_gpu_hook.errors import ConfigError
from oci_gpu_hook.host import statefile
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel import procfile
from oci_gpu_hook.record import NamedTuple

FILE, _LOCK, _STAGED = "leases", "leases.lock", "leases.new"
# If the fields of `Lease` change, the number is raised.
HEADING = b"oci-gpu-hook leases 2\n"
UNHEALTHY_HEADING = b"oci-gpu-hook unhealthy 1\n"
# Of one start, and of cgroups that a container makes below its own: with more it counts as alive.
_MAX_REMOVED, _MAX_CGROUPS = 100, 1000
# In stat(5) of /proc/PID, behind the name: the state is the first word, the time of the start the 20th.
_STATE, _START = 0, 19


class Lease(NamedTuple):
    """start: of its first process, in ticks since boot; cgroup, inode: its device cgroup, "" and 0 if it has none of
    its own; since: seconds since 1970; most: how many holders its devices may have, itself among them; devices: see
    `Provision.holds`; memory: the bytes that are its own of each, by its name in `devices`, and by its PCI address,
    by which they are counted; an older version's leases have the address alone.
    """

    id: str
    pid: int
    start: int
    cgroup: str
    inode: int
    since: int
    most: int
    devices: tuple[str, ...]
    memory: tuple[tuple[str, int], ...] = ()

    def is_of(self, other: Lease) -> bool:
        """Whether both are of one process: users and engines give one id to two containers."""
        return self.pid == other.pid and self.start == other.start

    def is_valid(self) -> bool:
        return _start_of(self.pid) == self.start or bool(self.cgroup and _has_process(self.cgroup, self.inode))


class Leases:
    """Those that are void, too; `with` holds the lock, if they are to be written."""

    def __init__(self, host: HostRoot, *, is_written: bool) -> None:
        """ConfigError if we may not write; LockedError as `statefile.lock`."""
        self._host, self._lock = host, -1
        try:
            if is_written:
                self._lock = statefile.lock(host, _LOCK)
        except OSError as err:
            why = f"gpu-holders is set, and leases cannot be written: {err.strerror}"
            hint = "a rootless engine's containers cannot be counted: see oci-gpu-hook.conf(5), gpu-holders"
            raise ConfigError(why, hint) from err

    def __enter__(self) -> list[Lease]:
        return read_leases(self._host)

    def __exit__(self, *_: object) -> None:
        if self._lock >= 0:
            posix.close(self._lock)


def read_leases(host: HostRoot) -> list[Lease]:
    """Also those that are void; ConfigError if they are damaged."""
    if host.stat(f"{statefile.FOLDER}/{FILE}") is None:
        return []
    try:
        boot, rows = statefile.load(host, FILE, HEADING)
        return list(statefile.records(Lease, rows)) if boot == host.boot_id() else []
    except (ValueError, TypeError):
        why = f"{statefile.FOLDER}/{FILE} is damaged, of another version of ours, or others than root can write to it"
        raise ConfigError(why, "root must remove it, and containers that run now are not counted then") from None


def unhealthy(host: HostRoot) -> dict[str, str]:
    """For each GPU that is not healthy, by its PCI address (`Gpu.bus_id`), a clause that says why."""
    try:
        return {str(key): str(why) for key, why in statefile.load(host, statefile.UNHEALTHY, UNHEALTHY_HEADING) or ()}
    except (ValueError, TypeError):
        return {}


def write(host: HostRoot, leases: list[Lease]) -> None:
    """ConfigError if that fails.  Needs the lock."""
    try:
        # A start that is killed leaves this one file, which the next one replaces.
        statefile.save(host, FILE, HEADING, (host.boot_id(), tuple(leases)), _STAGED)
    except OSError as err:
        raise ConfigError(f"leases cannot be written: {err.strerror}", "the administrator must see to /run") from err


def has_room(holders: list[Lease], most: int) -> bool:
    return len(holders) < min([most, *[lease.most for lease in holders]])


def lease_of(id: str, pid: int, stat: bytes, cgroup: str, most: int) -> Lease:
    try:
        inode = posix.stat(cgroup).st_ino if cgroup else 0
    except FileNotFoundError:
        inode = 0  # its process was killed meanwhile, which a later look at it tells
    return Lease(id, pid, int(procfile.stat_words(stat)[_START]), cgroup, inode, int(time()), most, ())


def without_void(leases: list[Lease]) -> list[Lease]:
    """At most `_MAX_REMOVED` go.  One whose process number is used again stays: `is_valid` takes ten times as long."""
    found, removed = [], 0
    for lease in leases:
        if removed < _MAX_REMOVED and not _is_used(lease.pid) and not lease.is_valid():
            removed += 1
        else:
            found.append(lease)
    return found


def _is_used(pid: int) -> bool:
    """Whether a process has this number, as getpriority(2) tells of any without a file being opened."""
    try:
        posix.getpriority(posix.PRIO_PROCESS, pid)
        return True
    except OSError:
        return False


def _start_of(pid: int) -> int:
    """In ticks since boot; -1 if it has ended."""
    try:
        fields = procfile.stat_words(procfile.read_whole(f"/proc/{pid}/stat"))
        return -1 if fields[_STATE] in (b"Z", b"X") else int(fields[_START])  # a zombie has ended
    except (OSError, ValueError, IndexError):
        return -1


def _has_process(cgroup: str, inode: int) -> bool:
    try:
        if posix.stat(cgroup).st_ino != inode:
            return False
        return b"populated 1" in procfile.read_whole(f"{cgroup}/cgroup.events")
    except OSError:
        pass  # v1
    folders = [cgroup]
    for number, folder in enumerate(folders):
        if number == _MAX_CGROUPS:
            return True
        try:
            if procfile.read_whole(f"{folder}/cgroup.procs"):
                return True
            with posix.scandir(folder) as entries:
                folders += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:
            continue
    return False
