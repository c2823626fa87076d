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
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from oci_gpu_hook.driver.inventory import DriverInventory
from oci_gpu_hook.errors import ConfigError, DriverError
from oci_gpu_hook.host import saved
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.host.source import UntrustedError, open_source, read_source
from oci_gpu_hook.kernel.descriptors import closing, reopened
from oci_gpu_hook.kernel.filetypes import is_folder, is_open_to_others, is_regular
from oci_gpu_hook.node.machine import whole

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
_MOST_NAMES = 100_000
# What containers of any type may read and run, and none may write; where the kernel has SELinux.
_LABEL = b"system_u:object_r:container_ro_file_t:s0\0"
_ATTRIBUTE = "security.selinux"
_SELINUX = "/sys/fs/selinux/enforce"
_DIGITS = frozenset("0123456789.")
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def layout(found: DriverInventory) -> tuple[dict[str, str], dict[str, str]]:
    """Places and their sources: 64-bit libraries in lib64, 32-bit in lib, programs in bin; links and their texts."""
    files: dict[str, str] = {}
    links: dict[str, str] = {}
    for library in found.libraries:
        folder = "/".join([part for part in ("lib64" if library.bits == 64 else "lib", library.subfolder) if part])
        files.setdefault(f"{folder}/{library.file}", library.path)
        for name in library.names:
            links.setdefault(f"{folder}/{name}", library.file)
    for program in found.binaries:
        files.setdefault(f"bin/{program.target.rpartition('/')[2]}", program.path)
    return files, {place: text for place, text in links.items() if place not in files}


def exists(root: HostRoot) -> bool:
    """Whether there is a volume of ours; ConfigError if something else has its place."""
    if root.link(PATH) is None and root.stat(PATH) is None:
        return False
    os.close(_open_ours(root))
    return True


def is_ours(root: HostRoot) -> bool:
    """Whether there is a volume of ours; what else may have its place does not matter."""
    try:
        return exists(root)
    except ConfigError:
        return False


def name(root: HostRoot, found: DriverInventory) -> str:
    """The name of Docker's volume, as nvidia-docker 1 named it: by the driver that our volume was made of, or this one.

    It becomes a word of a command line.
    """
    version = str(_mark(root).get("named", "")) if is_ours(root) else ""
    return f"nvidia_driver_{version if version and _DIGITS.issuperset(version) else found.driver_version}"


def make(root: HostRoot, found: DriverInventory) -> bool:
    """Make the volume, or bring it up to date with this driver; gives whether something changed.

    Where it fails all is as it was before.
    """
    if found.misfits:
        lacking = ", ".join([misfit.name for misfit in found.misfits])
        raise DriverError(f"the driver {found.driver_version} lacks {lacking}", "install all of it")
    try:
        with _locked(root) as state:
            if exists(root):
                with closing(_open_ours(root)) as named, closing(reopened(named, os.O_DIRECTORY)) as volume:
                    return _fill(root, state, volume, found)
            staged = f"{_STAGED}new"
            with closing(_make_folder(state, staged)) as volume:
                try:
                    _fill(root, state, volume, found)
                    os.rename(staged, NAME, src_dir_fd=state, dst_dir_fd=state)
                except BaseException:
                    _drop(state, staged)
                    _drop(state, MARK)
                    raise
            return True
    except UntrustedError as err:
        raise ConfigError(f"{PATH} is not made: {err}", "root alone must own what it is made of") from err
    except OSError as err:
        raise whole.failure(PATH, err) from err


def remove(root: HostRoot) -> bool:
    """Remove the volume; gives whether there was one."""
    if not exists(root):
        return False
    try:
        with _locked(root) as state:
            # Under another name first: nobody finds a half of it.
            os.rename(NAME, f"{_STAGED}gone", src_dir_fd=state, dst_dir_fd=state)
            _drop_staged(state)
            _drop(state, MARK)
        above, _, name = STATE.rpartition("/")
        # Something else may be in it.
        with closing(open_source(root.fd, above)) as parent, suppress(OSError):
            os.rmdir(name, dir_fd=parent)
    except OSError as err:
        raise whole.failure(PATH, err) from err
    return True


@contextmanager
def _locked(root: HostRoot) -> Iterator[int]:
    """A descriptor of our folder in /var/lib, without what a run that was killed has left there.

    It is made if it is missing.  Of two that make the volume at once the second finds it made.
    """
    opened = whole.folder(STATE, lambda path: open_source(root.fd, path), is_for_all=True)
    with opened as named, closing(reopened(named, os.O_DIRECTORY)) as state, closing(_lock(root)):
        _drop_staged(state)
        yield state


