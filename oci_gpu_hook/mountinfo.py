# SPDX-License-Identifier: Apache-2.0
"""One mount as /proc/PID/mountinfo tells of it (proc_pid_mountinfo(5)).  Reads only."""

from __future__ import annotations

import posix

from oci_gpu_hook.record import NamedTuple


class Mount(NamedTuple):
    """One line.  tags: the optional fields, such as ``shared:42``; filesystem_options: those of the superblock."""

    tags: tuple[str, ...]
    filesystem_options: str


def find(process: int | str, mount_id: int) -> Mount | None:
    """The mount `mount_id` in the mount namespace of `process`, a pid or ``self``; None where it has no such mount."""
    fd = posix.open(f"/proc/{process}/mountinfo", posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        pieces = []
        while piece := posix.read(fd, 1 << 16):
            pieces.append(piece)
    finally:
        posix.close(fd)
    start = b"%d " % mount_id
    for line in b"".join(pieces).split(b"\n"):
        if line.startswith(start):
            mount, _, filesystem = line.decode("utf-8", "surrogateescape").partition(" - ")
            return Mount(tuple(mount.split(" ")[6:]), filesystem.split(" ", 2)[2])
    return None
