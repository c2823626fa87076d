# SPDX-License-Identifier: Apache-2.0
"""Files of the trees that become a virtual machine's disk, and of the SELinux lane's machine itself."""

from __future__ import annotations

import os


def write(path: str | os.PathLike[str], text: str, mode: int = 0o644) -> None:
    """A file, its folders made."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, mode)


def read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
