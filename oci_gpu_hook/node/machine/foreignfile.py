# SPDX-License-Identifier: Apache-2.0
"""Read what local users, containers and images have made: by descriptor, only regular files, within bounds.

A path that others fill may lead to anything: a device whose open alone does something (a watchdog, a tape), a FIFO, a
file of procfs whose read takes away or waits, a folder without an end, a FUSE filesystem that never answers.  So a file
is looked at by O_PATH first, and only that very file is opened.  The one module that opens such paths.  Must not
believe what it reads: its callers say whose word it is.
"""

from __future__ import annotations

import errno
import posix
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from time import monotonic
from typing import Any

from oci_gpu_hook.container.ipc import NO_SYMLINKS
from oci_gpu_hook.errors import UsageError
from oci_gpu_hook.formats import jsontext
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.host.source import read_source
from oci_gpu_hook.kernel import procfile, syscalls
from oci_gpu_hook.kernel.descriptors import closing, content, reopened
from oci_gpu_hook.kernel.filetypes import is_character_device, is_regular
from oci_gpu_hook.kernel.mountinfo import mounts

Number = tuple[int, int]

ROOT = 0
# As large as a config.json that a start reads; a list of 500 containers has some hundred KiB.
LARGEST = 4 << 20
MAX_NAMES = 16384
# A value takes a hundred bytes of memory.
_MAX_VALUES = 50_000
# Of a container; and of a process, whose root comes first.
_LARGEST_MOUNTINFO, _MAX_OF_FIRST = 2 << 20, 1 << 16

_NAMED = posix.O_PATH | posix.O_CLOEXEC
_FOLDER = posix.O_RDONLY | posix.O_DIRECTORY
# O_NONBLOCK: the open of a file with a lease waits for its holder.  O_NOCTTY: a terminal would become ours.
_NO_WAIT = posix.O_NONBLOCK | posix.O_NOCTTY
# Filesystems that answer by themselves: no daemon of a user's and no server is asked.  An overlay asks those that it is
# made of: one that a user has made does not.
_LOCAL = {
    *("tmpfs", "ramfs", "rootfs", "devtmpfs", "overlay", "ext2", "ext3", "ext4", "xfs"),
    *("btrfs", "f2fs", "zfs", "bcachefs", "squashfs", "erofs", "iso9660", "vfat"),
}


class Mounts:
    """The topmost one at each mount point (proc_pid_mountinfo(5)); is_ours: whether this program lies on its "/"."""

    def __init__(self, mountinfo: bytes, *, is_ours: bool = False) -> None:
        self.points = {mount.point: mount for mount in mounts([mountinfo])}
        self._is_ours = is_ours

    def way(self, path: str) -> list[str]:
        parts = path.rstrip("/").split("/")
        ways = ["/".join(parts[:end]) or "/" for end in range(1, len(parts) + 1)]
        return [way for way in ways if way in self.points]

    def is_local(self, path: str) -> bool:
        """Whether every filesystem on the way to `path` answers by itself; any user may wait for FUSE daemons."""
        way = [point for point in self.way(path) if point != "/" or not self._is_ours]
        return posix.geteuid() != 0 or _LOCAL.issuperset([self.points[point].type for point in way])

    def shown(self, path: str) -> tuple[str, str] | None:
        """The filesystem's device, and the place in it, of what lies at `path` if no link leads there; else None."""
        way = self.way(path)
        if not way:
            return None
        mount, top = self.points[way[-1]], way[-1].rstrip("/")
        return mount.device, mount.root.rstrip("/") + path.rstrip("/")[len(top) :] or "/"


class ContainerRoot:
    """The root of a container, seen from outside.  Links are followed inside that root.  Its user closes `fd`."""

    def __init__(self, host: HostRoot, pid: int) -> None:
        path = f"{host.path.rstrip('/')}/proc/{pid}/root"
        try:
            # An O_PATH descriptor: nothing is opened.
            self.fd = posix.open(path, _NAMED | posix.O_DIRECTORY)
        except OSError as err:
            raise UsageError(f"the process {pid} cannot be looked into: {err.strerror}", "it may have ended") from err

    def open(self, path: str, flags: int = posix.O_PATH, *, with_links: bool = True) -> int:
        """A descriptor of what `path` leads to; OSError if it leads nowhere, or a link does and may not."""
        resolve = syscalls.RESOLVE_BELOW if with_links else NO_SYMLINKS
        return syscalls.openat2(self.fd, path, flags, resolve=resolve)

    def status(self, path: str, *, with_links: bool = True) -> posix.stat_result | None:
        with suppress(OSError), closing(self.open(path, with_links=with_links)) as fd:
            return posix.fstat(fd)
        return None

    def numbers(self, path: str) -> Number | None:
        status = self.status(path)
        return number(status) if status and is_character_device(status) else None

    def names(self, path: str) -> list[str]:
        with suppress(OSError), closing(self.open(path, _FOLDER)) as fd:
            return [entry.name for entry in _entries(fd)]
        return []

    def nodes(self, path: str, until: float) -> tuple[list[tuple[str, Number]], bool]:
        """The character devices in a folder that no link leads to; and whether that is all.  until: by `monotonic`."""
        found: list[tuple[str, Number]] = []
        count = 0
        with suppress(OSError), closing(self.open(path, _FOLDER, with_links=False)) as fd:
            for entry in _entries(fd):
                count += 1
                if monotonic() > until:
                    return found, False
                # Most names tell their kind without another look: links, folders and files are not nodes.
                with suppress(OSError):
                    is_other = entry.is_symlink() or entry.is_dir() or entry.is_file()
                    if not is_other and is_character_device(status := entry.stat(follow_symlinks=False)):
                        found.append((entry.name, number(status)))
        return found, count < MAX_NAMES

    def try_node(self, path: str, numbers: Number) -> None:
        """Open the character device with these numbers, and close it; OSError if that fails, or `path` is another."""
        with closing(self.open(path)) as fd:
            status = posix.fstat(fd)
            if not is_character_device(status) or number(status) != numbers:
                raise OSError(errno.ENODEV, "it is another device by now", path)
            # MIG's capability devices have no write permission: programs open them for reading only.
            access = posix.O_RDWR if status.st_mode & 0o222 else posix.O_RDONLY
            posix.close(reopened(fd, access | _NO_WAIT))


