# SPDX-License-Identifier: Apache-2.0
"""Where a start is told of: the journal's socket, and the spool of the counters while somebody collects them.

Two system calls each, none of which waits.  Must not know what is told, and must not fail: a journal that is absent or
full, a spool that nobody reads, cost the record and nothing else.
"""

from __future__ import annotations

import posix

from oci_gpu_hook import linux

SOCKET = "/run/systemd/journal/socket"
# Made by 'oci-gpu-hook metrics --write' and by nobody else: where it is not there, nobody counts.
SPOOL = "/run/oci-gpu-hook/starts"

# A hundred thousand starts that nobody has collected.
_LARGEST = 4 << 20
_REGULAR = 0o100000


def send(datagram: bytes) -> None:
    """One record to the journal."""
    try:
        linux.send_datagram(SOCKET, datagram)
    except OSError:
        pass


def count(line: bytes) -> None:
    """One line at the end of the spool: the kernel puts the lines of many hooks one behind the other (O_APPEND)."""
    flags = posix.O_WRONLY | posix.O_APPEND | posix.O_CLOEXEC | posix.O_NOFOLLOW | posix.O_NONBLOCK
    try:
        fd = posix.open(SPOOL, flags)
    except OSError:
        return
    try:
        status = posix.fstat(fd)
        if status.st_mode & 0o170000 == _REGULAR and status.st_size < _LARGEST:
            posix.write(fd, line)
    except OSError:
        pass
    finally:
        posix.close(fd)
