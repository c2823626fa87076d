# SPDX-License-Identifier: Apache-2.0
"""A container's process as a runtime leaves it for its hooks: in a mount namespace of its own, its root mounted."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MOUNT = 'mkdir -p "$1/dev"; mount --bind "$1" "$1"; mount -t tmpfs none "$1/dev"; echo; exec cat'


@contextmanager
def contained(rootfs: Path) -> Iterator[int]:
    """Its pid, while it waits.  The user namespace lets anyone mount."""
    line = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec", _MOUNT, "sh", str(rootfs)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdin
        assert process.stdout.readline() == b"\n"
        yield process.pid
        process.stdin.close()
