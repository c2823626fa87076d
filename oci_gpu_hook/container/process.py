# SPDX-License-Identifier: Apache-2.0
"""The container's first process, looked at through one descriptor of its folder in /proc: a number may name another
process a moment later, and through the descriptor every look fails then (ESRCH).  Reads only.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.errors import BundleError
from oci_gpu_hook.kernel import procfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

# The initial user namespace's number is part of the kernel's interface (PROC_USER_INIT_INO, include/linux/proc_ns.h).
INITIAL_USER_NAMESPACE = 0xEFFFFFFD


class Process:
    """A process that an engine has made for a container, and that has not started its program yet.  is_caller: it is
    this one instead, in the mount namespace of its caller, of whom nothing is known.
    """

    def __init__(self, pid: int, *, is_caller: bool = False) -> None:
        """BundleError if `pid` is gone, or has no mount namespace of its own: then it is not a container's."""
        self.pid, self.is_caller = pid, is_caller
        try:
            self._fd = posix.open(f"/proc/{pid}", posix.O_PATH | posix.O_DIRECTORY | posix.O_CLOEXEC)
        except OSError as err:
            raise self._unseen(err) from err
        # A kernel thread has the namespace of PID 1.  In a user namespace PID 1 may have our caller's.
        mounts = self.namespace("mnt")
        for other, whose in (("self", "this hook's own"), ("1", "the host's")):
            may_share = is_caller and (other == "self" or self.in_user_namespace())
            if mounts == _inode(f"/proc/{other}/ns/mnt") and not may_share:
                raise BundleError(f"the container's process {pid} is in {whose} mount namespace")

    @classmethod
    def caller(cls) -> Process:
        """This process itself, if it runs in the mount namespace of the container that its caller is making."""
        # In a PID namespace of its own we may have another number than in this procfs.
        return cls(int(posix.readlink("/proc/self")), is_caller=True)

    def open(self, name: str, flags: int) -> int:
        """Links such as ``root`` and ``ns/mnt`` are followed."""
        return int(self._look(posix.open, name, flags | posix.O_CLOEXEC))

    def read(self, name: str) -> bytes:
        return b"".join([*self.pieces(name)])

    def pieces(self, name: str) -> Iterator[bytes]:
        try:
            yield from procfile.pieces(name, self._fd)
        except OSError as err:
            raise self._unseen(err) from err

    def namespace(self, kind: str) -> int:
        return int(self._look(posix.stat, f"ns/{kind}").st_ino)

    def program(self) -> str:
        return str(self._look(posix.readlink, "exe"))

    def in_user_namespace(self) -> bool:
        """Whether it is outside the initial user namespace, where mknod of a device is refused."""
        return self.namespace("user") != INITIAL_USER_NAMESPACE

    def _look(self, call: Callable[..., Any], *words: object) -> Any:
        try:
            return call(*words, dir_fd=self._fd)
        except OSError as err:
            raise self._unseen(err) from err

    def _unseen(self, err: OSError) -> BundleError:
        return BundleError(f"the container's process {self.pid} cannot be looked into: {err.strerror}")


def _inode(path: str) -> int:
    """The inode of a namespace; 0, which none has, if it may not be seen."""
    try:
        return posix.stat(path).st_ino
    except OSError:
        return 0
