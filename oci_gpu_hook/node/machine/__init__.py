# SPDX-License-Identifier: Apache-2.0
"""What commands know of the machine."""

from __future__ import annotations

import posix
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oci_gpu_hook.host.root import HostRoot


@contextmanager
def closing(fd: int) -> Iterator[int]:
    """A descriptor that is closed at the end."""
    try:
        yield fd
    finally:
        posix.close(fd)


def text(root: HostRoot, path: str) -> str:
    """The text of a file of root's or the kernel's; "" if there is none."""
    return (root.read(path) or b"").decode("utf-8", "replace")
