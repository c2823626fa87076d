# SPDX-License-Identifier: Apache-2.0
"""The mounts of a mount namespace by their mount points (proc_pid_mountinfo(5)), for commands.  Pure.

A start reads no such table: it would pay for each mount of the node.
"""

from __future__ import annotations

import posix
import re

from oci_gpu_hook.record import NamedTuple

# Filesystems that answer by themselves: no daemon of a user's and no server is asked.  An overlay asks those that it is
# made of: one that a user has made is no such filesystem.
_LOCAL = frozenset(
    (
        *("tmpfs", "ramfs", "rootfs", "devtmpfs", "overlay", "ext2", "ext3", "ext4", "xfs"),
        *("btrfs", "f2fs", "zfs", "bcachefs", "squashfs", "erofs", "iso9660", "vfat"),
    )
)
_ESCAPE = re.compile(rb"\\(040|011|012|134)")


class Mount(NamedTuple):
    """A mount: its number, its filesystem's device and type, and the folder or file of it that the mount shows."""

    id: int
    device: str
    root: str
    kind: str


class Mounts:
    """The topmost mount at each mount point.

    is_ours: whether it is our own namespace, whose "/" this program lies on, whatever answers there.
    """

    def __init__(self, mountinfo: bytes, *, is_ours: bool = False) -> None:
        found = [_parsed(line) for line in mountinfo.split(b"\n")]
        self.points = dict([item for item in found if item])
        self._is_ours = is_ours

    def way(self, path: str) -> list[str]:
        """The mount points on the way to `path`, from the top down."""
        parts = path.rstrip("/").split("/")
        ways = ["/".join(parts[:end]) or "/" for end in range(1, len(parts) + 1)]
        return [way for way in ways if way in self.points]

    def is_local(self, path: str) -> bool:
        """Whether every filesystem on the way to `path` answers by itself; a user waits for his own FUSE daemons."""
        way = [point for point in self.way(path) if point != "/" or not self._is_ours]
        return posix.geteuid() != 0 or _LOCAL.issuperset([self.points[point].kind for point in way])

    def shown(self, path: str) -> tuple[str, str] | None:
        """The filesystem's device, and the place in it, of what lies at `path` if no link leads there; else None."""
        way = self.way(path)
        if not way:
            return None
        mount, top = self.points[way[-1]], way[-1].rstrip("/")
        return mount.device, mount.root.rstrip("/") + path.rstrip("/")[len(top) :] or "/"


def root_of(mountinfo: bytes) -> tuple[str, str] | None:
    """What a process has as its root, as `Mounts.shown` gives it; None if its root is no mount point.

    Of the mounts at "/" it is the first: those that follow lie over it.
    """
    lines = [_parsed(line) for line in mountinfo.split(b"\n") if b" / " in line]
    return next(((mount.device, mount.root) for point, mount in filter(None, lines) if point == "/"), None)


def _parsed(line: bytes) -> tuple[str, Mount] | None:
    """A mount point and its mount; None for a line that is none."""
    fields, _, filesystem = line.partition(b" - ")
    words = fields.split(b" ")
    if len(words) < 6 or not words[0].isdigit():
        return None
    device, kind = words[2].decode("ascii", "replace"), filesystem.partition(b" ")[0].decode("ascii", "replace")
    # As of a node that the driver has made again.
    place = _unescaped(words[3]).removesuffix("//deleted")
    return _unescaped(words[4]), Mount(int(words[0]), device, place, kind)


def _unescaped(field: bytes) -> str:
    """A field of mountinfo: the kernel writes space, tab, newline and backslash as octal numbers."""
    plain = _ESCAPE.sub(lambda found: bytes([int(found.group(1), 8)]), field)
    return plain.decode("utf-8", "surrogateescape")