def _lock(root: HostRoot) -> int:
    # To copy a driver takes seconds.
    return saved.lock(root, "volume.lock", 120.0)


def _open_ours(root: HostRoot) -> int:
    """A descriptor of the volume; ConfigError if what has its name is not ours."""
    try:
        fd = open_source(root.fd, PATH)
    except OSError as err:
        raise _not_ours(str(err.strerror)) from err
    status, why = os.fstat(fd), ""
    if not is_folder(status) or root.link(PATH) is not None:
        why = "it is not a folder"
    elif is_open_to_others(status, os.geteuid()):
        why = "others than root may write to it"
    elif _mark(root).get("folder") != status.st_ino:
        why = f"{STATE}/{MARK} is not for this folder"
    if why:
        os.close(fd)
        raise _not_ours(why)
    return fd


def _not_ours(why: str) -> ConfigError:
    return ConfigError(f"{PATH} is there and is not ours: {why}", "move it away first")


def _mark(root: HostRoot) -> dict[str, object]:
    """What the mark in our folder in /var/lib says; nothing if there is none."""
    try:
        found = json.loads(read_source(root.fd, f"{STATE}/{MARK}", _LARGEST_MARK) or b"")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) and found.get("format") == _FORMAT else {}


def _rows(root: HostRoot, files: dict[str, str], links: dict[str, str]) -> list[list[object]]:
    """What each file is a copy of: as long as these are the same, so are the copies."""
    rows: list[list[object]] = []
    for place, path in files.items():
        with closing(open_source(root.fd, path)) as fd:
            status = os.fstat(fd)
        if is_regular(status):
            rows.append([place, path, status.st_ino, status.st_size, status.st_mtime_ns])
    return rows + [[place, text, 0, 0, 0] for place, text in links.items()]


def _make_folder(above: int, name: str) -> int:
    """A descriptor of a new folder, for all to read."""
    os.mkdir(name, 0o755, dir_fd=above)
    fd = os.open(name, _FLAGS, dir_fd=above)
    os.fchmod(fd, 0o755)
    return fd


def _link_folders(volume: int) -> bool:
    """Make those of the links to the copies' folders that are missing; gives whether one was."""
    is_made = False
    for name in _FOLDERS:
        with suppress(FileExistsError):
            os.symlink(f"{CURRENT}/{name}", name, dir_fd=volume)
            is_made = True
    return is_made


def _fill(root: HostRoot, state: int, volume: int, found: DriverInventory) -> bool:
    """Make the copies, put them beside those that are there, and then in their place; False if those are right.

    They are made where no container sees them: one that could write to the volume must not lead us elsewhere.
    """
    (files, links), mark, before = layout(found), _mark(root), _current(volume)
    rows = _rows(root, files, links)
    same = mark.get("rows") == rows and mark.get("copies") == before
    if not _link_folders(volume) and same and _is_labelled(root, volume):
        return False
    # What stays when the copies are exchanged.
    for name in (*_FOLDERS, "."):
        _label(root, volume, name)
    last = str(mark.get("copies", "")).rpartition("-")[2]
    made = f".{found.driver_version}-{int(last) + 1 if last.isdecimal() else 1}"
    staged = f"{_STAGED}copies"
    _drop_others(state, volume, before)
    try:
        _copy_all(root, files, links, state, staged)
        os.rename(staged, made, src_dir_fd=state, dst_dir_fd=volume)
        # The first driver's: Docker's volume keeps that name.
        words = {"copies": made, "rows": rows, "named": mark.get("named", found.driver_version)}
        document = {"format": _FORMAT, "folder": os.fstat(volume).st_ino, **words}
        whole.place(state, MARK, json.dumps(document).encode())
        os.symlink(made, f".{CURRENT}", dir_fd=volume)
        _label(root, volume, f".{CURRENT}")
        os.rename(f".{CURRENT}", CURRENT, src_dir_fd=volume, dst_dir_fd=volume)
    except BaseException:
        _drop(state, staged)
        _drop_others(state, volume, before)
        raise
    _drop_others(state, volume, made)
    return True


def _current(volume: int) -> str:
    """The name of the copies that are in their place; "" for none."""
    try:
        name = os.readlink(CURRENT, dir_fd=volume)
        os.stat(name, dir_fd=volume, follow_symlinks=False)
    except OSError:
        return ""
    return name if name.startswith(".") and "/" not in name else ""


