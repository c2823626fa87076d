# SPDX-License-Identifier: Apache-2.0
"""The driver's volume: copies of its files, laid out as images of nvidia-docker 1's time look for them.

A container gets this folder and no file of the driver itself: whatever it could write to would be a copy.  Beside the
folder, where no container sees it, lies a mark that it is ours; one without it is never touched.

    bin, lib, lib64          links to current/bin and so on
    current                  a link to the copies of this driver
    .VERSION-NUMBER          the copies

The mark says which folder it is for, what the copies are of, and which driver Docker's volume is named after.  What is
in the folder is not believed: a container that has it writable can change it.  Containers that run have it mounted.  So
it stays, its copies are made whole under another name, and one rename of `current` exchanges them.  Must not know the
command line.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from typing import TYPE_CHECKING, NamedTuple

from oci_gpu_hook.errors import ApplyError, ConfigError, DriverError
from oci_gpu_hook.host.source import UntrustedError, open_source
from oci_gpu_hook.kernel.filetypes import WRITABLE_BY_OTHERS, is_folder, is_regular
from oci_gpu_hook.node.machine import whole
from oci_gpu_hook.node.setup import filecopy

if TYPE_CHECKING:
    from oci_gpu_hook.driver.inventory import DriverInventory
    from oci_gpu_hook.host.root import HostRoot

STATE = "/var/lib/oci-gpu-hook"
NAME = "volume"
PATH = f"{STATE}/{NAME}"
MARK = "volume.mark"
CURRENT = "current"
_FORMAT = "driver volume of oci-gpu-hook 1"
_STAGED = f".{NAME}."
_FOLDERS = ("bin", "lib", "lib64")
_LARGEST_MARK = 1 << 20
# A run that was killed leaves one; a container that may write to the folder, any number.
_MOST_COPIES = 1000
_DIGITS = frozenset("0123456789.")
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Copies(NamedTuple):
    """What a volume holds: places and their sources; places of links and their texts."""

    files: dict[str, str]
    links: dict[str, str]


class _Wanted(NamedTuple):
    """What the volume is to hold, and where it is made.

    state: a descriptor of our folder in /var/lib, which no container sees; rows: see `_rows`.
    """

    root: HostRoot
    state: int
    version: str
    copies: Copies
    rows: list[list[object]]


def layout(found: DriverInventory) -> Copies:
    """Where each file of the driver goes: 64-bit libraries in lib64, 32-bit ones in lib, programs in bin."""
    files: dict[str, str] = {}
    links: dict[str, str] = {}
    for library in found.libraries:
        folder = "/".join([part for part in ("lib64" if library.bits == 64 else "lib", library.subfolder) if part])
        files.setdefault(f"{folder}/{library.file}", library.path)
        for name in library.names:
            links.setdefault(f"{folder}/{name}", library.file)
    for program in found.binaries:
        files.setdefault(f"bin/{program.target.rpartition('/')[2]}", program.path)
    return Copies(files, {place: text for place, text in links.items() if place not in files})


def exists(root: HostRoot) -> bool:
    """Whether there is a volume of ours; ConfigError if something else has its place."""
    if root.link(PATH) is None and root.stat(PATH) is None:
        return False
    os.close(_open_ours(root))
    return True


def is_ours(root: HostRoot) -> bool:
    """Whether there is a volume of ours; what else may have its place is nobody's concern."""
    try:
        return exists(root)
    except ConfigError:
        return False


def named_after(root: HostRoot) -> str:
    """The driver's version in the name that Docker's volume was made with; "" if there is no volume of ours."""
    if not is_ours(root):
        return ""
    with filecopy.closing(open_source(root.fd, STATE)) as state:
        named = str((_mark(state) or {}).get("named", ""))
    # It becomes a word of a command line.
    return named if _DIGITS.issuperset(named) else ""


def make(root: HostRoot, found: DriverInventory) -> bool:
    """Make the volume, or bring it up to date with this driver; gives whether something changed.

    Where it fails all is as it was before.
    """
    if found.misfits:
        lacking = ", ".join([misfit.name for misfit in found.misfits])
        raise DriverError(f"the driver {found.driver_version} lacks {lacking}", "install all of it")
    copies = layout(found)
    try:
        with filecopy.closing(_open_state(root)) as state:
            # Of two that make it at once the second finds it made.
            fcntl.flock(state, fcntl.LOCK_EX)
            _drop_staged(state)
            wanted = _Wanted(root, state, found.driver_version, copies, _rows(root, copies))
            if exists(root):
                return _refresh(wanted)
            _create(wanted)
            return True
    except UntrustedError as err:
        raise ConfigError(f"{PATH} is not made: {err}", "root alone must own what it is made of") from err
    except OSError as err:
        raise _failure(err) from err


