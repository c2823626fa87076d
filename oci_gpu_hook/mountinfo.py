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
    # A newline inside a field is written as \\012.
    _, found, rest = (b"\n" + b"".join(pieces)).partition(b"\n%d " % mount_id)
    if not found:
        return None
    line = rest.partition(b"\n")[0].decode("utf-8", "surrogateescape")
    mount, _, filesystem = line.partition(" - ")
    return Mount(tuple(mount.split(" ")[5:]), filesystem.split(" ", 2)[2])
