# SPDX-License-Identifier: Apache-2.0
"""The host's root as one descriptor, of ``/`` or of another (``--host-root``): no link leads out of it.  Reads only."""

from __future__ import annotations

import posix

from oci_gpu_hook.errors import UsageError
from oci_gpu_hook.host.source import UntrustedError, open_source
from oci_gpu_hook.kernel import syscalls
from oci_gpu_hook.kernel.descriptors import closing, content
from oci_gpu_hook.kernel.filetypes import is_folder, openness

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, TypeVar

    Found = TypeVar("Found")

# Not all folders that are read belong to root, and a link in one may lead to /dev/zero.
_LARGEST = 8 << 20
_LIST = posix.O_RDONLY | posix.O_DIRECTORY


class HostRoot:
    """remember: whether what is found there is saved in /run."""

    def __init__(self, path: str = "/", *, remember: bool = False) -> None:
        self.path, self.remember = path, remember
        # For "/" the kernel resolves every path as we want it: one call does what takes three for another root.
        self._is_hosts_own = path == "/"
        # Sources that are open for those who will clone them, by path and owner.
        self._held: dict[tuple[str, int], int] = {}
        try:
            self.fd = posix.open(path, posix.O_PATH | posix.O_DIRECTORY | posix.O_CLOEXEC)
        except OSError as err:
            raise UsageError(f"cannot open --host-root {path}: {err.strerror}") from err

    def __enter__(self) -> HostRoot:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in (self.fd, *self._held.values()):
            posix.close(fd)

    @property
    def roots(self) -> tuple[int, int]:
        """The users who count as root: in a user namespace the host's root has another number, whose / is."""
        return 0, posix.fstat(self.fd).st_uid

    def open(self, path: str, flags: int = posix.O_PATH) -> int:
        """Links are followed inside the root; OSError as open(2)."""
        if self._is_hosts_own:
            return posix.open(path, flags | posix.O_CLOEXEC)
        return syscalls.openat2(self.fd, path, flags, resolve=syscalls.RESOLVE_BELOW)

    def clone(self, path: str, mount_attr: bytes) -> int:
        """A detached copy of the mount that `path` lies on, from `path` down; mount_attr: see `syscalls.mount_attr`."""
        if self._is_hosts_own:
            tree = syscalls.open_tree(syscalls.AT_FDCWD, path)
        else:
            with closing(self.open(path)) as fd:
                tree = syscalls.open_tree(fd)
        # If that fails, the descriptor closes with the process.
        syscalls.mount_setattr(tree, mount_attr)
        return tree

    def clone_source(self, path: str, owner: int, mount_attr: Callable[[posix.stat_result], bytes]) -> int:
        """owner, UntrustedError: see `open_source`.  What `source` holds is cloned, whatever lies there by now."""
        held = self._held.pop((path, owner), None)
        with closing(open_source(self.fd, path, owner) if held is None else held) as fd:
            attributes = mount_attr(posix.fstat(fd))
            tree = syscalls.open_tree(fd)
        syscalls.mount_setattr(tree, attributes)
        return tree

    def source(self, path: str, owner: int = 0, *, hold: bool = False) -> tuple[bool, str] | None:
        """Whether it is a folder, and why it cannot be trusted or ""; None for nothing.  hold: for `clone_source`."""
        if hold and (path, owner) in self._held:
            posix.close(self._held.pop((path, owner)))
        try:
            fd = open_source(self.fd, path, owner)
        except UntrustedError as err:
            return False, str(err)
        except (OSError, ValueError):
            return None
        found = is_folder(posix.fstat(fd))
        if hold:
            self._held[path, owner] = fd
        else:
            posix.close(fd)
        return found, ""

    def openness(self, path: str) -> str:
        """Why others than root may have made what lies at `path`, or may write to it; "" if none can."""
        source, status = self.source(path), self.stat(path)
        return (source[1] if source else "") or (openness(status, self.roots) if status else "")

    def stat(self, path: str) -> posix.stat_result | None:
        if self._is_hosts_own:
            try:
                return posix.stat(path)
            except (OSError, ValueError):  # the latter for what cannot be a path
                return None
        return self._of(path, posix.O_PATH, posix.fstat)

    def read(self, path: str) -> bytes | None:
        """None if there is none that we may read, or it is too large."""
        return self._of(path, posix.O_RDONLY | posix.O_NONBLOCK, lambda fd: content(fd, _LARGEST))

    def text(self, path: str) -> str:
        return (self.read(path) or b"").decode("utf-8", "replace")

    def boot_id(self) -> str:
        """What tells this boot of the kernel from another (random(4))."""
        return self.text("/proc/sys/kernel/random/boot_id").strip()

    def names(self, path: str) -> list[str]:
        if not self._is_hosts_own:
            return sorted(self._of(path, _LIST, posix.listdir) or ())
        try:
            # By a descriptor it takes seven system calls more.
            return sorted(posix.listdir(path))
        except (OSError, ValueError):
            return []

    def inodes(self, path: str) -> list[tuple[str, int]]:
        found = self._of(path, _LIST, lambda fd: [(entry.name, entry.inode()) for entry in posix.scandir(fd)])
        return sorted(found or ())

    def link(self, path: str) -> str | None:
        return self._of(path, posix.O_PATH | posix.O_NOFOLLOW, lambda fd: posix.readlink("", dir_fd=fd))

    def real(self, path: str) -> str:
        """Without links; `path` itself if there is nothing."""
        found = self._of(path, posix.O_PATH, _name) or ""
        top = _name(self.fd).rstrip("/")
        return found[len(top) :] if found.startswith(f"{top}/") else path

    def _of(self, path: str, flags: int, act: Callable[[int], Found]) -> Found | None:
        try:
            with closing(self.open(path, flags)) as fd:
                return act(fd)
        except (OSError, ValueError):
            return None


def _name(fd: int) -> str:
    return posix.readlink(f"/proc/self/fd/{fd}")
