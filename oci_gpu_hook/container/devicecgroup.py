# SPDX-License-Identifier: Apache-2.0
"""Find the container's device cgroup (cgroups(7)) and its systemd scope.  Reads only: `changes` opens them."""

from __future__ import annotations

import posix

from oci_gpu_hook.container.process import INITIAL_USER_NAMESPACE, Process
from oci_gpu_hook.errors import BundleError
from oci_gpu_hook.kernel import mountinfo, procfile, syscalls
from oci_gpu_hook.kernel.descriptors import closing
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.formats.scopeunit import ScopeUnit

CGROUP_ROOT = "/sys/fs/cgroup"
_OUR_CGROUP = "/proc/self/cgroup"


class DeviceCgroup(NamedTuple):
    """version: ``v1``, ``v2``, or "" if none may be changed, for the `reason`; path: the directory of its process's
    cgroup, "" without a process; top: the highest directory from `path` up that belongs to the container alone.
    """

    version: str = ""
    path: str = ""
    top: str = ""
    reason: str = ""


def find(process: Process | None, container_id: str, *, is_needed: bool = True) -> DeviceCgroup:
    """The same as `locate`; BundleError if it `is_needed` and cannot be found."""
    try:
        return locate(process, container_id)
    except OSError as err:
        why = f"the container's device cgroup cannot be found: {err}"
        if is_needed:
            raise BundleError(why) from err
        return DeviceCgroup(reason=why)


def locate(process: Process | None, container_id: str) -> DeviceCgroup:
    """Without a process, what it will be.  OSError if the process is gone."""
    if process is not None and process.is_caller:
        return DeviceCgroup(reason="a call without --pid names no cgroup")
    # Both versions require capabilities in the initial user namespace.
    if posix.stat("/proc/self/ns/user").st_ino != INITIAL_USER_NAMESPACE:
        return DeviceCgroup(reason="the kernel lets no process in a user namespace change a device cgroup")
    version, controller = ("v2", "") if is_unified(CGROUP_ROOT) else ("v1", "devices")
    path = path_in(process.read("cgroup") if process else procfile.read_whole(_OUR_CGROUP), controller)
    if path is None:
        return DeviceCgroup(reason="this host has no device cgroups")
    if process is None:
        return DeviceCgroup(version)
    components = path.split("/")[1:]
    named = [i for i, name in enumerate(components) if is_named_after(name, container_id)]
    # An engine can leave a container in the cgroup of its runtime, together with other processes.
    if not named and path in ("/", path_in(procfile.read_whole(_OUR_CGROUP), controller)):
        return DeviceCgroup(reason=f"the container has no cgroup of its own, it is in {path} with others")
    directory = _directory(path, controller, process.pid)
    # The lowest component with that name counts: an id may be short, and a cgroup further up may have the same name.
    below = components[named[-1] + 1 :] if named else components[-1:] if _is_subgroup(directory) else []
    return DeviceCgroup(version, directory, directory.removesuffix("".join([f"/{name}" for name in below])))


def scope_of(directory: str) -> ScopeUnit | None:
    """The systemd scope whose cgroup is `directory`; None if there is none that systemd restricts the devices of."""
    # The underscore is systemd's escape for a unit that is named as a file of the kernel's could be: memory.scope.
    name = directory.rpartition("/")[2].removeprefix("_")
    if not name.endswith(".scope"):
        return None
    from oci_gpu_hook.formats import scopeunit

    # Where systemd writes a unit that a program gave it.
    unit = f"/run/systemd/transient/{name}"
    texts = [_content(unit)]
    texts += [_content(f"{unit}.d/{file}") for file in scopeunit.DROP_INS] if texts[0] else []
    return scopeunit.parse_scope(name, "\n".join(texts))


def _content(path: str) -> str:
    """Empty for what cannot be read."""
    try:
        return procfile.read_whole(path).decode(errors="replace")
    except OSError:
        return ""


def levels(path: str, top: str) -> list[str]:
    found = [top]
    for name in path[len(top) :].split("/")[1:]:
        found.append(f"{found[-1]}/{name}")
    return found


def lines(data: bytes) -> list[str]:
    """The lines of one of the kernel's files.  Only a newline ends a line, unlike in str.splitlines."""
    return data.decode(errors="surrogateescape").split("\n")[:-1]


def is_unified(path: str) -> bool:
    """Whether a v2 host has its /sys/fs/cgroup at `path`, by the rule of runc and crun: it is itself cgroup2."""
    try:
        with closing(posix.open(path, posix.O_PATH | posix.O_CLOEXEC)) as fd:
            return syscalls.filesystem_magic(fd) == syscalls.CGROUP2_SUPER_MAGIC
    except FileNotFoundError:
        return False


def is_named_after(name: str, container_id: str) -> bool:
    """Whether a cgroup's name is one that engines give a container: ID, ENGINE-ID or SLICE:ENGINE:ID, or that.scope."""
    stem = name.removesuffix(".scope")
    return bool(container_id) and (stem == container_id or stem.endswith((f"-{container_id}", f":{container_id}")))


def _is_subgroup(directory: str) -> bool:
    """Whether it is all that a systemd scope has: crun makes one there, whatever its engine has named the scope."""
    scope = directory.rpartition("/")[0]
    if not scope.endswith(".scope"):
        return False
    # A cgroup has a link from itself, from its parent and from each cgroup in it.
    return posix.stat(scope).st_nlink == 3 and not procfile.read_whole(f"{scope}/cgroup.procs")


def path_in(data: bytes, controller: str) -> str | None:
    """From the content of /proc/PID/cgroup; controller: "" for v2."""
    for line in lines(data):
        controllers, _, path = line.partition(":")[2].partition(":")
        if controller in controllers.split(","):
            return path
    return None


def _directory(path: str, controller: str, pid: int) -> str:
    usual = f"{CGROUP_ROOT}/{controller}{path}" if controller else f"{CGROUP_ROOT}{path}"
    if controller:
        # A mount may show but a part of a hierarchy.
        is_there = f"{pid}" in _content(f"{usual}/cgroup.procs").split("\n")
    else:
        is_there = posix.access(usual, posix.F_OK)
    # What lies outside our cgroup namespace has a path that begins with "/..".
    if is_there and "/../" not in f"{path}/":
        return usual.rstrip("/")
    # In a container the mount may show only a part of the hierarchy, or more than our cgroup namespace, at whose root
    # both `path` and the mount's root start.
    kind = "cgroup" if controller else "cgroup2"
    for mount in mountinfo.mounts(procfile.pieces("/proc/self/mountinfo")):
        root = mount.root.rstrip("/")
        below = path[len(root) :]
        directory = mount.point + below
        is_its = mount.type == kind and (not controller or controller in mount.options.split(","))
        # No other filesystem is asked: its server may never answer.
        is_below = f"{path}/".startswith(f"{root}/") and "/../" not in f"{below}/"
        if is_its and is_below and posix.access(directory, posix.F_OK):
            return directory.rstrip("/")
    raise syscalls.SyscallError(syscalls.ENOENT, "open", f"cgroup {path} below the mounts of its hierarchy")
