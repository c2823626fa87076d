# SPDX-License-Identifier: Apache-2.0
"""Find the container's device cgroup (cgroups(7)).  Reads only: `changes` opens it."""

from __future__ import annotations

import posix

from oci_gpu_hook.errors import BundleError
from oci_gpu_hook.kernel import mountinfo, procfile, syscalls
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.request.state import ENGINE_HINT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from oci_gpu_hook.container.process import Process

_CGROUP_ROOT = "/sys/fs/cgroup"
_MOUNTINFO = "/proc/self/mountinfo"
_OUR_CGROUP = "/proc/self/cgroup"
_V1_CONTROLLER = "devices"

# The initial user namespace's number is part of the kernel's interface (PROC_USER_INIT_INO).
_INITIAL_USER_NAMESPACE = "user:[4026531837]"

_NOT_PERMITTED = "the kernel lets no process in a user namespace change a device cgroup"
_NO_DEVICE_CGROUPS = "this host has no device cgroups"


class DeviceCgroup(NamedTuple):
    """The device cgroup of a container.

    version: ``v1``, ``v2``, or "" if there is none that may be changed.
    path: the directory of the cgroup that the container's process is in; "" while there is no process.
    top: the highest directory that belongs to the container alone: `path` or one above it.
    reason: why there is no version, in words; else "".
    """

    version: str
    path: str
    top: str
    reason: str


def look(process: Process | None, container_id: str) -> DeviceCgroup:
    """The device cgroup of `process`; without one, what it will be, as far as that depends on the host."""
    try:
        return locate(process, container_id) if process else expected()
    except OSError as err:
        raise BundleError(f"the container's device cgroup cannot be found: {err}", ENGINE_HINT) from err


def expected() -> DeviceCgroup:
    """What `locate` will find for a container that does not exist yet, but without the paths."""
    if not _may_change():
        return _none(_NOT_PERMITTED)
    if is_unified():
        return DeviceCgroup("v2", "", "", "")
    if _cgroup_path(procfile.read(_OUR_CGROUP), _V1_CONTROLLER) is None:
        return _none(_NO_DEVICE_CGROUPS)
    return DeviceCgroup("v1", "", "", "")


def locate(process: Process, container_id: str) -> DeviceCgroup:
    """The device cgroup that `process` is in.

    OSError if the process is gone or its cgroup cannot be seen.
    """
    if not _may_change():
        return _none(_NOT_PERMITTED)
    unified = is_unified()
    controller = "" if unified else _V1_CONTROLLER
    path = _cgroup_path(process.read("cgroup"), controller)
    if path is None:
        return _none(_NO_DEVICE_CGROUPS)
    components = path.split("/")[1:]
    named = [i for i, name in enumerate(components) if _is_named_after(name, container_id)]
    # An engine can leave a container in the cgroup of its runtime, together with other processes.
    if not named and path in ("/", _cgroup_path(procfile.read(_OUR_CGROUP), controller)):
        return _none(f"the container has no cgroup of its own, it is in {path} with others")
    directory = _directory(path, controller, process.pid)
    # The lowest component with that name counts: an id may be short, and a cgroup further up may have the same name.
    below = components[named[-1] + 1 :] if named else []
    top = directory.removesuffix("".join([f"/{name}" for name in below]))
    return DeviceCgroup("v2" if unified else "v1", directory, top, "")


def levels(path: str, top: str) -> list[str]:
    """The directories from `top` down to `path`."""
    found = [top]
    for name in path[len(top) :].split("/")[1:]:
        found.append(f"{found[-1]}/{name}")
    return found


def lines(data: bytes) -> Iterator[str]:
    """The lines of one of the kernel's files.  Only a newline ends a line, unlike in str.splitlines."""
    for line in data.split(b"\n")[:-1]:
        yield line.decode(errors="surrogateescape")


def is_unified() -> bool:
    """Whether this is a v2 host, by the rule of runc and crun: /sys/fs/cgroup itself is cgroup2."""
    try:
        fd = posix.open(_CGROUP_ROOT, posix.O_PATH | posix.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return syscalls.filesystem_magic(fd) == syscalls.CGROUP2_SUPER_MAGIC
    finally:
        posix.close(fd)


def _none(reason: str) -> DeviceCgroup:
    """No device cgroup that may be changed."""
    return DeviceCgroup("", "", "", reason)


def _is_named_after(name: str, container_id: str) -> bool:
    """Whether a cgroup's name is one that engines give a container: ID or ENGINE-ID, with or without ".scope"."""
    stem = name[: -len(".scope")] if name.endswith(".scope") else name
    return bool(container_id) and (stem == container_id or stem.endswith(f"-{container_id}"))


def _may_change() -> bool:
    """Whether we are in the initial user namespace: both versions require capabilities in it."""
    return posix.readlink("/proc/self/ns/user") == _INITIAL_USER_NAMESPACE


def _cgroup_path(data: bytes, controller: str) -> str | None:
    """The path in the hierarchy of `controller` ("" for v2), from the content of /proc/PID/cgroup."""
    for line in lines(data):
        controllers, _, path = line.partition(":")[2].partition(":")
        if controller in controllers.split(","):
            return path
    return None


def _directory(path: str, controller: str, pid: int) -> str:
    """The directory of the cgroup `path`, which the process `pid` is in, below one of the mounts of its hierarchy."""
    if path.startswith("/.."):
        raise syscalls.SyscallError(syscalls.ENOENT, "open", f"cgroup {path}, outside our cgroup namespace")
    usual = f"{_CGROUP_ROOT}/{controller}{path}" if controller else f"{_CGROUP_ROOT}{path}"
    if _holds(usual, pid) if controller else _exists(usual):
        return usual.rstrip("/")
    # In a container the mount may show only a part of the hierarchy, but `path` starts at the root of our cgroup
    # namespace.
    for root, mount_point in _mounts("cgroup" if controller else "cgroup2", controller):
        directory = mount_point + path[len(root) :]
        if f"{path}/".startswith(f"{root}/") and _exists(directory):
            return directory.rstrip("/")
    raise syscalls.SyscallError(syscalls.ENOENT, "open", f"cgroup {path} below the mounts of its hierarchy")


def _mounts(kind: str, controller: str) -> list[tuple[str, str]]:
    """The mounts of a hierarchy: the cgroup that each shows ("" for the root), and its mount point.

    From mountinfo (proc_pid_mountinfo(5)).
    """
    found = []
    for text in mountinfo.whole_lines(procfile.pieces(_MOUNTINFO)):
        for line in lines(text):
            mount, _, filesystem = line.partition(" - ")
            fstype, _, rest = filesystem.partition(" ")
            options = rest.partition(" ")[2].split(",")
            if fstype == kind and (not controller or controller in options):
                root, mount_point = (*mount.split(" "), "", "", "", "", "")[3:5]
                found.append((root.rstrip("/"), mount_point))
    return found


def _holds(directory: str, pid: int) -> bool:
    """Whether the cgroup at `directory` holds the process `pid`: a mount may show but a part of a hierarchy."""
    try:
        return f"{pid}" in lines(procfile.read(f"{directory}/cgroup.procs"))
    except OSError:
        return False


def _exists(path: str) -> bool:
    try:
        posix.stat(path)
    except FileNotFoundError:
        return False
    return True