def _copy_all(root: HostRoot, files: dict[str, str], links: dict[str, str], state: int, staged: str) -> None:
    with closing(_make_folder(state, staged)) as top:
        _label(root, top, ".")
        for folder in sorted({*_FOLDERS, *[place.rpartition("/")[0] for place in (*files, *links)]}):
            os.close(_make_folder(top, folder))
            _label(root, top, folder)
        for place, path in files.items():
            _copy(root, path, top, place)
        for place, text in links.items():
            os.symlink(text, place, dir_fd=top)
            _label(root, top, place)
        os.fsync(top)


def _drop_others(state: int, volume: int, kept: str) -> None:
    """Remove all copies but `kept`, also those of a run that was killed; out of containers' sight first."""
    with os.scandir(volume) as entries:
        names = [entry.name for _, entry in zip(range(_MOST_COPIES), entries)]
    for number, name in enumerate([name for name in names if name[:1] == "." and name != kept]):
        gone = f"{_STAGED}gone.{number}"
        os.rename(name, gone, src_dir_fd=volume, dst_dir_fd=state)
        _drop(state, gone)


def _drop_staged(state: int) -> None:
    """Remove what a run that was killed has left beside the volume."""
    for name in os.listdir(state):
        if name.startswith(_STAGED):
            _drop(state, name)


def _copy(root: HostRoot, path: str, top: int, place: str) -> None:
    """Copy one file: blocks that the filesystem can share are shared, and are nobody's to write."""
    with closing(open_source(root.fd, path)) as named:
        opened = reopened(named, os.O_NONBLOCK)
    with closing(opened) as source:
        status = os.fstat(source)
        if not is_regular(status):
            raise OSError(errno.EINVAL, "it is not a regular file", path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with closing(os.open(place, flags, 0o600, dir_fd=top)) as fd:
            _copy_bytes(source, fd)
            _label(root, top, place)
            # Never a set-user-id bit.
            os.fchmod(fd, 0o755 if status.st_mode & 0o111 else 0o644)
            os.fsync(fd)


def _copy_bytes(source: int, target: int) -> None:
    try:
        while os.copy_file_range(source, target, 1 << 30):
            pass
    except OSError as err:
        # Between some filesystems the kernel does not copy by itself.
        if err.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        with open(source, "rb", closefd=False) as reader, open(target, "wb", closefd=False) as writer:
            shutil.copyfileobj(reader, writer)


def _drop(folder: int, name: str) -> None:
    """Remove a file, or a folder with what is in it; nothing if there is none.

    A container may have filled it: with folders in folders, as deep as it likes.  So a folder's folders are brought up
    beside it, and removed after it.  OSError if there are too many names.
    """
    folders, count = [name] if not _unlinks(name, folder) else [], 0
    while folders:
        top = folders.pop()
        with closing(os.open(top, _FLAGS, dir_fd=folder)) as fd:
            with os.scandir(fd) as entries:
                names = [entry.name for _, entry in zip(range(_MOST_NAMES), entries)]
            for inner in names:
                count += 1
                if count >= _MOST_NAMES:
                    raise OSError(errno.EMFILE, f"more than {_MOST_NAMES} names are in it", name)
                if not _unlinks(inner, fd):
                    beside = f"{name}.{count}"
                    os.rename(inner, beside, src_dir_fd=fd, dst_dir_fd=folder)
                    folders.append(beside)
        os.rmdir(top, dir_fd=folder)


def _unlinks(name: str, folder: int) -> bool:
    """Remove a file; True also if there is none, False if it is a folder."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass
    except (IsADirectoryError, PermissionError):
        return False
    return True


def _is_labelled(root: HostRoot, fd: int) -> bool:
    """Whether an open file has that label, which restorecon may have taken away; True without SELinux or labels."""
    try:
        return root.stat(_SELINUX) is None or os.getxattr(fd, _ATTRIBUTE) == _LABEL
    except OSError:
        return True


def _label(root: HostRoot, folder: int, name: str) -> None:
    """Give a file, a folder or a link the label that containers may read."""
    if root.stat(_SELINUX) is None:
        return
    try:
        os.setxattr(f"/proc/self/fd/{folder}/{name}", _ATTRIBUTE, _LABEL, follow_symlinks=False)
    except OSError as err:
        # A policy without containers, or a filesystem without labels: there is nothing to be right.
        if err.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