def remove(root: HostRoot) -> bool:
    """Remove the volume; gives whether there was one."""
    if not exists(root):
        return False
    try:
        with filecopy.closing(_open_state(root)) as state:
            fcntl.flock(state, fcntl.LOCK_EX)
            _drop_staged(state)
            # Under another name first: nobody finds a half of it.
            os.rename(NAME, f"{_STAGED}gone", src_dir_fd=state, dst_dir_fd=state)
            _drop_staged(state)
            filecopy.drop(state, MARK)
        _remove_state(root)
    except OSError as err:
        raise _failure(err) from err
    return True


def _remove_state(root: HostRoot) -> None:
    """Remove our folder in /var/lib, unless something else is in it."""
    above, _, name = STATE.rpartition("/")
    with filecopy.closing(open_source(root.fd, above)) as parent:
        try:
            os.rmdir(name, dir_fd=parent)
        except OSError as err:
            if err.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise


def _open_state(root: HostRoot) -> int:
    """A descriptor of our folder in /var/lib, which is made if it is missing."""
    above, _, name = STATE.rpartition("/")
    try:
        fd = open_source(root.fd, STATE)
    except FileNotFoundError:
        with filecopy.closing(open_source(root.fd, above)) as parent:
            try:
                os.mkdir(name, 0o755, dir_fd=parent)
                os.chmod(name, 0o755, dir_fd=parent)
            except FileExistsError:
                pass
        fd = open_source(root.fd, STATE)
    return _folder(fd)


def _folder(named: int) -> int:
    """A descriptor to use the folder that an O_PATH descriptor names, which is closed."""
    with filecopy.closing(named):
        return os.open(f"/proc/self/fd/{named}", _FLAGS & ~os.O_NOFOLLOW)


def _open_ours(root: HostRoot) -> int:
    """A descriptor of the volume; ConfigError if what has its name is not ours."""
    try:
        fd = open_source(root.fd, PATH)
        state = open_source(root.fd, STATE)
    except OSError as err:
        raise _not_ours(str(err.strerror)) from err
    try:
        status, mark = os.fstat(fd), _mark(state) or {}
        if not is_folder(status) or root.link(PATH) is not None:
            raise _not_ours("it is no folder")
        if status.st_uid not in (0, os.geteuid()) or status.st_mode & WRITABLE_BY_OTHERS:
            raise _not_ours("others than root may write to it")
        if mark.get("folder") != status.st_ino:
            raise _not_ours(f"{STATE}/{MARK} is not for this folder")
        return fd
    except BaseException:
        os.close(fd)
        raise
    finally:
        os.close(state)


def _not_ours(why: str) -> ConfigError:
    return ConfigError(f"{PATH} is there and is not ours: {why}", "move it away first")


def _mark(state: int) -> dict[str, object] | None:
    """What the mark in our folder in /var/lib says; None if there is none."""
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(MARK, flags, dir_fd=state)
    except OSError:
        return None
    with open(fd, "rb") as file:
        try:
            found = json.loads(file.read(_LARGEST_MARK))
        except (ValueError, RecursionError):
            return None
    return found if isinstance(found, dict) and found.get("format") == _FORMAT else None


def _rows(root: HostRoot, copies: Copies) -> list[list[object]]:
    """What each file is a copy of: as long as these are the same, so are the copies."""
    rows: list[list[object]] = []
    for place, path in copies.files.items():
        with filecopy.closing(open_source(root.fd, path)) as fd:
            status = os.fstat(fd)
        if is_regular(status):
            rows.append([place, path, status.st_ino, status.st_size, status.st_mtime_ns])
    return rows + [[place, text, 0, 0, 0] for place, text in copies.links.items()]


def _create(wanted: _Wanted) -> None:
    staged = f"{_STAGED}new"
    with filecopy.closing(_make_folder(wanted.state, staged)) as volume:
        try:
            _link_folders(volume)
            _label_own(wanted.root, volume)
            _fill(wanted, volume)
            os.rename(staged, NAME, src_dir_fd=wanted.state, dst_dir_fd=wanted.state)
        except BaseException:
            filecopy.drop(wanted.state, staged)
            filecopy.drop(wanted.state, MARK)
            raise


def _make_folder(above: int, name: str) -> int:
    """A descriptor of a new folder, for all to read."""
    os.mkdir(name, 0o755, dir_fd=above)
    fd = os.open(name, _FLAGS, dir_fd=above)
    os.fchmod(fd, 0o755)
    return fd


