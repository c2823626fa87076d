# SPDX-License-Identifier: Apache-2.0
"""Read what local users, containers and images have made: by descriptor, only regular files, within bounds.

A path that others fill may lead to anything: a device whose open alone does something (a watchdog, a tape), a FIFO, a
file of procfs whose read takes away or waits, a folder without an end, a FUSE filesystem that never answers.  So a file
is looked at by O_PATH first, and only the very file that was looked at is opened.

The one module that opens such paths, for the commands that root runs.  Must not be used by the hook, and must not
believe what it reads: its callers say whose word it is.
"""

from __future__ import annotations

import posix
from time import monotonic
from typing import TYPE_CHECKING

from oci_gpu_hook.errors import UsageError
from oci_gpu_hook.host.source import open_source
from oci_gpu_hook.kernel import procfile, syscalls
from oci_gpu_hook.kernel.filetypes import WRITABLE_BY_OTHERS, is_character_device, is_regular
from oci_gpu_hook.node.machine.mounts import Mounts
from oci_gpu_hook.record import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oci_gpu_hook.host.root import HostRoot

# As large as a config.json that a start reads; a list of 500 containers has some hundred KiB.
LARGEST = 4 << 20
MOST_NAMES = 16384
_MOST_VARIABLES = 10_000
# Of a container; and of a process, whose root comes first.
_LARGEST_MOUNTINFO, _LARGEST_FIRST = 2 << 20, 1 << 16

_NAMED = posix.O_PATH | posix.O_CLOEXEC
# O_NONBLOCK: the open of a file with a lease waits for its holder.  O_NOCTTY: a terminal would become ours.
_READ = posix.O_RDONLY | posix.O_NONBLOCK | posix.O_NOCTTY | posix.O_CLOEXEC
_WRITABLE = 0o222
_IN_ROOT = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS
_NO_LINKS = syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_MAGICLINKS
# Filesystems whose files are calls of the kernel: to read one may take away, wait or change something (linux/magic.h).
_OF_THE_KERNEL = frozenset(
    (
        *(syscalls.PROC_SUPER_MAGIC, syscalls.SYSFS_MAGIC, syscalls.DEBUGFS_MAGIC),
        *(syscalls.TRACEFS_MAGIC, syscalls.CGROUP_SUPER_MAGIC, syscalls.CGROUP2_SUPER_MAGIC),
        *(syscalls.SECURITYFS_MAGIC, syscalls.SELINUX_MAGIC, syscalls.BPF_FS_MAGIC),
        *(syscalls.EFIVARFS_MAGIC, syscalls.PSTOREFS_MAGIC),
    )
)


class Budget:
    """How long a look at what others fill may take, by a clock that cannot be set."""

    def __init__(self, seconds: float) -> None:
        self._until = monotonic() + seconds

    def is_spent(self) -> bool:
        """Whether the time is over."""
        return monotonic() > self._until


class Node(NamedTuple):
    """A character device: its name in the folder, and its numbers."""

    name: str
    major: int
    minor: int


