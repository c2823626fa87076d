# SPDX-License-Identifier: Apache-2.0
"""What we keep for the starts to come, in /run: read only where it is ours, written whole or not at all.

Must not know what is in a file: whoever reads one checks that.
"""

from __future__ import annotations

import posix

from oci_gpu_hook import linux
from oci_gpu_hook.host.root import HostRoot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FOLDER = "/run/oci-gpu-hook"
INVENTORY = "inventory"

# A host with 16 GPUs and a hundred MIG devices has 30 KiB; one larger than this serves only to keep us busy.
LARGEST = 4 << 20

_WRITABLE_BY_OTHERS = 0o022
_FILE_TYPE = 0o170000
_REGULAR = 0o100000


def open_folder(root: HostRoot) -> int:
    """The folder, for names in it; OSError where it is not there, or where others may put files."""
    fd = root.open(FOLDER, posix.O_PATH | posix.O_DIRECTORY | posix.O_NOFOLLOW)
    if not _is_ours(posix.fstat(fd)):
        posix.close(fd)
        raise PermissionError(linux.EPERM, "others than root may write to it", FOLDER)
    return fd


def read(root: HostRoot, name: str) -> bytes | None:
    """The bytes of a file, if it is a plain one that only root or we ourselves can have put there."""
    try:
        folder = open_folder(root)
        try:
            flags = posix.O_RDONLY | posix.O_NOFOLLOW | posix.O_NONBLOCK | posix.O_CLOEXEC
            fd = posix.open(name, flags, dir_fd=folder)
        finally:
            posix.close(folder)
    except OSError:
        return None
    try:
        status = posix.fstat(fd)
        is_plain = status.st_mode & _FILE_TYPE == _REGULAR
        if not is_plain or not _is_ours(status) or status.st_size > LARGEST:
            return None
        return posix.read(fd, status.st_size)
    except OSError:
        return None
    finally:
        posix.close(fd)


def write(root: HostRoot, name: str, data: bytes) -> None:
    """A file with these bytes, in the place of the one of that name; OSError where it cannot be.

    It is written beside that name and renamed: readers see the old one or the new one, whole.
    """
    folder = open_folder(root)
    # The pid keeps two hooks that write at once out of each other's file; O_EXCL refuses a link set in its place.
    staged = f"{name}.{posix.getpid()}"
    try:
        fd = _create(folder, staged)
        try:
            while data:
                data = data[posix.write(fd, data) :]
            posix.rename(staged, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            posix.unlink(staged, dir_fd=folder)
            raise
        finally:
            posix.close(fd)
    finally:
        posix.close(folder)


def plain(value: Any) -> Any:
    """A record as marshal takes it, which knows tuples themselves and none of their classes."""
    return tuple([plain(item) for item in value]) if isinstance(value, tuple) else value


def _create(folder: int, name: str) -> int:
    """A new file that all may read, whatever the engine's umask."""
    flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_CLOEXEC
    try:
        fd = posix.open(name, flags, 0o644, dir_fd=folder)
    except FileExistsError:
        # Left by one of the same number that was killed.
        posix.unlink(name, dir_fd=folder)
        fd = posix.open(name, flags, 0o644, dir_fd=folder)
    posix.chmod(fd, 0o644)
    return fd


def _is_ours(status: posix.stat_result) -> bool:
    return status.st_uid in (0, posix.geteuid()) and not status.st_mode & _WRITABLE_BY_OTHERS