def _link_folders(volume: int) -> bool:
    """Make those of the links to the copies' folders that are missing; gives whether one was."""
    missing = [name for name in _FOLDERS if name not in os.listdir(volume)]
    for name in missing:
        os.symlink(f"{CURRENT}/{name}", name, dir_fd=volume)
    return bool(missing)


def _label_own(root: HostRoot, volume: int) -> None:
    """Label what stays when the copies are exchanged."""
    for name in _FOLDERS:
        filecopy.label_link(root, volume, name)
    filecopy.label(root, volume)


def _refresh(wanted: _Wanted) -> bool:
    with filecopy.closing(_folder(_open_ours(wanted.root))) as volume:
        mark = _mark(wanted.state) or {}
        same = mark.get("rows") == wanted.rows and mark.get("copies") == _current(volume)
        if not _link_folders(volume) and same and filecopy.is_labelled(wanted.root, volume):
            return False
        _label_own(wanted.root, volume)
        _fill(wanted, volume)
        return True


def _fill(wanted: _Wanted, volume: int) -> None:
    """Make the copies, put them beside those that are there, and then in their place.

    They are made where no container sees them: one that could write to the volume must not lead us elsewhere.
    """
    mark = _mark(wanted.state) or {}
    before, last = _current(volume), str(mark.get("copies", "")).rpartition("-")[2]
    made = f".{wanted.version}-{int(last) + 1 if last.isdecimal() else 1}"
    staged = f"{_STAGED}copies"
    _drop_others(wanted.state, volume, before)
    try:
        _copy_all(wanted, staged)
        os.rename(staged, made, src_dir_fd=wanted.state, dst_dir_fd=volume)
        # The first driver's: Docker's volume keeps that name.
        named = mark.get("named", wanted.version)
        words = {"copies": made, "rows": wanted.rows, "named": named}
        mark = {"format": _FORMAT, "folder": os.fstat(volume).st_ino, **words}
        whole.place(wanted.state, MARK, json.dumps(mark).encode())
        os.symlink(made, f".{CURRENT}", dir_fd=volume)
        filecopy.label_link(wanted.root, volume, f".{CURRENT}")
        os.rename(f".{CURRENT}", CURRENT, src_dir_fd=volume, dst_dir_fd=volume)
    except BaseException:
        filecopy.drop(wanted.state, staged)
        _drop_others(wanted.state, volume, before)
        raise
    _drop_others(wanted.state, volume, made)


def _current(volume: int) -> str:
    """The name of the copies that are in their place; "" for none."""
    try:
        name = os.readlink(CURRENT, dir_fd=volume)
        os.stat(name, dir_fd=volume, follow_symlinks=False)
    except OSError:
        return ""
    return name if name.startswith(".") and "/" not in name else ""


def _copy_all(wanted: _Wanted, staged: str) -> None:
    root, copies = wanted.root, wanted.copies
    places = [*copies.files, *copies.links]
    with filecopy.closing(_make_folder(wanted.state, staged)) as top:
        filecopy.label(root, top)
        for folder in sorted({*_FOLDERS, *[place.rpartition("/")[0] for place in places]}):
            with filecopy.closing(_make_folder(top, folder)) as fd:
                filecopy.label(root, fd)
        for place, path in copies.files.items():
            filecopy.copy(root, path, top, place)
        for place, text in copies.links.items():
            os.symlink(text, place, dir_fd=top)
            filecopy.label_link(root, top, place)
        os.fsync(top)


def _drop_others(state: int, volume: int, kept: str) -> None:
    """Remove all copies but `kept`, also those of a run that was killed; out of containers' sight first."""
    with os.scandir(volume) as entries:
        names = [entry.name for _, entry in zip(range(_MOST_COPIES), entries)]
    for number, name in enumerate([name for name in names if name[:1] == "." and name != kept]):
        gone = f"{_STAGED}gone.{number}"
        os.rename(name, gone, src_dir_fd=volume, dst_dir_fd=state)
        filecopy.drop(state, gone)


def _drop_staged(state: int) -> None:
    """Remove what a run that was killed has left beside the volume."""
    for name in os.listdir(state):
        if name.startswith(_STAGED):
            filecopy.drop(state, name)


def _failure(err: OSError) -> ApplyError:
    hint = "nothing was changed"
    if err.errno in (errno.EACCES, errno.EPERM):
        hint = "run it as root"
    elif err.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = f"make room in {STATE}: nothing was changed"
    return ApplyError(f"cannot change {PATH}: {err.strerror}", hint)
