# SPDX-License-Identifier: Apache-2.0
"""Write and remove files where others read them, and where others may own the way.

A node exporter's user can put a link in the place of a folder that is his.  So root writes by a descriptor of the
folder, to which only root could have led; the folder itself may be another's.  A file is written whole or not at all,
wherever the program stops.  Must not know what is written, nor which files may be replaced.
"""

from __future__ import annotations

import posix
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from oci_gpu_hook.errors import ApplyError, ConfigError, UsageError, quoted
from oci_gpu_hook.host.source import UntrustedError, open_source
from oci_gpu_hook.kernel import syscalls
from oci_gpu_hook.kernel.filetypes import is_folder
from oci_gpu_hook.node.machine import closing

if TYPE_CHECKING:
    from collections.abc import Iterator

_FOLDER = posix.O_PATH | posix.O_DIRECTORY | posix.O_CLOEXEC
_NEW = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_NOFOLLOW | posix.O_CLOEXEC


def check_name(option: str, path: str | None) -> None:
    """UsageError if the value of `option` cannot be a file's name; `path` is None without the option."""
    if path is not None and (not path.rpartition("/")[2] or not path.isprintable()):
        raise UsageError(f"{option} is {quoted(path) if path else 'empty'}, which is no file's name")


def write(path: str, text: str) -> None:
    """Write a file in UTF-8 with mode 0644, first under a hidden name beside it.

    Missing folders are made.  ConfigError if others than root could lead to another folder, ApplyError if it fails.
    """
    with _explained(path), _placed(path, make=True) as (folder, name):
        place(folder, name, text.encode())


def place(folder: int, name: str, data: bytes) -> None:
    """Make or replace the file `name` in the folder open at `folder`, with mode 0644; OSError if that fails."""
    # The folder may be another's: no name that can be foreseen, and never a file that is there.
    staged = f".{name}.{posix.urandom(8).hex()}"
    fd = posix.open(staged, _NEW, 0o600, dir_fd=folder)
    try:
        with open(fd, "wb") as file:
            file.write(data)
            file.flush()
            posix.fchmod(fd, 0o644)
            posix.fsync(fd)
        posix.rename(staged, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        posix.unlink(staged, dir_fd=folder)
        raise


def remove(path: str) -> bool:
    """Remove a file; gives whether there was one.  Errors as `write`."""
    with _explained(path):
        try:
            with _placed(path, make=False) as (folder, name):
                posix.unlink(name, dir_fd=folder)
        except (FileNotFoundError, NotADirectoryError):
            return False
    return True


def open_folder(path: str, *, make: bool) -> int:
    """An O_PATH descriptor of the folder at `path`, to which only root could have led, if we are root.

    make: whether it and the folders above it are made if they are missing.  UntrustedError and OSError.
    """
    try:
        return _existing(path)
    except FileNotFoundError:
        if not make or path == "/":
            raise
    above, _, name = path.rstrip("/").rpartition("/")
    with closing(open_folder(above or "/", make=True)) as parent:
        owner = posix.fstat(parent).st_uid
        if posix.geteuid() == 0 and owner not in (0, posix.stat("/").st_uid):
            raise UntrustedError(f"{name!r} would lie in a folder of user {owner}'s")
        # Somebody else has made it meanwhile; or a link of this name leads nowhere.
        with suppress(FileExistsError):
            posix.mkdir(name, 0o755, dir_fd=parent)
    return open_folder(path, make=False)


def _existing(path: str) -> int:
    if posix.geteuid() != 0:
        return posix.open(path, _FOLDER)
    with closing(posix.open("/", _FOLDER)) as top:
        fd = open_source(top, path)
    if not is_folder(posix.fstat(fd)):
        posix.close(fd)
        raise NotADirectoryError(syscalls.ENOTDIR, posix.strerror(syscalls.ENOTDIR))
    return fd


@contextmanager
def _placed(path: str, *, make: bool) -> Iterator[tuple[int, str]]:
    """A descriptor of the folder of a file, and the file's name in it."""
    whole = path if path.startswith("/") else f"{posix.getcwd()}/{path}"
    folder, _, name = whole.rpartition("/")
    with closing(open_folder(folder or "/", make=make)) as fd:
        yield fd, name


@contextmanager
def _explained(path: str) -> Iterator[None]:
    """What goes wrong with a file, as an error for people."""
    try:
        yield
    except UntrustedError as err:
        hint = "the administrator must name a folder to which only root's folders lead"
        raise ConfigError(f"cannot write {path}: {err}", hint) from err
    except OSError as err:
        raise failure(path, err) from err


def failure(path: str, err: OSError) -> ApplyError:
    """The error for a file that cannot be written: nothing was changed."""
    hint = "nothing was changed"
    if err.errno in (syscalls.EACCES, syscalls.EPERM) and posix.geteuid() != 0:
        hint = "run it as root"
    elif err.errno in (syscalls.ENOSPC, syscalls.EDQUOT):
        hint = f"make room on the file system of {path.rpartition('/')[0] or '/'}"
    return ApplyError(f"cannot write {path}: {err.strerror}", hint)
