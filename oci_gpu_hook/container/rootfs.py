# SPDX-License-Identifier: Apache-2.0
"""The container's root, and the mounts below it in which things may be made: proved, never inferred from a path.

The root is the mount and the inode that ``root.path`` of config.json is: some runtimes mount a volume over it where a
link of the image leads to ``/``, and the owner of the folder around it can exchange it.  Beside it, the container's own
are the tmpfs that the runtime has made for it alone.  Reads only.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.container.process import INITIAL_USER_NAMESPACE, Process
from oci_gpu_hook.errors import BundleError
from oci_gpu_hook.host.source import open_source
from oci_gpu_hook.kernel import mountinfo, procfile, syscalls
from oci_gpu_hook.kernel.descriptors import closing
from oci_gpu_hook.kernel.filetypes import is_link, is_same
from oci_gpu_hook.record import NamedTuple

_FOLDER = posix.O_PATH | posix.O_DIRECTORY
# Each procfs has this folder, over which ours is mounted in part.  The kernel lets no process make things in a procfs.
_DRIVERS = "/proc/driver"
# As whom a user namespace shows users that it does not know (proc_sys_kernel(5), overflowuid), and all users.
_NOBODY = 65_534
_ALL = range(1 << 32)
# Where runtimes mount a tmpfs, if nothing says where this one did.
USUAL_TMPFS = ("/dev", "/dev/shm", "/run", "/var/run", "/tmp")
_KINDS = (syscalls.TMPFS_MAGIC, syscalls.PROC_SUPER_MAGIC)


class Rootfs(NamedTuple):
    """A container's root: an O_PATH descriptor, the mounts in which things may be made, and its path for people.
    makes_nodes: whether a device node in its /dev goes with the container: on a disk it would stay, open to any user
    whose the root is.  is_layer: whether it is an overlay of its own, of whose upper layer no other container reads.
    """

    fd: int
    own: tuple[int, ...]
    path: str
    makes_nodes: bool = True
    is_layer: bool = False


def of_folder(path: str) -> Rootfs:
    """The root of a container that does not exist yet, or that CRIU restores: nothing is mounted below it."""
    return Rootfs(_open(path, None), (), path)


def of_process(path: str, tmpfs: tuple[str, ...], process: Process) -> Rootfs:
    """The root of a container whose process waits for its hooks, proved; tmpfs: where its runtime may have one."""
    fd = _open(path, process)
    id, is_mounted_there = syscalls.mount_of(fd)
    if not is_mounted_there:
        raise _not_the_root(path, "nothing is mounted there for the container")
    if not _is_here_too(fd, path):
        raise _not_the_root(path, "something else is mounted over it")
    return _meant(path, fd, id, _own(fd, tmpfs))


def of_caller(path: str, caller: Process) -> Rootfs:
    """Nothing of the host's is mounted below it alone: what PID 1 has mounted, or this namespace elsewhere, is the
    host's.  So is the root's own filesystem, but in a user namespace: what the hook makes there, the caller could make.
    BundleError if it cannot be proved.
    """
    fd = _open(path, None)
    id, is_mounted_there = syscalls.mount_of(fd)
    if not is_mounted_there or _is_here_too(fd, "/"):
        raise _not_the_root(path, "nothing is mounted there for the container")
    mount = mountinfo.mount(procfile.pieces("/proc/self/mountinfo"), id)
    if mount is None or any([tag.startswith("shared:") for tag in mount.tags]):
        raise _not_the_root(path, "what is mounted in it would show in other mount namespaces too")
    hosts, top = _hosts(id), posix.readlink(f"/proc/self/fd/{fd}")
    session = _session(top, hosts)
    own = _own(fd, USUAL_TMPFS, session or top, hosts)
    # A mount point in /tmp, or in a folder like it, may belong to the container's user; a session folder may as well.
    found = _meant(path, fd, id, own, None if session else posix.fstat(fd).st_uid)
    shown: object = not hosts or mountinfo.mounted(procfile.pieces(hosts), {mount.device})
    shown = shown or (session and mountinfo.mounted(procfile.pieces("/proc/self/mountinfo"), {mount.device}, session))
    if shown and not caller.in_user_namespace():
        found = found._replace(own=(*own,))
    return found._replace(makes_nodes=_is_in_memory(fd, "/dev", found.own))


def _meant(path: str, fd: int, id: int, own: dict[int, str], owner: int | None = 0) -> Rootfs:
    """The root at `path`, if the runtime has meant the folder open at `fd` by it, to which the path leads now: a mount
    of its own on it, or around it (owner None), says so; BundleError if others could exchange it.  See `_is_roots`.
    """
    # /dev is the first, and of most roots all that is looked at.
    if owner is not None and not any(_lies_on(fd, name) for name in own.values()) and not _is_roots(path, fd, owner):
        raise _not_the_root(path, "others than root can exchange it for another folder")
    return Rootfs(fd, (id, *own), path, makes_nodes="/dev" in own.values(), is_layer=_is_overlay(fd, path))


def _is_overlay(fd: int, path: str) -> bool:
    """Not of a folder of one, as the host's own system may be."""
    try:
        is_mounted = posix.stat(path.rpartition("/")[0] or "/").st_dev != posix.fstat(fd).st_dev
        return is_mounted and syscalls.filesystem_magic(fd) == syscalls.OVERLAYFS_SUPER_MAGIC
    except OSError:
        return False


