# SPDX-License-Identifier: Apache-2.0
"""Files that commands write: whole or not at all, wherever it stops.

Must not know what is written, nor whose file may be written over.
"""

from __future__ import annotations

import errno
import os

from oci_gpu_hook.errors import ApplyError, UsageError, quoted


def check_name(option: str, path: str | None) -> None:
    """UsageError where `option` gives a file that none can be called; None is none given."""
    if path is not None and (not os.path.basename(path) or not path.isprintable()):
        raise UsageError(
            f"{option} is {quoted(path) if path else 'empty'}, which is no file's name"
        )


def write(path: str, text: str) -> None:
    """The file, UTF-8, mode 0644, staged beside its name as a hidden one; ApplyError where it cannot be written."""
    folder, name = os.path.split(os.path.abspath(path))
    staged = f"{folder}/.{name}.{os.getpid()}"
    try:
        os.makedirs(folder, mode=0o755, exist_ok=True)
        fd = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
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
    """What a system call's failure on `path` means to whoever asked for the file; nothing was changed then."""
    hint = "nothing was changed"
    if err.errno in (errno.EACCES, errno.EPERM):
        hint = "run it as root"
    elif err.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = f"make room on the file system of {os.path.dirname(os.path.abspath(path))}"
    return ApplyError(f"cannot write {path}: {err.strerror}", hint)
