# SPDX-License-Identifier: Apache-2.0
"""All containers that run, with the device nodes that each can reach: from /proc, mounts and cgroups.

No engine is asked and nothing is remembered, so it is true after a restart of everything.  A container is what has
another root and another mount namespace than we.  Reads only: no device is opened, no cgroup is entered.  Never on the
hook's path.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.errors import UsageError
from oci_gpu_hook.formats import deviceverdict
from oci_gpu_hook.host import containers
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel import bpf, syscalls
from oci_gpu_hook.kernel.filetypes import is_character_device
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from oci_gpu_hook.host.containers import Running

    # A node of the host: path, major and minor.
    Numbered = tuple[str, int, int]

# Of /dev, and of the folder of MIG's capabilities in it.
_FOLDERS = ("/dev", "/dev/nvidia-caps")
_OURS = "/proc/self/ns/mnt"
_DIRECTORY = posix.O_RDONLY | posix.O_DIRECTORY | posix.O_CLOEXEC
_SC_CLK_TCK = "SC_CLK_TCK"


class Node(NamedTuple):
    """A device node of a container; allowed: what its device cgroup says, None where that cannot be read."""

    path: str
    major: int
    minor: int
    allowed: bool | None


class Contained(NamedTuple):
    """A container; since: when its first process began, in seconds since 1970."""

    running: Running
    since: int
    nodes: tuple[Node, ...]


class Found(NamedTuple):
    """All containers, by the time of their start; unseen: how many processes we may not look into."""

    containers: tuple[Contained, ...]
    unseen: int


def look(
    root: HostRoot, majors: tuple[int, ...], version: str, others: tuple[Numbered, ...] = ()
) -> Found:
    """The containers of this host; version: of cgroups, "" for none.

    majors: of the devices that count; others: single nodes of the host that count as well.
    """
    firsts, unseen = _first_processes(root)
    known = containers.everything(root)
    found = []
    for pid, began in firsts:
        running = containers.of_process(root, pid, known)
        nodes = _nodes(root, pid, majors, version, others)
        found.append(Contained(running, since(root, began), nodes))
    return Found(tuple(found), unseen)


def _first_processes(root: HostRoot) -> tuple[list[tuple[int, int]], int]:
    """The first process of each container with the clock tick of its start, in that order; and how many are unseen."""
    firsts: dict[int, tuple[int, int]] = {}
    unseen = 0
    ours, top = root.stat(_OURS), root.stat("/")
    for pid in sorted([int(name) for name in root.names("/proc") if name.isdecimal()]):
        began = containers.started(root, pid)
        if began is None:
            continue
        namespace, there = root.stat(f"/proc/{pid}/ns/mnt"), root.stat(f"/proc/{pid}/root")
        if namespace is None or there is None:
            unseen += 1
        elif not _is_same(namespace, ours) and not _is_same(there, top):
            firsts[namespace.st_ino] = min(firsts.get(namespace.st_ino, (began, pid)), (began, pid))
    return [(pid, began) for began, pid in sorted(firsts.values())], unseen


def _is_same(one: posix.stat_result, other: posix.stat_result | None) -> bool:
    return other is not None and (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


def _nodes(
    root: HostRoot,
    pid: int,
    majors: tuple[int, ...],
    version: str,
    others: tuple[Numbered, ...],
) -> tuple[Node, ...]:
    """The nodes of these majors, and those with the numbers of others, in a container by path, each number once."""
    wanted = {(major, minor) for _, major, minor in others}
    try:
        inside = HostRoot(f"{root.path.rstrip('/')}/proc/{pid}/root")
    except UsageError:
        return ()  # it has ended
    try:
        mountinfo = root.read(f"/proc/{pid}/mountinfo") or b""
        found: dict[tuple[int, int], str] = {}
        for path in _paths(inside, mountinfo, others):
            status = inside.stat(path)
            if status is not None and is_character_device(status):
                numbers = posix_numbers(status)
                if numbers[0] in majors or numbers in wanted:
                    found.setdefault(numbers, path)
    finally:
        inside.close()
    if not found:
        return ()
    rules = _rules(root, containers.device_cgroup(root, pid, version), version)
    return tuple([Node(found[at], *at, _verdict(rules, *at)) for at in sorted(found)])


def posix_numbers(status: posix.stat_result) -> tuple[int, int]:
    """Major and minor of a device."""
    return posix.major(status.st_rdev), posix.minor(status.st_rdev)


def _paths(inside: HostRoot, mountinfo: bytes, others: tuple[Numbered, ...] = ()) -> Iterator[str]:
    """Where nodes can be: in the container's /dev, and wherever one of the host's is bound to."""
    folders = [*_FOLDERS, *[path.rpartition("/")[0] for path, _, _ in others]]
    names = {path.rpartition("/")[2].encode() for path, _, _ in others}
    for folder in dict.fromkeys(folders):
        yield from [f"{folder}/{name}" for name in inside.names(folder)]
    for line in mountinfo.splitlines():
        fields = line.split(b" ")
        if len(fields) <= 4:
            continue
        if b"/nvidia" in fields[3] or fields[3].rpartition(b"/")[2] in names:
            point = fields[4].replace(b"\\040", b" ").decode("utf-8", "surrogateescape")
            yield point


def _rules(root: HostRoot, cgroup: str, version: str) -> str | list[bytes | None] | None:
    """The text of v1's rules, or the programs of v2 that are in effect; None where they cannot be read."""
    if version == "v1":
        text = root.read(f"{cgroup}/devices.list") if cgroup else None
        return None if text is None else text.decode("ascii", "replace")
    if version != "v2" or not cgroup or root.path != "/":
        return None
    try:
        fd = posix.open(cgroup, _DIRECTORY)
        try:
            ids = bpf.prog_query(fd, query_flags=bpf.BPF_F_QUERY_EFFECTIVE)[1]
        finally:
            posix.close(fd)
        return [_program(id) for id in ids]
    except OSError:
        return None


def _program(id: int) -> bytes | None:
    try:
        fd = bpf.prog_get_fd_by_id(id)
    except syscalls.SyscallError:
        return None
    try:
        return bpf.prog_insns(fd)
    finally:
        posix.close(fd)


def _verdict(rules: str | list[bytes | None] | None, major: int, minor: int) -> bool | None:
    if isinstance(rules, str):
        return deviceverdict.by_rules(rules, major, minor)
    return None if rules is None else deviceverdict.by_programs(rules, major, minor)


def since(root: HostRoot, began: int) -> int:
    """`containers.started` in seconds since 1970."""
    return _boot_time(root) + began // _ticks()


def _boot_time(root: HostRoot) -> int:
    """``btime`` of /proc/stat: seconds since 1970."""
    for line in (root.read("/proc/stat") or b"").splitlines():
        if line.startswith(b"btime "):
            return int(line[6:])
    return 0


def _ticks() -> int:
    return posix.sysconf(_SC_CLK_TCK)
