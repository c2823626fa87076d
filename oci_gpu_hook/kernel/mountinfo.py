# SPDX-License-Identifier: Apache-2.0
"""The mounts of one mount namespace, as /proc/PID/mountinfo lists them (proc_pid_mountinfo(5)).  Pure.

A node has some hundred mounts, and of a few of them something must be known: a line is looked for, and the rest is
never taken apart.
"""

from __future__ import annotations

from oci_gpu_hook.record import NamedTuple


class Mount(NamedTuple):
    """One mount.  tags: the optional fields, such as ``shared:42``; options: those of the filesystem."""

    tags: tuple[str, ...]
    options: str


class MountTable(NamedTuple):
    """All mounts of a namespace; data: the file's content."""

    data: bytes

    def mount(self, id: int) -> Mount | None:
        """The mount with the number `id`, as statx(2) gives it; None where there is none."""
        # The kernel writes a newline inside a field as \\012, and a space as \\040.
        start = b"%d " % id
        at = 0 if self.data.startswith(start) else self.data.find(b"\n" + start) + 1
        if not at and not self.data.startswith(start):
            return None
        line = self.data[at:].partition(b"\n")[0].decode("utf-8", "surrogateescape")
        mount, _, filesystem = line.partition(" - ")
        try:
            _, _, _, _, _, _, *tags = mount.split(" ")
            _, _, options = filesystem.split(" ", 2)
            return Mount(tuple(tags), options)
        except ValueError:
            # No kernel writes such a line.
            return None

    def has_device(self, device: str) -> bool:
        """Whether a filesystem is mounted anywhere in the namespace."""
        number = device.encode()
        # Anyone may name the source of a FUSE mount like a number, so a find is looked at once more.
        return b" %b " % number in self.data and [number] in [
            line.split(b" ", 3)[2:3] for line in self.data.split(b"\n")
        ]
