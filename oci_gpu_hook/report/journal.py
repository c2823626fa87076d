# SPDX-License-Identifier: Apache-2.0
"""Send a start's record: to the journal's socket, and to the counters' spool if somebody collects it.

No system call here waits.  Must not know what a record says, and must not fail: where the journal is missing or full,
only the record is lost.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.kernel import syscalls
from oci_gpu_hook.kernel.filetypes import is_regular

SOCKET = "/run/systemd/journal/socket"
# 'oci-gpu-hook metrics --write' makes it.  Without it, starts are not counted.
SPOOL = "/run/oci-gpu-hook/starts"

# The lines of a hundred thousand starts.
_LARGEST = 4 << 20


def send(datagram: bytes) -> None:
    """Send one record to the journal."""
    try:
        syscalls.send_datagram(SOCKET, datagram)
    except OSError:
        pass


def count(line: bytes) -> None:
    """Append one line to the spool.  With O_APPEND, lines of hooks that write at once do not mix."""
    flags = posix.O_WRONLY | posix.O_APPEND | posix.O_CLOEXEC | posix.O_NOFOLLOW | posix.O_NONBLOCK
    try:
        fd = posix.open(SPOOL, flags)
    except OSError:
        return
    try:
        status = posix.fstat(fd)
        if is_regular(status) and status.st_size < _LARGEST:
            posix.write(fd, line)
    except OSError:
        pass
    finally:
        posix.close(fd)
