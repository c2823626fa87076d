# SPDX-License-Identifier: Apache-2.0
"""Write and remove files where others read them, and where others may own the way.

A node exporter's user can put a link in the place of a folder of that user's.  So root writes by a descriptor of the
folder, to which only root could have led; the folder itself may be another's.  A file is written whole or not at all,
wherever the program stops.  Must not know what is written, nor which files may be replaced.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from oci_gpu_hook.errors import ApplyError, ConfigError, UsageError, quoted
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.host.source import UntrustedError, open_source
from oci_gpu_hook.kernel import syscalls
from oci_gpu_hook.kernel.descriptors import closing, reopened, replace
from oci_gpu_hook.node.machine import foreignfile

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


def check_name(option: str, path: str | None) -> None:
    """UsageError if the value of `option` cannot be a file's name; `path` is None without the option."""
    if path is not None and (not path.rpartition("/")[2] or not path.isprintable()):
        raise UsageError(f"{option} is {quoted(path) if path else 'empty'}, which is not a file name")


def write(path: str, text: str) -> None:
    """In UTF-8 with mode 0644, first under a hidden name beside it; missing folders are made.  ConfigError if others
    than root could lead to another folder, ApplyError if it fails.
    """
    above, name = _split(path)
    with explained(path), folder(above, trusted) as fd:
        place(fd, name, text.encode())


def remove(path: str, begins: bytes = b"") -> bool:
    """Remove a file, if it begins so; gives whether there was one.  Errors as `write`."""
    above, name = _split(path)
    if begins and not (foreignfile.read_file(HostRoot(), f"{above}/{name}") or b"").startswith(begins):
        return False
    with explained(path), suppress(FileNotFoundError, NotADirectoryError), closing(trusted(above)) as fd:
        os.unlink(name, dir_fd=fd)
        return True
    return False


def _split(path: str) -> tuple[str, str]:
    return os.path.split(path if path.startswith("/") else f"{os.getcwd()}/{path}")


def place(folder: int, name: str, data: bytes) -> None:
    """Make or replace the file `name` in the folder open at `folder`, with mode 0644; OSError if that fails."""

    def ready(fd: int) -> None:
        os.fchmod(fd, 0o644)
        os.fsync(fd)

    replace(name, data, hidden(name), ready, folder=folder, put=os.rename)


def hidden(name: str) -> str:
    """A name for a file until it is whole: the folder may be another's, so it is none that can be foreseen."""
    return f".{name}.{os.urandom(8).hex()}"


@contextmanager
def folder(path: str, find: Callable[[str], int]) -> Iterator[int]:
    """As `find` opens it; it and those above are made if missing, and none is left after UntrustedError or OSError."""
    above, _, name = path.rstrip("/").rpartition("/")
    try:
        fd = find(path or "/")
    except FileNotFoundError:
        if not name:
            raise
    else:
        with closing(fd):
            yield fd
        return
    with folder(above, find) as parent, closing(find("/")) as top:
        owner = os.fstat(parent).st_uid
        if os.geteuid() == 0 and owner not in (0, os.fstat(top).st_uid):
            raise UntrustedError(f"{name!r} would lie in a folder of user {owner}'s")
        is_made = False
        try:
            # Somebody else has made it meanwhile; or a link of this name leads nowhere.
            with suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=parent)
                is_made = True
            with closing(find(path)) as fd:
                if is_made and os.geteuid() == 0:
                    # Engines of users read it too, whatever root's umask is.
                    os.chmod(f"/proc/self/fd/{fd}", 0o755)
                yield fd
        except BaseException:
            # Somebody else may have put something there.
            if is_made:
                with suppress(OSError):
                    os.rmdir(name, dir_fd=parent)
            raise


def trusted(path: str) -> int:
    """An O_PATH descriptor of the folder at `path`, to which only root could have led, if we are root."""
    if os.geteuid() != 0:
        return os.open(path, _FOLDER)
    with closing(os.open("/", _FOLDER)) as top, closing(open_source(top, path)) as found:
        return reopened(found, _FOLDER)


@contextmanager
def explained(path: str) -> Iterator[None]:
    try:
        yield
    except UntrustedError as err:
        hint = "the administrator must name a folder to which only root's folders lead"
        raise ConfigError(f"cannot write {path}: {err}", hint) from err
    except RecursionError:
        raise UsageError("cannot write the file: too many folders are missing", "give a shorter path") from None
    except OSError as err:
        raise failure(path, err) from err


def failure(path: str, err: OSError) -> ApplyError:
    hint = "nothing was changed"
    if err.errno in (syscalls.EACCES, syscalls.EPERM) and os.geteuid() != 0:
        hint = "run it as root"
    elif err.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = f"make room on the file system of {path.rpartition('/')[0] or '/'}"
    return ApplyError(f"cannot write {path}: {err.strerror}", hint)