def our_mounts() -> Mounts:
    """The mounts of our own namespace; none if the kernel does not tell them."""
    try:
        return Mounts(procfile.read_whole("/proc/self/mountinfo"), is_ours=True)
    except OSError:
        return Mounts(b"")


def mounts_of(host: HostRoot, pid: int) -> Mounts | None:
    """The mounts that a process sees; None if they cannot be read, or are too many."""
    data = mountinfo(host, pid, _LARGEST_MOUNTINFO + 1)
    return Mounts(data) if 0 < len(data) <= _LARGEST_MOUNTINFO else None


def mountinfo(host: HostRoot, pid: int, most: int = _MAX_OF_FIRST) -> bytes:
    """The first bytes of what the kernel says of the mounts that a process sees; none if there is no such process."""
    said = bytearray()
    with suppress(OSError), closing(host.open(f"/proc/{pid}/mountinfo", posix.O_RDONLY)) as fd:
        while len(said) < most and (piece := posix.read(fd, 1 << 16)):
            said += piece
    return bytes(said)


def root_of(mountinfo: bytes) -> tuple[str, str] | None:
    """As `Mounts.shown`, of the first mount at "/", over which others lie; None if the root is not a mount point."""
    return next(((mount.device, mount.root) for mount in mounts([mountinfo]) if mount.point == "/"), None)


def regular(path: str) -> int:
    """A descriptor to read the regular file that a path leads to; OSError for no such."""
    with closing(posix.open(path, _NAMED)) as fd:
        return _reopened(fd)


def read_file(root: HostRoot | ContainerRoot, path: str, largest: int = LARGEST) -> bytes | None:
    """A regular file that others may have filled, as a bundle's; None if there is none, or it is larger."""
    with suppress(OSError), closing(root.open(path)) as named, closing(_reopened(named)) as fd:
        return content(fd, largest)
    return None


class Files:
    """What runtimes and engines keep: for root only what root alone could have made and written.  mounts: ours."""

    def __init__(self, host: HostRoot, mounts: Mounts) -> None:
        self.host, self._mounts = host, mounts

    def parsed(self, path: str) -> object:
        """The JSON value in a regular file; None if there is none, or it is larger, or has too many values."""
        data = self._read(path)
        try:
            return None if data is None or jsontext.has_more_values(data, _MAX_VALUES) else jsontext.loads(data)
        except ValueError:
            return None

    def object(self, path: str) -> dict[str, Any]:
        document = self.parsed(path)
        return document if isinstance(document, dict) else {}

    def _read(self, path: str) -> bytes | None:
        if posix.geteuid() != ROOT:
            return read_file(self.host, path)  # what that user may: there is no power to lose
        # Root may have started a container in a folder of a user's, who can write anything there.
        is_local = self._mounts.is_local(self.host.path.rstrip("/") + path)
        return read_source(self.host.fd, path, LARGEST) if is_local else None


def _reopened(fd: int) -> int:
    """A descriptor to read the regular file that an O_PATH descriptor names; OSError if it is none."""
    if not is_regular(posix.fstat(fd)) or syscalls.filesystem_magic(fd) in syscalls.KERNEL_MAGICS:
        raise OSError(syscalls.EINVAL, "it is not a regular file")
    return reopened(fd, posix.O_RDONLY | _NO_WAIT)


def _entries(fd: int) -> Iterator[posix.DirEntry[str]]:
    with suppress(OSError), posix.scandir(fd) as entries:
        yield from islice(entries, MAX_NAMES)


def number(status: posix.stat_result) -> Number:
    return posix.major(status.st_rdev), posix.minor(status.st_rdev)