class ContainerRoot:
    """The root of a container, seen from outside.  Links are followed inside that root."""

    def __init__(self, root: HostRoot, pid: int) -> None:
        path = f"{root.path.rstrip('/')}/proc/{pid}/root"
        try:
            # An O_PATH descriptor: nothing is opened.
            self.fd = posix.open(path, _NAMED | posix.O_DIRECTORY)
        except OSError as err:
            raise UsageError(f"the process {pid} cannot be looked into: {err.strerror}", "it may have ended") from err

    def close(self) -> None:
        """Close the descriptor."""
        posix.close(self.fd)

    def named(self, path: str, *, with_links: bool = True) -> int | None:
        """An O_PATH descriptor of what `path` leads to; None if it leads nowhere, or a link does and may not."""
        resolve = _IN_ROOT if with_links else _IN_ROOT | _NO_LINKS
        try:
            return syscalls.openat2(self.fd, path, posix.O_PATH, resolve=resolve)
        except OSError:
            return None

    def status(self, path: str, *, with_links: bool = True) -> posix.stat_result | None:
        """The status of what `path` leads to; None as for `named`."""
        fd = self.named(path, with_links=with_links)
        if fd is None:
            return None
        try:
            return posix.fstat(fd)
        finally:
            posix.close(fd)

    def numbers(self, path: str) -> tuple[int, int] | None:
        """Major and minor of the character device that `path` leads to; None if it leads to none."""
        status = self.status(path)
        return number(status) if status and is_character_device(status) else None

    def read(self, path: str, largest: int = LARGEST) -> bytes | None:
        """The content of a regular file; None if there is none, or it is larger."""
        fd = self.named(path)
        return None if fd is None else _closed(fd, largest)

    def names(self, path: str, most: int = MOST_NAMES) -> list[str]:
        """The first names in a folder, at most so many."""
        flags = posix.O_RDONLY | posix.O_DIRECTORY
        try:
            fd = syscalls.openat2(self.fd, path, flags, resolve=_IN_ROOT)
        except OSError:
            return []
        return [entry.name for entry in _entries(fd, most)]

    def nodes(self, path: str, budget: Budget) -> tuple[list[Node], bool]:
        """The character devices in a folder that no link leads to, and whether all of its names were looked at."""
        flags = posix.O_RDONLY | posix.O_DIRECTORY
        try:
            fd = syscalls.openat2(self.fd, path, flags, resolve=_IN_ROOT | _NO_LINKS)
        except OSError:
            return [], True
        found: list[Node] = []
        count = 0
        for entry in _entries(fd, MOST_NAMES):
            count += 1
            if budget.is_spent():
                return found, False
            # Most names tell their kind without another look: links, folders and files are no nodes.
            if entry.is_symlink() or entry.is_dir() or entry.is_file():
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if is_character_device(status):
                found.append(Node(entry.name, *number(status)))
        return found, count < MOST_NAMES

    def try_node(self, path: str, numbers: tuple[int, int]) -> None:
        """Open the character device with these numbers, and close it; OSError if that fails, or `path` is another."""
        fd = syscalls.openat2(self.fd, path, posix.O_PATH, resolve=_IN_ROOT)
        try:
            status = posix.fstat(fd)
            if not is_character_device(status) or number(status) != numbers:
                raise OSError(syscalls.ENODEV, "it is another device by now", path)
            # MIG's capability devices have no write permission: programs open them for reading only.
            access = posix.O_RDWR if status.st_mode & _WRITABLE else posix.O_RDONLY
            flags = access | posix.O_NONBLOCK | posix.O_NOCTTY | posix.O_CLOEXEC
            posix.close(posix.open(f"/proc/self/fd/{fd}", flags))
        finally:
            posix.close(fd)


def environment(root: HostRoot, pid: int) -> list[str]:
    """The variables that a container's process was started with, to a bound.

    They lie in its own memory, where a read may wait for ever: only in a child under a time limit.  Bytes that are no
    UTF-8 are replaced: no request has any.
    """
    data = root.read(f"/proc/{pid}/environ") or b""
    items = data[:LARGEST].split(b"\0", _MOST_VARIABLES)[:_MOST_VARIABLES]
    return [item.decode("utf-8", "replace") for item in items if item]


def our_mounts() -> Mounts:
    """The mounts of our own namespace, by which users' files are opened; without any, none is opened."""
    try:
        return Mounts(procfile.read("/proc/self/mountinfo"), is_ours=True)
    except OSError:
        return Mounts(b"")


def mounts_of(root: HostRoot, pid: int) -> Mounts | None:
    """The mounts that a process sees; None if they cannot be read, or are too many."""
    data = mountinfo(root, pid, _LARGEST_MOUNTINFO + 1)
    return None if not data or len(data) > _LARGEST_MOUNTINFO else Mounts(data)


def mountinfo(root: HostRoot, pid: int, most: int = _LARGEST_FIRST) -> bytes:
    """The first bytes of what the kernel says of the mounts that a process sees; none if there is no such process."""
    try:
        fd = root.open(f"/proc/{pid}/mountinfo", posix.O_RDONLY)
        try:
            return _first(fd, most)
        finally:
            posix.close(fd)
    except OSError:
        return b""


def regular(path: str, root: HostRoot | None = None) -> int:
    """A descriptor to read the regular file that a path leads to, below a root if one is given; OSError for no such."""
    fd = posix.open(path, _NAMED) if root is None else root.open(path)
    try:
        return _reopened(fd)
    finally:
        posix.close(fd)


def read(root: HostRoot, path: str, largest: int = LARGEST) -> bytes | None:
    """A regular file that root has named and others may have filled, as a bundle's; None if there is none."""
    try:
        return _closed(root.open(path), largest)
    except OSError:
        return None


def read_roots(root: HostRoot, path: str, mounts: Mounts, largest: int = LARGEST) -> bytes | None:
    """A regular file that root alone could have made and written; None for any other, and if it is larger.

    mounts: ours.  A server, which may not answer, is not asked.
    """
    if not mounts.is_local(root.path.rstrip("/") + path):
        return None
    try:
        fd = open_source(root.fd, path)
    except OSError:
        return None
    if is_roots(root, posix.fstat(fd)):
        return _closed(fd, largest)
    posix.close(fd)
    return None


