# SPDX-License-Identifier: Apache-2.0
"""What lies in a folder of the host that is to be given whole, and what of it is not for everybody or others may write.

A container's root reads in it what the host's root may, and CAP_SYS_ADMIN makes a read-only mount writable again.
Reads no file's content.  Never used by a start that finds a saved inventory that is still true.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel import mountinfo, procfile
from oci_gpu_hook.kernel.descriptors import closing
from oci_gpu_hook.kernel.filetypes import is_folder, is_link, is_regular, openness
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Way = tuple[int, int, int]

# A release of ROCm, the largest that is known, has some ten thousands of things in some thousands of folders.
MAX_THINGS, MAX_FOLDERS, MAX_DEPTH = 1 << 17, 1 << 13, 32
_LIST = posix.O_RDONLY | posix.O_DIRECTORY | posix.O_NOFOLLOW
_READABLE, _LISTABLE = 0o004, 0o005


class Contents(NamedTuple):
    """By path; folders: itself first; files: and what is neither file nor folder, each with its user, group and mode;
    faults: why a thing cannot be given.
    """

    folders: tuple[str, ...]
    files: dict[str, Way]
    links: tuple[str, ...]
    faults: dict[str, str]

    def pieces(self) -> tuple[str, ...]:
        """What can be given: the folder itself; if there is a fault in it, each thing of it that has none in it."""
        above = set()
        for path in self.faults:
            while path not in above:
                above.add(path)
                path = path.rpartition("/")[0]
        if not above:
            return self.folders[:1]
        things = (*self.folders, *self.files, *self.links)
        return tuple([path for path in things if path not in above and path.rpartition("/")[0] in above])


class TooMuchError(Exception):
    """A folder has more in it than is looked at."""


def folder_contents(host: HostRoot, folder: str, see: Callable[[str], None]) -> Contents:
    """folder: a path without links; see: is shown each path first.  TooMuchError."""
    roots, mounted = host.roots, _mounted_below(f"{host.path.rstrip('/')}{folder}")
    folders: list[str] = []
    files: dict[str, Way] = {}
    links: list[str] = []
    faults: dict[str, str] = {}
    wanted = [(folder, 0)]
    while wanted:
        path, depth = wanted.pop()
        see(path)
        folders.append(path)
        for name, status in _entries(host, path):
            at = f"{path}/{name}"
            # A clone has what the mount hides.
            reason = "something is mounted on it" if at[len(folder) :] in mounted else fault(name, status, roots)
            if reason:
                faults[at] = reason
            if status is None or is_link(status):
                links += [] if reason else [at]
            elif is_folder(status) and not reason:
                wanted.append((at, depth + 1))
            elif is_folder(status):
                see(at)
            else:
                files[at] = (status.st_uid, status.st_gid, status.st_mode)
        count = len(folders) + len(wanted)
        if count > MAX_FOLDERS or count + len(files) + len(links) + len(faults) > MAX_THINGS or depth > MAX_DEPTH:
            raise TooMuchError(f"it has more than {MAX_FOLDERS} folders, {MAX_THINGS} things or {MAX_DEPTH} levels")
    return Contents(tuple(folders), files, tuple(links), faults)


def _entries(host: HostRoot, path: str) -> list[tuple[str, posix.stat_result | None]]:
    """Each name with its status, None if that cannot be had; no name if the folder cannot be read."""
    found: list[tuple[str, posix.stat_result | None]] = []
    try:
        fd = host.open(path, _LIST)
    except OSError:
        return []
    with closing(fd), posix.scandir(fd) as entries:
        for entry in entries:
            try:
                found.append((entry.name, entry.stat(follow_symlinks=False)))
            except OSError:
                found.append((entry.name, None))
            if len(found) > MAX_THINGS:
                break
    return found


def fault(name: str, status: posix.stat_result | None, roots: tuple[int, ...]) -> str:
    """Why a thing cannot be given; "" if it can be.  A link leads to what the container itself has there."""
    if not name.isprintable():
        return "its name cannot be printed"
    if status is None:
        return "it cannot be looked at"
    if is_link(status):
        return ""
    if not (is_folder(status) or is_regular(status)):
        return "it is neither a file nor a folder"
    if why := openness(status, roots):
        return why
    needed = _LISTABLE if is_folder(status) else _READABLE
    return "" if status.st_mode & needed == needed else "not everybody may read it"


def _mounted_below(folder: str) -> set[str]:
    points = [mount.point for mount in mountinfo.mounts(procfile.pieces("/proc/self/mountinfo"))]
    return {point[len(folder) :] for point in points if point.startswith(f"{folder}/")}
