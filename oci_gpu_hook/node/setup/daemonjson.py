# SPDX-License-Identifier: Apache-2.0
"""Docker's daemon.json: one value of it is exchanged, and every other byte stays.

It is the administrator's file.  Its text is cut and joined, never serialised anew.  It is found by a path that root
alone could have made, written beside itself and renamed, and not written at all if somebody else has changed it since.
Must not know what a value means.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from oci_gpu_hook.errors import ApplyError, ConfigError, quoted
from oci_gpu_hook.formats import jsontext
from oci_gpu_hook.host.source import UntrustedError, open_source
from oci_gpu_hook.kernel.filetypes import is_regular
from oci_gpu_hook.node.machine import whole
from oci_gpu_hook.node.setup import filecopy

if TYPE_CHECKING:
    from oci_gpu_hook.host.root import HostRoot

PATH = "/etc/docker/daemon.json"
_LARGEST = 1 << 20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_SPACE = " \t\n\r"
_INDENT = "    "
# What else belongs to a file: its SELinux label, and who may read it beside its mode.
_KEPT = ("security.selinux", "system.posix_acl_access")
_FIX = "fix it first: nothing was changed"


class DaemonFile(NamedTuple):
    """The file as it was read.

    path: as it was given; real: without links, below the same root; status: None if there is no file.
    """

    path: str
    real: str
    text: str
    values: dict[str, Any]
    status: os.stat_result | None


def read(root: HostRoot, path: str) -> DaemonFile:
    """The file at `path` below `root`; ConfigError if it is no JSON object, or might be somebody else's."""
    shown = quoted(path) if not path.isprintable() else path
    try:
        fd = open_source(root.fd, path)
    except UntrustedError as err:
        raise ConfigError(f"{shown} is not root's alone: {err}", _FIX) from err
    except FileNotFoundError:
        if root.link(path) is not None:
            raise ConfigError(f"{shown} is a link that leads nowhere", _FIX) from None
        return DaemonFile(path, path, "", {}, None)
    except OSError as err:
        raise ConfigError(f"cannot read {shown}: {err.strerror}") from err
    with filecopy.closing(fd):
        status = os.fstat(fd)
        if not is_regular(status):
            raise ConfigError(f"{shown} is no plain file", _FIX)
        text = _text(fd, shown)
        top = os.readlink(f"/proc/self/fd/{root.fd}").rstrip("/")
        real = os.readlink(f"/proc/self/fd/{fd}")[len(top) :]
    return DaemonFile(path, real, text, _values(text, shown), status)


def _text(fd: int, shown: str) -> str:
    try:
        with open(f"/proc/self/fd/{fd}", "rb") as file:
            data = file.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            raise ConfigError(f"{shown} is larger than {_LARGEST >> 20} MiB", _FIX)
        return data.decode("utf-8")
    except OSError as err:
        raise ConfigError(f"cannot read {shown}: {err.strerror}", "run it as root") from err
    except UnicodeDecodeError as err:
        raise ConfigError(f"{shown} is no text in UTF-8", _FIX) from err


def _values(text: str, shown: str) -> dict[str, Any]:
    """The object; dockerd takes an empty file for an empty one."""
    if not text.strip(_SPACE):
        return {}
    try:
        found = json.loads(text, parse_constant=_refuse)
        names = [name for name, *_ in _members(text)] if isinstance(found, dict) else []
    except (ValueError, RecursionError) as err:
        raise ConfigError(f"{shown} is no JSON: {err}", _FIX) from err
    if not isinstance(found, dict):
        raise ConfigError(f"{shown} is no JSON object", _FIX)
    twice = [name for name in found if names.count(name) > 1]
    if twice:
        raise ConfigError(f"{shown} has the key {quoted(twice[0])} twice", _FIX)
    return found


def _refuse(name: str) -> object:
    raise ValueError(f"{name} is no JSON value")


def with_strings(text: str, key: str, strings: list[str]) -> str:
    """`text`, a JSON object, in which `key` has these strings; everything else is as it was."""
    found = _members(text) if text.strip(_SPACE) else []
    if not found:
        return f"{{\n{_INDENT}{_written(key, strings, _INDENT)}\n}}\n"
    before = text[: found[0][1]]
    lead = before[before.rfind("{") + 1 :]
    # Each key on a line of its own, or all in one line.
    indent = lead.rpartition("\n")[2] if "\n" in lead else None
    for name, _, begin, end in found:
        if name == key:
            value = _written(key, strings, indent)[len(json.dumps(key)) + 2 :]
            return text[:begin] + value + text[end:]
    gap = " " if indent is None else f"\n{indent}"
    end = found[-1][-1]
    return f"{text[:end]},{gap}{_written(key, strings, indent)}{text[end:]}"