def is_roots(root: HostRoot, status: posix.stat_result) -> bool:
    """Whether only root may write what has this status: "/" names root's number in a user namespace."""
    return status.st_uid in (0, posix.fstat(root.fd).st_uid) and not status.st_mode & WRITABLE_BY_OTHERS


def read_users(root: HostRoot, path: str, owner: int, mounts: Mounts, largest: int = LARGEST) -> bytes | None:
    """A regular file of the user `owner`; None if there is none, a link leads to it, or it is larger.

    mounts: ours.
    """
    fd = _open_users(root, path, owner, mounts, posix.O_PATH)
    return None if fd is None else _closed(fd, largest)


def is_users(root: HostRoot, path: str, owner: int, mounts: Mounts) -> bool:
    """Whether something of the user `owner` lies at `path`, which no link leads to."""
    fd = _open_users(root, path, owner, mounts, posix.O_PATH)
    if fd is not None:
        posix.close(fd)
    return fd is not None


def users_names(root: HostRoot, path: str, owner: int, mounts: Mounts, most: int = MOST_NAMES) -> list[str]:
    """The first names in a folder of the user `owner`; none if it is another's, or a link leads to it."""
    fd = _open_users(root, path, owner, mounts, posix.O_RDONLY | posix.O_DIRECTORY)
    return [] if fd is None else sorted([entry.name for entry in _entries(fd, most)])


def _open_users(root: HostRoot, path: str, owner: int, mounts: Mounts, flags: int) -> int | None:
    """A descriptor of what the user has at `path`, without links, on a filesystem that answers by itself; else None.

    A user may mount a FUSE filesystem on a folder of his.  So the walk begins at the last mount point on the way, whose
    mount must be the one that `mounts` has, and crosses no other.
    """
    whole = root.path.rstrip("/") + path
    way = mounts.way(whole)
    if not way or not mounts.is_local(whole):
        return None
    flags_of_top = posix.O_PATH | posix.O_DIRECTORY
    try:
        top = syscalls.openat2(syscalls.AT_FDCWD, way[-1], flags_of_top, resolve=_NO_LINKS)
    except OSError:
        return None
    beneath = _NO_LINKS | syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_XDEV
    try:
        if _mount_id(top) != mounts.points[way[-1]].id:
            return None
        fd = syscalls.openat2(top, whole[len(way[-1]) :].lstrip("/") or ".", flags, resolve=beneath)
    except OSError:
        return None
    finally:
        posix.close(top)
    if posix.fstat(fd).st_uid == owner:
        return fd
    posix.close(fd)
    return None


def _mount_id(fd: int) -> int:
    """The mount's number from fdinfo: statx(2) may ask a FUSE daemon for its root's attributes."""
    for line in procfile.read(f"/proc/self/fdinfo/{fd}").split(b"\n"):
        if line.startswith(b"mnt_id:"):
            return int(line[7:])
    return 0


def _closed(fd: int, largest: int) -> bytes | None:
    """`_content`, and the descriptor is closed."""
    try:
        return _content(fd, largest)
    finally:
        posix.close(fd)


def _content(fd: int, largest: int) -> bytes | None:
    """The content of the regular file that an O_PATH descriptor names; None if it is none, or larger."""
    if posix.fstat(fd).st_size > largest:
        return None
    try:
        opened = _reopened(fd)
        try:
            data = _first(opened, largest + 1)
        finally:
            posix.close(opened)
    except OSError:
        return None
    return data if len(data) <= largest else None


def _reopened(fd: int) -> int:
    """A descriptor to read the regular file that an O_PATH descriptor names; OSError if it is none."""
    if not is_regular(posix.fstat(fd)) or syscalls.filesystem_magic(fd) in _OF_THE_KERNEL:
        raise OSError(syscalls.EINVAL, "it is no regular file")
    return posix.open(f"/proc/self/fd/{fd}", _READ)


def _first(fd: int, most: int) -> bytes:
    """The first bytes of a file, at most so many."""
    pieces, left = [], most
    while left and (piece := posix.read(fd, min(left, 1 << 16))):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _entries(fd: int, most: int) -> Iterator[posix.DirEntry[str]]:
    """The first entries of a folder; closes the descriptor."""
    try:
        with posix.scandir(fd) as entries:
            for _, entry in zip(range(most), entries):
                yield entry
    except OSError:
        pass
    finally:
        posix.close(fd)


def number(status: posix.stat_result) -> tuple[int, int]:
    """Major and minor of a device node."""
    return posix.major(status.st_rdev), posix.minor(status.st_rdev)
