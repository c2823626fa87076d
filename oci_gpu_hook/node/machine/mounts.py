# SPDX-License-Identifier: Apache-2.0
"""The mounts of a mount namespace by their mount points (proc_pid_mountinfo(5)), for commands.  Pure.

A start reads no such table: it would pay for each mount of the node.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.kernel.mountinfo import parsed

# Filesystems that answer by themselves: no daemon of a user's and no server is asked.  An overlay asks those that it is
# made of: one that a user has made is no such filesystem.
_LOCAL = frozenset(
    (
        *("tmpfs", "ramfs", "rootfs", "devtmpfs", "overlay", "ext2", "ext3", "ext4", "xfs"),
        *("btrfs", "f2fs", "zfs", "bcachefs", "squashfs", "erofs", "iso9660", "vfat"),
    )
)


class Mounts:
    """The topmost mount at each mount point.

    is_ours: whether it is our own namespace, whose "/" this program lies on, whatever answers there.
    """

    def __init__(self, mountinfo: bytes, *, is_ours: bool = False) -> None:
        self.points = {mount.point: mount for mount in filter(None, map(parsed, mountinfo.split(b"\n")))}
        self._is_ours = is_ours

    def way(self, path: str) -> list[str]:
        """The mount points on the way to `path`, from the top down."""
        parts = path.rstrip("/").split("/")
        ways = ["/".join(parts[:end]) or "/" for end in range(1, len(parts) + 1)]
        return [way for way in ways if way in self.points]

    def is_local(self, path: str) -> bool:
        """Whether every filesystem on the way to `path` answers by itself; a user waits for his own FUSE daemons."""
        way = [point for point in self.way(path) if point != "/" or not self._is_ours]
        return posix.geteuid() != 0 or _LOCAL.issuperset([self.points[point].type for point in way])

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
    lines = [parsed(line) for line in mountinfo.split(b"\n") if b" / " in line]
    return next(((mount.device, mount.root) for mount in filter(None, lines) if mount.point == "/"), None)