def _is_in_memory(fd: int, path: str, own: tuple[int, ...]) -> bool:
    try:
        with closing(syscalls.openat2(fd, path, posix.O_PATH, resolve=syscalls.RESOLVE_BELOW)) as found:
            # In this order, see `_own`.
            return syscalls.mount_of(found)[0] in own and syscalls.filesystem_magic(found) == syscalls.TMPFS_MAGIC
    except OSError:
        return False


def _hosts(id: int) -> str:
    """Where PID 1's mounts are listed; "" if that is closed, or they are this namespace's, which has mount `id`."""
    path = "/proc/1/mountinfo"
    try:
        return "" if mountinfo.mount(procfile.pieces(path), id) else path
    except OSError:
        return ""


def _session(top: str, hosts: str) -> str:
    """The tmpfs that the caller has made around the root's mount point, as Apptainer's; "" if that cannot be proved."""
    folder = top.rpartition("/")[0]
    for _, fd, number in _lie_at(posix.open("/", _FOLDER), (folder,)) if folder and hosts else ():
        # In this order, see `_own`.
        if not mountinfo.mounted(procfile.pieces(hosts), {number}) and syscalls.mount_of(fd)[1]:
            return folder if syscalls.filesystem_magic(fd) == syscalls.TMPFS_MAGIC else ""
    return ""


def _own(fd: int, destinations: tuple[str, ...], top: str = "", hosts: str = "") -> dict[int, str]:
    """The id of each filesystem that the runtime has made for this container, and its path: each tmpfs, and procfs.

    A destination alone proves nothing: a link of the image leads it into a volume of the host, or a volume to where
    such a tmpfs was mounted before.  Of every filesystem that a volume can show, the host itself has a mount.  The
    container's own mounts are not listed: before pivot_root they are the host's and more, and each takes its time.
    top: the root's path, or that of a folder around it which is the container's too, if all are in this namespace,
    else "".  hosts: a list of the host's mounts beside this namespace's, "" for none.
    """
    own = {}
    there = _lie_at(fd, (*destinations, _DRIVERS))
    numbers = {number for _, _, number in there}
    elsewhere = mountinfo.mounted(procfile.pieces("/proc/self/mountinfo"), numbers, top)
    if hosts:
        elsewhere |= mountinfo.mounted(procfile.pieces(hosts), numbers)
    for path, found, number in there:
        # In this order: SELinux lets the hook ask nothing of the host's filesystems.
        if number not in elsewhere and syscalls.filesystem_magic(found) in _KINDS:
            own[syscalls.mount_of(found)[0]] = path
        posix.close(found)
    return own


def _lie_at(fd: int, paths: tuple[str, ...]) -> list[tuple[str, int, str]]:
    """Each of `paths` at which something lies, with a descriptor of that, and its device's number."""
    there = []
    for path in paths:
        try:
            found = syscalls.openat2_if_there(fd, path, posix.O_PATH, resolve=syscalls.RESOLVE_BELOW)
        except OSError:
            continue
        if found is not None:
            device = posix.fstat(found).st_dev
            there.append((path, found, f"{posix.major(device)}:{posix.minor(device)}"))
    return there


def _lies_on(fd: int, path: str) -> bool:
    """Whether what is mounted at `path` is mounted on a name in the folder open at `fd` itself."""
    name = path.strip("/")
    try:
        here = posix.stat(name, dir_fd=fd, follow_symlinks=False)
    except OSError:
        return False
    # A link is not a mount point, and what is behind a second name may lie anywhere.
    return "/" not in name and not is_link(here) and here.st_dev != posix.fstat(fd).st_dev


def _open(path: str, process: Process | None) -> int:
    # Before pivot_root this link leads into the container's mount namespace, and is the host's root in it.
    with closing(process.open("root", _FOLDER) if process else posix.open("/", _FOLDER)) as start:
        try:
            return syscalls.openat2(start, path, _FOLDER, resolve=syscalls.RESOLVE_BELOW)
        except OSError as err:
            raise BundleError(f"the container's root {path} cannot be opened: {err.strerror}") from err


def _is_here_too(fd: int, path: str) -> bool:
    """Whether `path` leads to the same folder in our own mount namespace, which is the runtime's."""
    try:
        return is_same(posix.stat(path), posix.fstat(fd))
    except OSError:
        return False


def _is_roots(path: str, fd: int, owner: int) -> bool:
    """Whether root, or a rootless engine's user, alone can exchange the folder at `path`, which is open at `fd`."""
    try:
        with closing(posix.open("/", _FOLDER | posix.O_CLOEXEC)) as start:
            # In a sticky folder only its owner can exchange a thing (inode(7), S_ISVTX): that user, or one without a
            # number here, as root is: see SECURITY.md.
            whose = (None, _ALL) if _is_users_own(start) else (owner, None)
            found = open_source(start, path, *whose)
        with closing(found):
            # Its owner may have exchanged it meanwhile.
            return is_same(posix.fstat(found), posix.fstat(fd))
    except OSError:
        return False


def _is_users_own(root_fd: int) -> bool:
    """Whether the hook runs in a user namespace that its own user has made, on a system that is not that user's, as
    LXC's is.  There all numbers are that user's: to exchange a folder gains nothing (SECURITY.md).
    """
    with closing(posix.open("/proc/self/ns/user", posix.O_RDONLY | posix.O_CLOEXEC)) as fd:
        return (
            posix.fstat(fd).st_ino != INITIAL_USER_NAMESPACE
            and posix.fstat(root_fd).st_uid == _NOBODY
            and syscalls.ns_get_owner_uid(fd) == posix.geteuid()
        )


def _not_the_root(path: str, why: str) -> BundleError:
    return BundleError(f"what lies at {path} is not the container's root: {why}")
