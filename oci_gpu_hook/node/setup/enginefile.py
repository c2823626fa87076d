# SPDX-License-Identifier: Apache-2.0
"""An engine's own file of settings: read, and exchanged whole or not at all.

The administrator's is found by a path that root alone could have made, a user's by any.  It is written beside itself
and renamed, and not at all if somebody else has changed it since.  Must not know its content.
"""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack, suppress
from typing import NamedTuple

from oci_gpu_hook.errors import ApplyError, ConfigError, quoted
from oci_gpu_hook.host import statefile
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.host.source import UntrustedError, open_source
from oci_gpu_hook.kernel.descriptors import closing, content, reopened, replace
from oci_gpu_hook.kernel.filetypes import is_regular, stamp
from oci_gpu_hook.node.machine import outputfile

FIX = "fix it first: nothing was changed"
_LARGEST = 1 << 20
# What else belongs to a file: its SELinux label, and who may read it beside its mode.
_KEPT = ("security.selinux", "system.posix_acl_access")


class EngineFile(NamedTuple):
    """The file as it was read.  path: as it was given; status: None if there is no file; is_users: whether a user reads
    and writes it, in folders that may be open to others.
    """

    path: str
    text: str
    status: os.stat_result | None
    is_users: bool = False


class WantedRuntime(NamedTuple):
    """default: whether it is for containers that name none; cdi: the engine's own; is_named: by the user."""

    name: str
    program: str
    default: bool
    cdi: bool
    is_named: bool


class Change(NamedTuple):
    """The text that a file is to have, "" for no file, and what else is to be done; by_hand: lines for another file."""

    text: str
    told: tuple[str, ...] = ()
    by_hand: str = ""


def read_settings_file(host: HostRoot, path: str, *, is_users: bool = False) -> EngineFile:
    """The file at `path` below `host`; ConfigError if it is not text, or others than root could have made it."""
    try:
        with closing(_opened(host, path, is_users)) as named:
            status = os.fstat(named)
            if not is_regular(status):
                raise ConfigError(f"{path} is not a regular file", FIX)
            with closing(reopened(named)) as fd:
                data = content(fd, _LARGEST)
        if data is None:
            raise ConfigError(f"{path} is larger than {_LARGEST >> 20} MiB", FIX)
        return EngineFile(path, data.decode("utf-8"), status, is_users)
    except UntrustedError as err:
        raise ConfigError(f"{path} is not root's alone: {err}", FIX) from err
    except FileNotFoundError:
        if host.link(path) is not None:
            raise ConfigError(f"{path} is a dangling symbolic link", FIX) from None
        return EngineFile(path, "", None, is_users)
    except OSError as err:
        hint = "run it as root" if err.errno in (errno.EACCES, errno.EPERM) else FIX
        raise ConfigError(f"cannot read {path}: {err.strerror}", hint) from err
    except UnicodeDecodeError as err:
        raise ConfigError(f"{path} is not UTF-8 text", FIX) from err


def others(what: str, path: str) -> ConfigError:
    hint = "remove it there, or give ours another --name" if "runtimes." in what else "remove it there"
    return ConfigError(f"{quoted(what)} in {path} is not what 'oci-gpu-hook configure' writes, and stays", hint)


def _opened(host: HostRoot, path: str, is_users: bool) -> int:
    if not is_users:
        return open_source(host.fd, path)
    try:
        return host.open(path)
    except OSError as err:
        # As the class that its number stands for.
        raise OSError(err.errno, err.strerror) from err


def write(host: HostRoot, file: EngineFile, text: str) -> None:
    """Put `text` in the place of the file, or remove it for "".  ApplyError if that fails, and then nothing is left."""
    path, _, name = host.real(file.path).rpartition("/")

    def ready(fd: int) -> None:
        _give_attributes(folder, name, file.status, fd)
        os.fsync(fd)
        _check(folder, name, file)

    try:
        # Docker's package makes no folder for its settings, and a user may have no ~/.config.
        with outputfile.folder(path, lambda it: _opened(host, it, file.is_users)) as folder, ExitStack() as locked:
            # Between a last look and a rename of root's no other run comes.  What users may lock, other users may hold.
            if not file.is_users:
                locked.enter_context(closing(statefile.lock(host, "configure.lock")))
            if text:
                put = os.rename if file.status else _link
                replace(name, text.encode(), outputfile.hidden(name), ready, folder=folder, put=put)
            else:
                _check(folder, name, file)
                os.unlink(name, dir_fd=folder)
    except UntrustedError as err:
        raise ConfigError(f"{file.path} is not root's alone: {err}", FIX) from err
    except OSError as err:
        raise outputfile.failure(file.path, err) from err


def _link(new: str, name: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
    """Unlike rename it fails where somebody else has made the file meanwhile."""
    os.link(new, name, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
    os.unlink(new, dir_fd=src_dir_fd)


def _check(folder: int, name: str, file: EngineFile) -> None:
    """ApplyError if the file is no longer as it was read."""
    now = None
    with suppress(FileNotFoundError):
        now = stamp(os.stat(name, dir_fd=folder, follow_symlinks=False))
    if now != (file.status and stamp(file.status)):
        raise ApplyError(f"{file.path} was changed by another program meanwhile", "nothing was written: run it again")


def _give_attributes(folder: int, name: str, old: os.stat_result | None, fd: int) -> None:
    """Owner, mode and attributes of the file that is replaced; a new one is for all to read."""
    if old is None:
        os.fchmod(fd, 0o644)
        return
    new = os.fstat(fd)
    if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
        os.fchown(fd, old.st_uid, old.st_gid)
    os.fchmod(fd, old.st_mode & 0o7777)
    with closing(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)) as source:
        try:
            for attribute in [item for item in os.listxattr(source) if item in _KEPT]:
                value = os.getxattr(source, attribute)
                if attribute not in os.listxattr(fd) or os.getxattr(fd, attribute) != value:
                    os.setxattr(fd, attribute, value)
        except OSError as err:
            if err.errno != errno.ENOTSUP:
                raise
