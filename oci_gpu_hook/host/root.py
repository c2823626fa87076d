# SPDX-License-Identifier: Apache-2.0
"""The host's root as one descriptor: every host path is resolved below it.

So a driver container's root, a test's tree or a mounted image can stand in for ``/`` (``--host-root``), and a link in
it, absolute or not, cannot lead out of it.  Reads only.
"""

from __future__ import annotations

import posix

from oci_gpu_hook import linux
from oci_gpu_hook.errors import UsageError

# Of 64 KiB: not all folders that are looked into are root's, and a link in one may lead to /dev/zero.
_MOST_PIECES = 1024

_RESOLVE = linux.RESOLVE_IN_ROOT | linux.RESOLVE_NO_MAGICLINKS


class HostRoot:
    """A directory that stands for the host's ``/``.  Paths are absolute and mean what they would mean in it."""

    def __init__(self, path: str = "/") -> None:
        self.path = path
        # Below "/" the kernel's own resolution is the one we want, and one call does what else takes three.
        self._is_hosts_own = self._clones_with_attributes = path == "/"
        try:
            self.fd = posix.open(path, posix.O_PATH | posix.O_DIRECTORY | posix.O_CLOEXEC)
        except OSError as err:
            raise UsageError(f"cannot open --host-root {path}: {err.strerror}") from err

    def close(self) -> None:
        """Give the descriptor back."""
        posix.close(self.fd)

    def open(self, path: str, flags: int = posix.O_PATH) -> int:
        """A descriptor of `path`, links followed inside the root; OSError as open(2)."""
        if self._is_hosts_own:
            return posix.open(path, flags | posix.O_CLOEXEC)
        return linux.openat2(self.fd, path, flags, resolve=_RESOLVE)

    def clone(self, path: str, mount_attr: bytes) -> int:
        """A detached copy of the mount that `path` lies on, from `path` down; links are followed.

        mount_attr: what it is to be like, of linux.mount_attr.
        """
        if self._clones_with_attributes:
            try:
                return linux.open_tree_attr(linux.AT_FDCWD, path, linux.OPEN_TREE_CLONE, mount_attr)
            except OSError as err:
                # Before Linux 6.15, or where a filter of system calls does not know it.
                if err.errno not in (linux.ENOSYS, linux.EPERM):
                    raise
                self._clones_with_attributes = False
        tree = self._clone(path)
        try:
            linux.mount_setattr(tree, mount_attr)
        except OSError:
            posix.close(tree)
            raise
        return tree

    def _clone(self, path: str) -> int:
        if self._is_hosts_own:
            return linux.open_tree(linux.AT_FDCWD, path, linux.OPEN_TREE_CLONE)
        fd = self.open(path)
        try:
            return linux.open_tree(fd, "", linux.OPEN_TREE_CLONE | linux.AT_EMPTY_PATH)
        finally:
            posix.close(fd)

    def stat(self, path: str) -> posix.stat_result | None:
        """What `path` leads to; None where there is nothing."""
        if self._is_hosts_own:
            try:
                return posix.stat(path)
            except OSError:
                return None
        try:
            fd = self.open(path)
        except OSError:
            return None
        try:
            return posix.fstat(fd)
        finally:
            posix.close(fd)

    def read(self, path: str) -> bytes | None:
        """The whole of a file; None where there is none, none that we may read, or one that has no end."""
        try:
            fd = self.open(path, posix.O_RDONLY | posix.O_NONBLOCK)
        except OSError:
            return None
        try:
            pieces = []
            while piece := posix.read(fd, 1 << 16):
                pieces.append(piece)
                if len(pieces) > _MOST_PIECES:
                    return None
            return b"".join(pieces)
        except OSError:
            return None
        finally:
            posix.close(fd)

    def names(self, path: str) -> list[str]:
        """The names in a directory, sorted; none where there is no directory."""
        try:
            fd = self.open(path, posix.O_RDONLY | posix.O_DIRECTORY)
        except OSError:
            return []
        try:
            return sorted(posix.listdir(fd))
        finally:
            posix.close(fd)

    def inodes(self, path: str) -> list[tuple[str, int]]:
        """The names in a directory with their inode numbers, sorted; none where there is no directory."""
        try:
            fd = self.open(path, posix.O_RDONLY | posix.O_DIRECTORY)
        except OSError:
            return []
        try:
            with posix.scandir(fd) as entries:
                return sorted([(entry.name, entry.inode()) for entry in entries])
        finally:
            posix.close(fd)

    def link(self, path: str) -> str | None:
        """The text of the symbolic link at `path`; None where there is none."""
        try:
            fd = self.open(path, posix.O_PATH | posix.O_NOFOLLOW)
        except OSError:
            return None
        try:
            return posix.readlink("", dir_fd=fd)
        except OSError:
            return None
        finally:
            posix.close(fd)

    def real(self, path: str) -> str:
        """Where `path` leads to, as a path below this root without links; `path` itself where there is nothing."""
        try:
            fd = self.open(path)
        except OSError:
            return path
        try:
            found = posix.readlink(f"/proc/self/fd/{fd}")
        finally:
            posix.close(fd)
        top = posix.readlink(f"/proc/self/fd/{self.fd}").rstrip("/")
        return found[len(top) :] if found.startswith(f"{top}/") else path
