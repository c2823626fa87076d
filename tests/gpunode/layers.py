# SPDX-License-Identifier: Apache-2.0
"""Adds files to host folders inside this mount namespace, so that the host's folders stay as found.

By an overlay with its upper part on the node's tmpfs.  In /tmp and sysfs, where others come and go, by a tmpfs in the
folder's place with every entry of the host's folder bound into it.
Must not: write to anything but the scratch folder it is given, which lies on a tmpfs of the node.
"""

from __future__ import annotations

import os
import stat

from . import linux


def copy_attributes(source: str, target: str) -> None:
    status = os.stat(source)
    os.chmod(target, stat.S_IMODE(status.st_mode))
    os.chown(target, status.st_uid, status.st_gid)


class Layer:
    """What is added to one host folder; `mount` puts it in force."""

    def __init__(self, root: str, scratch: str) -> None:
        self.root = root
        self.scratch = f"{scratch}/{root.strip('/').replace('/', '-')}"
        self.upper = f"{self.scratch}/upper"
        os.makedirs(self.upper)
        os.mkdir(f"{self.scratch}/work")
        copy_attributes(root, self.upper)

    def place(self, path: str) -> str:
        """Where to write what is to appear at `path`; its parents are made as the host has them."""
        parents = []
        parent = os.path.dirname(path)
        while parent != self.root:
            parents.append(parent)
            parent = os.path.dirname(parent)
        for parent in reversed(parents):
            target = self.upper + parent[len(self.root) :]
            if os.path.isdir(target):
                continue
            os.mkdir(target, 0o755)
            if os.path.isdir(parent):
                copy_attributes(parent, target)
        return self.upper + path[len(self.root) :]

    def mount(self) -> None:
        """Put it in force."""
        held = self._hold_submounts()
        options = f"lowerdir={self.root},upperdir={self.upper},workdir={self.scratch}/work"
        linux.mount("overlay", self.root, "overlay", options=options)
        for path, holder in held:
            linux.mount(holder, path, flags=linux.MS_BIND | linux.MS_REC)

    def _hold_submounts(self) -> list[tuple[str, str]]:
        """An overlay shows what lies under the host's submounts: keep them to put them back."""
        held = []
        points = {point for point, _ in linux.mounts() if point.startswith(f"{self.root}/")}
        tops = [p for p in points if not any(p.startswith(f"{other}/") for other in points)]
        for number, point in enumerate(sorted(tops)):
            holder = f"{self.scratch}/held-{number}"
            make_mount_point(holder, os.path.isdir(point))
            linux.mount(point, holder, flags=linux.MS_BIND | linux.MS_REC)
            held.append((point, holder))
        return held


def bind_entries(source: str, target: str) -> None:
    """Show every entry of `source` in `target`, except where `target` has its own already."""
    for entry in os.scandir(source):
        place = f"{target}/{entry.name}"
        folder = entry.is_dir(follow_symlinks=False)
        try:
            if os.path.lexists(place):
                if folder and os.path.isdir(place):
                    bind_entries(entry.path, place)
            elif entry.is_symlink():
                os.symlink(os.readlink(entry.path), place)
            else:
                make_mount_point(place, folder)
                linux.mount(entry.path, place, flags=linux.MS_BIND | linux.MS_REC)
        except FileNotFoundError:
            # Gone since it was listed; in /tmp that is everyday life.
            if os.path.lexists(place):
                (os.rmdir if folder else os.unlink)(place)


def make_mount_point(path: str, folder: bool) -> None:
    if folder:
        os.mkdir(path)
    else:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