def _written(key: str, strings: list[str], indent: str | None) -> str:
    """The key and its value; indent: of the key, None for one line."""
    if indent is None or not strings:
        return f"{json.dumps(key)}: {json.dumps(strings)}"
    deeper = f"\n{indent}{indent or _INDENT}"
    items = f",{deeper}".join([json.dumps(item) for item in strings])
    return f"{json.dumps(key)}: [{deeper}{items}\n{indent}]"


def _members(text: str) -> list[tuple[str, int, int, int]]:
    """As `jsontext.members` has them, of a text that json has read."""
    return jsontext.members(text, text.index("{"))


def write(root: HostRoot, file: DaemonFile, text: str) -> None:
    """Put `text` in the place of the file as it was read; ApplyError if that fails, and then nothing is left."""
    folder_path, _, name = file.real.rpartition("/")
    made = None
    try:
        try:
            folder = open_source(root.fd, folder_path)
        except FileNotFoundError:
            # Docker's package makes no folder for its settings.
            made = _make_folder(root, folder_path)
            folder = open_source(root.fd, folder_path)
        try:
            # One run of ours after another: between its last look and its rename no other one comes.
            with filecopy.closing(os.open(f"/proc/self/fd/{folder}", _FOLDER)) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                _replace(folder, name, file, text)
        except BaseException:
            _remove_folder(made)
            raise
        finally:
            os.close(folder)
    except UntrustedError as err:
        raise ConfigError(f"{file.path} is not root's alone: {err}", _FIX) from err
    except OSError as err:
        raise whole.failure(file.path, err) from err


def _make_folder(root: HostRoot, path: str) -> tuple[int, str]:
    """Make a folder; gives a descriptor of the one that it lies in, and its name there."""
    above, _, name = path.rpartition("/")
    parent = open_source(root.fd, above)
    os.mkdir(name, 0o755, dir_fd=parent)
    return parent, name


def _remove_folder(made: tuple[int, str] | None) -> None:
    if made:
        try:
            os.rmdir(made[1], dir_fd=made[0])
        except OSError:
            pass  # somebody else has put something there


def _replace(folder: int, name: str, file: DaemonFile, text: str) -> None:
    staged = f".{name}.{os.getpid()}"
    fd = _create(folder, staged)
    try:
        with open(fd, "wb") as out:
            out.write(text.encode())
            out.flush()
            _give_attributes(folder, name, file.status, fd)
            os.fsync(fd)
        if _identity(folder, name) != _of(file.status):
            raise ApplyError(f"{file.path} was changed by somebody else meanwhile", "nothing was written: run it again")
        if file.status is None:
            # Unlike rename, this fails where somebody else has made the file meanwhile.
            os.link(staged, name, src_dir_fd=folder, dst_dir_fd=folder)
            os.unlink(staged, dir_fd=folder)
        else:
            os.rename(staged, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(staged, dir_fd=folder)
        raise


def _create(folder: int, name: str) -> int:
    """A descriptor of a new file that nobody else can read yet."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(name, flags, 0o600, dir_fd=folder)
    except FileExistsError:
        # One with the same pid was killed.
        os.unlink(name, dir_fd=folder)
        return os.open(name, flags, 0o600, dir_fd=folder)


def _give_attributes(folder: int, name: str, old: os.stat_result | None, fd: int) -> None:
    """Owner, mode and attributes of the file that is replaced; a new one is for all to read."""
    if old is None:
        os.fchmod(fd, 0o644)
        return
    new = os.fstat(fd)
    if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        os.fchown(fd, old.st_uid, old.st_gid)
    os.fchmod(fd, old.st_mode & 0o7777)
    with filecopy.closing(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)) as source:
        try:
            for attribute in [item for item in os.listxattr(source) if item in _KEPT]:
                value = os.getxattr(source, attribute)
                if attribute not in os.listxattr(fd) or os.getxattr(fd, attribute) != value:
                    os.setxattr(fd, attribute, value)
        except OSError as err:
            if err.errno != errno.ENOTSUP:
                raise


def _identity(folder: int, name: str) -> tuple[int, ...] | None:
    try:
        return _of(os.stat(name, dir_fd=folder, follow_symlinks=False))
    except FileNotFoundError:
        return None


def _of(status: os.stat_result | None) -> tuple[int, ...] | None:
    """What changes with a file's content, owner or mode."""
    if status is None:
        return None
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
