# SPDX-License-Identifier: Apache-2.0
"""Write a file whole or not at all, wherever the program stops.

Must not know what is written, nor which files may be replaced.
"""

from __future__ import annotations

import errno
import os

from oci_gpu_hook.errors import ApplyError, UsageError, quoted


def check_name(option: str, path: str | None) -> None:
    """UsageError where the value of `option` cannot be a file's name; `path` is None without the option."""
    if path is not None and (not os.path.basename(path) or not path.isprintable()):
        raise UsageError(
            f"{option} is {quoted(path) if path else 'empty'}, which is no file's name"
        )


def write(path: str, text: str) -> None:
    """Write a file in UTF-8 with mode 0644, first under a hidden name beside it; ApplyError where that fails."""
    folder, name = os.path.split(os.path.abspath(path))
    # Others may write to the folder: no name that they can foresee, and never a file that is there.
    staged = f"{folder}/.{name}.{os.urandom(8).hex()}"
    try:
        os.makedirs(folder, mode=0o755, exist_ok=True)
        fd = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with open(fd, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fchmod(fd, 0o644)
                os.fsync(fd)
            os.rename(staged, path)
        except BaseException:
            os.unlink(staged)
            raise
    except OSError as err:
        raise failure(path, err) from err


def failure(path: str, err: OSError) -> ApplyError:
    """The error for a file that cannot be written: nothing was changed."""
    hint = "nothing was changed"
    if err.errno in (errno.EACCES, errno.EPERM):
        hint = "run it as root"
    elif err.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = f"make room on the file system of {os.path.dirname(os.path.abspath(path))}"
    return ApplyError(f"cannot write {path}: {err.strerror}", hint)
