# SPDX-License-Identifier: Apache-2.0
"""Open a source on the host by a path that root alone could lead elsewhere.

Any user can make /tmp/nvidia-mps first, or a link of that name to what only root may see.  So a path is walked name by
name, by descriptor.  A name counts, and a link is followed, in a folder of root's that root alone may write to; in a
sticky folder such as /tmp, if what it names is root's own, and no link.  In a service's folder, whose user made it, a
socket alone counts.  Reads only.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.kernel import syscalls
from oci_gpu_hook.kernel.descriptors import NAMED, closing, content, reopened
from oci_gpu_hook.kernel.filetypes import WRITABLE_BY_OTHERS, is_link, is_open_to_others, is_regular, is_socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Union

    Status = posix.stat_result
    Roots = Union[tuple[int, ...], range]

_STICKY, _MAX_LINKS = 0o1000, 40


class UntrustedError(OSError):
    """Others than root could have made what the path names, or could exchange it; the text says where."""

    def __init__(self, message: str) -> None:
        super().__init__(syscalls.EPERM, message)

    def __str__(self) -> str:
        return str(self.strerror)


def open_source(root_fd: int, path: str, owner: int | None = 0, roots: Roots | None = None) -> int:
    """An O_PATH descriptor; UntrustedError, OSError.  owner: a user whose own things count in a sticky folder beside
    root's, None for every user; roots: the users who count as root, if more than root itself do.
    """
    top = posix.fstat(root_fd)
    # In a user namespace the host's root has another number: whose "/" is.
    roots = roots or (0, top.st_uid)
    opened = [posix.dup(root_fd)]
    folders = [(opened[0], top)]
    names = path.split("/")[::-1]
    links = 0
    try:
        while names:
            name = names.pop()
            if name in ("", "."):
                continue
            if name == "..":
                folders = folders[:-1] or folders
                continue
            folder, parent = folders[-1]
            fd = posix.open(name, NAMED, dir_fd=folder)
            opened.append(fd)
            status = posix.fstat(fd)
            if fault := _fault(parent, status, name, not names, roots, owner):
                raise UntrustedError(fault)
            if not is_link(status):
                folders.append((fd, status))
                continue
            links += 1
            if links > _MAX_LINKS:
                raise UntrustedError("too many links lead to it")
            text = posix.readlink("", dir_fd=fd)
            names += text.split("/")[::-1]
            if text.startswith("/"):
                folders = folders[:1]
        opened.remove(folders[-1][0])
        return folders[-1][0]
    finally:
        for fd in opened:
            posix.close(fd)


def read_source(root_fd: int, path: str, largest: int) -> bytes | None:
    """None if others than root could have written it, or it is larger."""
    try:
        with closing(open_source(root_fd, path)) as named:
            status = posix.fstat(named)
            # "/" names root's number in a user namespace.
            if not is_regular(status) or is_open_to_others(status, posix.fstat(root_fd).st_uid):
                return None
            with closing(reopened(named)) as fd:
                return content(fd, largest)
    except (OSError, ValueError):  # the latter for what can be no path
        return None


def _fault(parent: Status, status: Status, name: str, is_last: bool, roots: Roots, owner: int | None) -> str:
    """Why others could have put what has this `status` into its folder, or could exchange it; "" if they cannot."""
    if parent.st_uid not in roots:
        is_services = is_last and is_socket(status) and not parent.st_mode & WRITABLE_BY_OTHERS
        return "" if is_services else f"{name!r} lies in a folder of user {parent.st_uid}'s"
    if not parent.st_mode & WRITABLE_BY_OTHERS:
        return ""
    if not parent.st_mode & _STICKY:
        return f"{name!r} lies in a folder that others than root may write to"
    is_theirs = owner is not None and status.st_uid not in (0, owner)
    what = "a link" if is_link(status) else f"user {status.st_uid}'s" if is_theirs else ""
    return what and f"{name!r} is {what}, in a folder that others than root may write to"
