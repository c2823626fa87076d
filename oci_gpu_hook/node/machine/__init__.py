# SPDX-License-Identifier: Apache-2.0
"""What commands know of the machine, whoever has made it."""

from __future__ import annotations

import posix
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def closing(fd: int) -> Iterator[int]:
    """A descriptor that is closed at the end."""
    try:
        yield fd
    finally:
        posix.close(fd)
