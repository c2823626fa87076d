# SPDX-License-Identifier: Apache-2.0
"""Append to a log that a caller names: a regular file of its own, where root or the caller alone can write.

Root's caller may be a user's: in a folder of that user's a link, a FIFO or another file could take the log's name.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.host.source import UntrustedError, open_source
from oci_gpu_hook.kernel import syscalls
from oci_gpu_hook.kernel.descriptors import reopened
from oci_gpu_hook.kernel.filetypes import is_open_to_others, is_regular

_APPEND = posix.O_WRONLY | posix.O_APPEND | posix.O_CLOEXEC
_NAMED = posix.O_PATH | posix.O_NOFOLLOW | posix.O_CLOEXEC
_OURS = {"/dev/stdout": 1, "/dev/stderr": 2}


def write(path: str, lines: list[str]) -> None:
    """path: "" for none; OSError if it cannot be written, or is not ours."""
    data = "".join([f"{line}\n" for line in lines]).encode("utf-8", "backslashreplace")
    if path in _OURS:
        posix.write(_OURS[path], data)
    elif path:
        posix.write(_opened(path), data)


def _opened(path: str) -> int:
    folder, slash, name = path.rpartition("/")
    if not (slash and path.startswith("/")):
        raise UntrustedError("it is not an absolute path")
    top = posix.open("/", posix.O_PATH | posix.O_DIRECTORY | posix.O_CLOEXEC)
    host, own = posix.fstat(top).st_uid, posix.geteuid()
    parent = open_source(top, folder, host, (0, host, own))
    if is_open_to_others(posix.fstat(parent), own):
        raise UntrustedError("others may write to its folder")
    # The descriptors close with the process, which ends here.
    try:
        return posix.open(name, _APPEND | posix.O_CREAT | posix.O_EXCL, 0o600, dir_fd=parent)
    except FileExistsError:
        named = posix.open(name, _NAMED, dir_fd=parent)
        status = posix.fstat(named)
        if not is_regular(status) or status.st_nlink != 1 or status.st_uid != own:
            raise UntrustedError("it is not a file of the caller's own") from None
        if syscalls.filesystem_magic(named) in syscalls.KERNEL_MAGICS:
            raise UntrustedError("it is one of the kernel's own") from None
        return reopened(named, _APPEND)
