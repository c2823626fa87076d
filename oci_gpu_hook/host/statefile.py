# SPDX-License-Identifier: Apache-2.0
"""Files in /run that are saved for later starts.

A file is read only if no other user can have written it, and is written whole or not at all.  `lock` alone locks what
is the node's.  Must not know what is in a file: its reader checks that.
"""

from __future__ import annotations

import marshal
import posix
from time import monotonic, sleep, time

from oci_gpu_hook.errors import ApplyError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel import syscalls
from oci_gpu_hook.kernel.descriptors import closing, content, replace
from oci_gpu_hook.kernel.filetypes import is_open_to_others, is_regular

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, TypeVar

    from oci_gpu_hook.record import NamedTuple

    Record = TypeVar("Record", bound=NamedTuple)

FOLDER = "/run/oci-gpu-hook"
# There only if a GPU is not healthy.
UNHEALTHY = "unhealthy"
# Written by a start that goes by less than NVML knows: oci-gpu-hook-inventory.path watches it and starts a refresh.
REFRESH_WANTED = "refresh-wanted"

# A refresh that settles nothing, because NVML does not answer, must not follow the restarts of a container.
REFRESH_INTERVAL = 30
# Longer than any holder takes on a busy node, and far shorter than a start may take.
LOCK_SECONDS = 10.0
_POLL_SECONDS = 0.01
# The inventory of a host with 16 GPUs and a hundred MIG devices has 30 KiB.  A larger file is not read or written.
LARGEST = 1 << 20
LENGTH_BYTES = 4


class LockedError(ApplyError):
    """Another process has held a lock for too long."""


def open_folder(host: HostRoot, *, make: bool = False) -> int:
    """OSError if it is missing and not to be made, or if others may put files into it."""
    if make:
        path = f"{host.path.rstrip('/')}{FOLDER}"
        try:
            posix.mkdir(path, 0o755)
            with closing(posix.open(path, posix.O_DIRECTORY | posix.O_NOFOLLOW | posix.O_CLOEXEC)) as made:
                posix.fchmod(made, 0o755)  # whatever the engine's umask is
        except FileExistsError:
            pass
    fd = host.open(FOLDER, posix.O_PATH | posix.O_DIRECTORY | posix.O_NOFOLLOW)
    if is_open_to_others(posix.fstat(fd), posix.geteuid()):
        posix.close(fd)
        raise PermissionError(syscalls.EPERM, f"{FOLDER} is not root's alone", FOLDER)
    return fd


def lock(host: HostRoot, name: str, seconds: float = LOCK_SECONDS) -> int:
    """The lock ends with the descriptor.  OSError as `open_folder`; LockedError after `seconds`."""
    with closing(open_folder(host, make=True)) as folder:
        flags = posix.O_RDWR | posix.O_CREAT | posix.O_NOFOLLOW | posix.O_NONBLOCK | posix.O_CLOEXEC
        fd = posix.open(name, flags, 0o600, dir_fd=folder)
    until = monotonic() + seconds
    # Not by waiting in the kernel: who holds it may be stopped, and who waits could say nothing then.
    try:
        while not _takes(fd):
            if monotonic() > until:
                why = f"another process holds {FOLDER}/{name} and has not released it within {seconds:g} seconds"
                raise LockedError(why, "root can end it: 'lslocks' names it")
            sleep(_POLL_SECONDS)
    except Exception:
        posix.close(fd)
        raise
    return fd


def _takes(fd: int) -> bool:
    """Whether this process has the lock now; it goes with the process."""
    try:
        # By fcntl(2), for which the file must be open for writing: flock(2) lets any reader hold it, and any child.
        posix.lockf(fd, posix.F_TLOCK, 0)
        return True
    except BlockingIOError:
        return False


def read_file(host: HostRoot, name: str) -> bytes | None:
    """None if it is not a regular file that only root or this user can have written."""
    try:
        with closing(open_folder(host)) as folder:
            fd = posix.open(name, posix.O_RDONLY | posix.O_NOFOLLOW | posix.O_NONBLOCK | posix.O_CLOEXEC, dir_fd=folder)
        with closing(fd):
            status = posix.fstat(fd)
            is_ours = is_regular(status) and not is_open_to_others(status, posix.geteuid())
            return content(fd, LARGEST) if is_ours else None
    except OSError:
        return None


def write(host: HostRoot, name: str, data: bytes, staged: str = "") -> None:
    """OSError, too, if it is too large to be read.  staged: its name until it is whole, if no two can write at once."""
    if len(data) > LARGEST:
        raise OSError(syscalls.EFBIG, f"{len(data)} bytes would not be read", f"{FOLDER}/{name}")
    # Two hooks that write at once have different pids, and so different files.  What a killed one left is written over.
    staged = staged or f"{name}.{posix.getpid()}"
    with closing(open_folder(host, make=True)) as folder:
        replace(name, data, staged, lambda fd: posix.fchmod(fd, 0o644), folder=folder, how=posix.O_TRUNC)


def want_refresh(host: HostRoot) -> None:
    """Ask for a refresh of the inventory, if we may write, and none was asked for within `REFRESH_INTERVAL`."""
    last = host.stat(f"{FOLDER}/{REFRESH_WANTED}")
    # A time in the future is of a clock that was set back since.
    if last is not None and 0 <= time() - last.st_mtime < REFRESH_INTERVAL:
        return
    try:
        write(host, REFRESH_WANTED, b"")
    except OSError:
        pass


def save(host: HostRoot, name: str, heading: bytes, values: tuple[Any, ...], staged: str = "") -> None:
    """Write a heading, the length of the rest, and values; OSError as `write`.  Every Python from 3.9 on reads
    marshal's version 2 alike: the hook may run on another than ``inventory refresh``.
    """
    content = marshal.dumps(_plain(values), 2)
    write(host, name, heading + len(content).to_bytes(LENGTH_BYTES, "little") + content, staged)


def load(host: HostRoot, name: str, heading: bytes) -> Any:
    """The values of such a file, records as plain tuples; None if `read_file` gives none that is whole."""
    data = read_file(host, name) or b""
    begin = len(heading) + LENGTH_BYTES
    if not data.startswith(heading) or len(data) != begin + int.from_bytes(data[len(heading) : begin], "little"):
        return None
    try:
        # marshal is safe with trusted bytes only, and `read_file` gives no others.
        return marshal.loads(data[begin:])
    except (EOFError, ValueError, TypeError, MemoryError):
        return None


def records(kind: type[Record], rows: Iterable[tuple[Any, ...]]) -> tuple[Record, ...]:
    """ValueError if a row has other fields."""
    # An inventory has two hundred: map is faster than a loop.
    if not {*map(len, rows)} <= {len(kind._fields)}:
        raise ValueError(f"a {kind.__name__} has other fields")
    return tuple(map(kind._make, rows))


def nested(kind: type[Record], row: tuple[Any, ...], inner: dict[str, type[NamedTuple]]) -> Record:
    """A record with records in it: `inner` has their kinds, by the fields that hold tuples of them."""
    (found,) = records(kind, (row,))
    return found._replace(**{field: records(of, getattr(found, field)) for field, of in inner.items()})


def _plain(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """A record, and all records in it, as plain tuples: marshal takes no subclass of tuple."""
    return tuple([_plain(item) if isinstance(item, tuple) else item for item in values])
