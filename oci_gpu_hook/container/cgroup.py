# SPDX-License-Identifier: Apache-2.0
"""The container's device cgroup: found, and opened for given devices.

cgroup v1 has files, devices.allow and devices.deny.  cgroup v2 has eBPF programs: each is replaced
by itself with our rules in front, at once, so that there is no moment without a filter.  A request
must pass every program from the container's cgroup up to the root; all that are the container's own
are replaced.

`locate` reads, `allow` writes.  Must not touch a cgroup that is not the container's alone, and must
not decide which devices.
"""

from __future__ import annotations

import posix

from oci_gpu_hook import bpf, linux, oci
from oci_gpu_hook.container import devicefilter
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from oci_gpu_hook.oci import DeviceRule

_CGROUP_ROOT = "/sys/fs/cgroup"
_MOUNTINFO = "/proc/self/mountinfo"
_V1_CONTROLLER = "devices"
_DIRECTORY = posix.O_RDONLY | posix.O_DIRECTORY | posix.O_CLOEXEC

# The initial user namespace's number is part of the kernel's interface (PROC_USER_INIT_INO).
_INITIAL_USER_NAMESPACE = "user:[4026531837]"

_NOT_PERMITTED = "the kernel lets nobody in a user namespace change a device cgroup"
_NO_DEVICE_CGROUPS = "this host has no device cgroups"

_PROGRAM_NAME = "oci_gpu_hook"
_PROGRAM_LICENSE = "Apache-2.0"

# systemd may replace a program of its own while we do (daemon-reload); then we look again.
_ROUNDS = 16


class DeviceCgroup(NamedTuple):
    """Which device cgroup holds a container.

    version: ``v1``, ``v2``, or "" where there is none that may be changed.
    path: the directory of the cgroup that the container's process is in; "" while there is none.
    top: the highest directory that is the container's own: `path` or one above it.
    reason: why there is none, in words; else "".
    """

    version: str
    path: str
    top: str
    reason: str


class Change:
    """What `allow` did.

    skipped: "" where the rules are in force now, else why nothing was done, in words.
    """

    def __init__(self, skipped: str = "") -> None:
        self.skipped = skipped
        self._undo: list[tuple[Callable[..., object], tuple[object, ...]]] = []
        self._kept: list[int] = []

    def undo(self) -> None:
        """Put back what was in force before; the first error is raised when all has been tried."""
        failure = None
        while self._undo:
            function, arguments = self._undo.pop()
            try:
                function(*arguments)
            except OSError as err:
                failure = failure or err
        self.close()
        if failure:
            raise failure

    def close(self) -> None:
        """Give the descriptors back; after it nothing can be undone."""
        self._undo.clear()
        while self._kept:
            posix.close(self._kept.pop())

    def remember(self, function: Callable[..., object], *arguments: object) -> None:
        """What `undo` must call."""
        self._undo.append((function, arguments))

    def keep(self, fd: int) -> int:
        """Close `fd` in `close`, not before: what `undo` works on must not go."""
        self._kept.append(fd)
        return fd


def expected() -> DeviceCgroup:
    """What `locate` will find for a container that is yet to be, as far as the host decides it."""
    if not _may_change():
        return _none(_NOT_PERMITTED)
    if _is_unified():
        return DeviceCgroup("v2", "", "", "")
    if _cgroup_path("/proc/self/cgroup", _V1_CONTROLLER) is None:
        return _none(_NO_DEVICE_CGROUPS)
    return DeviceCgroup("v1", "", "", "")


def locate(pid: int, container_id: str) -> DeviceCgroup:
    """The device cgroup that process `pid`, the container's first, is in.

    OSError where the process is gone or its cgroup cannot be seen.
    """
    if not _may_change():
        return _none(_NOT_PERMITTED)
    unified = _is_unified()
    controller = "" if unified else _V1_CONTROLLER
    path = _cgroup_path(f"/proc/{pid}/cgroup", controller)
    if path is None:
        return _none(_NO_DEVICE_CGROUPS)
    components = path.split("/")[1:]
    named = [i for i, name in enumerate(components) if _is_named_after(name, container_id)]
    # Engines can leave a container in the cgroup of its runtime, and so of other processes.
    if not named and path in ("/", _cgroup_path("/proc/self/cgroup", controller)):
        return _none(f"the container has no cgroup of its own, it is in {path} with others")
    directory = _directory(path, controller)
    # The lowest one that is named so: an id may be short, and equal a name further up.
    below = components[named[-1] + 1 :] if named else []
    top = directory.removesuffix("".join([f"/{name}" for name in below]))
    return DeviceCgroup("v2" if unified else "v1", directory, top, "")


def allow(
    cgroup: DeviceCgroup, rules: Sequence[DeviceRule], fallback_rules: Iterable[DeviceRule]
) -> Change:
    """Open the device cgroup for exactly `rules`.

    fallback_rules: linux.resources.devices of config.json, from which a v2 program is rebuilt where
    the kernel does not show its instructions.  OSError where a step fails; all is put back then.
    """
    if cgroup.reason:
        return Change(cgroup.reason)
    change = Change()
    try:
        if cgroup.version == "v1":
            for directory in _levels(cgroup):
                _allow_v1(directory, rules, change)
        else:
            _allow_v2(cgroup, rules, fallback_rules, change)
    except BaseException:
        try:
            change.undo()
        except OSError:
            pass  # the first error is the one to tell; the cgroup goes with the container
        raise
    return change


def _none(reason: str) -> DeviceCgroup:
    return DeviceCgroup("", "", "", reason)


def _levels(cgroup: DeviceCgroup) -> list[str]:
    """The container's own directories, the highest first."""
    levels = [cgroup.top]
    for name in cgroup.path[len(cgroup.top) :].split("/")[1:]:
        levels.append(f"{levels[-1]}/{name}")
    return levels


def _is_named_after(name: str, container_id: str) -> bool:
    """Whether an engine names a container's cgroup so: ID, ENGINE-ID, and either with ".scope"."""
    stem = name[: -len(".scope")] if name.endswith(".scope") else name
    return bool(container_id) and (stem == container_id or stem.endswith(f"-{container_id}"))


def _may_change() -> bool:
    """Whether we are in the initial user namespace, whose capabilities both versions ask for."""
    return posix.readlink("/proc/self/ns/user") == _INITIAL_USER_NAMESPACE


def _is_unified() -> bool:
    """Whether this is a v2 host, by the rule of runc and crun: /sys/fs/cgroup itself is cgroup2."""
    try:
        fd = posix.open(_CGROUP_ROOT, posix.O_PATH | posix.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return linux.filesystem_magic(fd) == linux.CGROUP2_SUPER_MAGIC
    finally:
        posix.close(fd)


def _cgroup_path(file: str, controller: str) -> str | None:
    """The path in the hierarchy of `controller`, "" for v2, from /proc/PID/cgroup (cgroups(7))."""
    for line in _lines(file):
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    return None


def _directory(path: str, controller: str) -> str:
    """The directory that shows the cgroup `path`."""
    if path.startswith("/.."):
        raise linux.SyscallError(
            linux.ENOENT, "open", f"cgroup {path}, outside our cgroup namespace"
        )
    if not controller and _exists(_CGROUP_ROOT + path):
        return (_CGROUP_ROOT + path).rstrip("/")
    # In a container the mount may show a part of the hierarchy only, while `path` starts at the
    # root of our cgroup namespace.
    for root, mount_point in _mounts("cgroup" if controller else "cgroup2", controller):
        directory = mount_point + path[len(root) :]
        if f"{path}/".startswith(f"{root}/") and _exists(directory):
            return directory.rstrip("/")
    raise linux.SyscallError(
        linux.ENOENT, "open", f"cgroup {path} below the mounts of its hierarchy"
    )


def _mounts(kind: str, controller: str) -> list[tuple[str, str]]:
    """The root within the hierarchy, "" for all of it, and the mount point, of each of its mounts.

    From mountinfo (proc_pid_mountinfo(5)).
    """
    found = []
    for line in _lines(_MOUNTINFO):
        mount, _, filesystem = line.partition(" - ")
        fstype, _, rest = filesystem.partition(" ")
        options = rest.partition(" ")[2].split(",")
        if fstype == kind and (not controller or controller in options):
            root, mount_point = mount.split(" ")[3:5]
            found.append((root.rstrip("/"), mount_point))
    return found


def _exists(path: str) -> bool:
    try:
        posix.stat(path)
    except FileNotFoundError:
        return False
    return True


def _lines(path: str) -> list[str]:
    """The lines of a file of the kernel's: each ends with a newline, and no other byte ends one."""
    fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        pieces = []
        while piece := posix.read(fd, 1 << 16):
            pieces.append(piece)
    finally:
        posix.close(fd)
    return b"".join(pieces).decode(errors="surrogateescape").split("\n")[:-1]


def _write(path: str, line: str) -> None:
    fd = posix.open(path, posix.O_WRONLY | posix.O_CLOEXEC)
    try:
        posix.write(fd, line.encode())
    except OSError as err:
        raise linux.SyscallError(err.errno or 0, "write", f"'{line}' to {path}") from err
    finally:
        posix.close(fd)


def _allow_v1(directory: str, rules: Sequence[DeviceRule], change: Change) -> None:
    """One write a rule: the kernel takes one at a time (cgroup-v1/devices.rst)."""
    listed = [_listed(line) for line in _lines(f"{directory}/devices.list")]
    for rule in rules:
        if any(_covers(entry, rule) for entry in listed):
            continue
        _write(f"{directory}/devices.allow", oci.written(rule))
        # The kernel adds to an entry for the same numbers: only what that lacked is ours.
        device = oci.written(rule).rpartition(" ")[0]
        before = "".join([access for other, access in listed if other == device])
        ours = "".join([letter for letter in rule.access if letter not in before])
        change.remember(_write, f"{directory}/devices.deny", f"{device} {ours}")


def _listed(line: str) -> tuple[str, str]:
    """A line of devices.list as its device, ``TYPE MAJOR:MINOR``, and its access."""
    device, _, access = line.rpartition(" ")
    return device, access


def _covers(entry: tuple[str, str], rule: DeviceRule) -> bool:
    """Whether one entry allows all of the rule: the kernel does not add up different entries."""
    device, access = entry
    kind, _, numbers = device.partition(" ")
    major, _, minor = numbers.partition(":")
    return (
        kind in ("a", rule.type)
        and major in ("*", str(rule.major))
        and minor in ("*", str(rule.minor))
        and set(rule.access) <= set(access)
    )


def _allow_v2(
    cgroup: DeviceCgroup,
    rules: Sequence[DeviceRule],
    fallback_rules: Iterable[DeviceRule],
    change: Change,
) -> None:
    prefix = devicefilter.prefix(rules)

    def load(old_fd: int) -> int:
        instructions = bpf.prog_insns(old_fd)
        if instructions is None or not devicefilter.is_loadable(instructions):
            known = (*fallback_rules, *devicefilter.runtime_defaults())
            instructions = devicefilter.program(known)
        kind, program = bpf.BPF_PROG_TYPE_CGROUP_DEVICE, prefix + instructions
        return bpf.prog_load(kind, program, name=_PROGRAM_NAME, license=_PROGRAM_LICENSE)

    ours: set[int] = set()
    # crun with systemd has one program on the scope and one on its sub-cgroup (crun issue 1738).
    for directory in _levels(cgroup):
        cgroup_fd = change.keep(posix.open(directory, _DIRECTORY))
        _replace_all(cgroup_fd, directory, load, ours, change)
    if ours:
        return
    change.skipped = "no device program restricts the container's cgroup"
    # The last one opened is the container's.
    effective = bpf.prog_query(cgroup_fd, query_flags=bpf.BPF_F_QUERY_EFFECTIVE)[1]
    if effective:
        change.skipped += f", only {len(effective)} of the cgroups above, which are not its own"


def _replace_all(
    cgroup_fd: int, directory: str, load: Callable[[int], int], ours: set[int], change: Change
) -> None:
    """Replace programs of the cgroup by those that `load` makes of them, until it shows `ours` only."""
    for _ in range(_ROUNDS):
        attach_flags, ids = bpf.prog_query(cgroup_fd)
        if ours.issuperset(ids):
            return
        for prog_id in ids:
            if prog_id not in ours:
                _replace(cgroup_fd, attach_flags, prog_id, load, ours, change)
    raise linux.SyscallError(linux.EBUSY, "bpf", f"BPF_PROG_ATTACH: others change {directory} too")


def _replace(
    cgroup_fd: int,
    attach_flags: int,
    prog_id: int,
    load: Callable[[int], int],
    ours: set[int],
    change: Change,
) -> None:
    try:
        old_fd = change.keep(bpf.prog_get_fd_by_id(prog_id))
        new_fd = change.keep(load(old_fd))
        _put(cgroup_fd, attach_flags, new_fd, old_fd)
    except linux.SyscallError as err:
        if err.errno == linux.ENOENT:
            return  # the program went after the query; the next one shows what came
        raise
    change.remember(_put_back, cgroup_fd, attach_flags, old_fd, new_fd)
    ours.add(bpf.prog_id(new_fd))


def _put(cgroup_fd: int, attach_flags: int, new_fd: int, old_fd: int) -> None:
    """Attach one program in the place of another, at once; the flags are those of the old one.

    A cgroup without BPF_F_ALLOW_MULTI holds one program, and attaching another replaces it at once.
    """
    if attach_flags & bpf.BPF_F_ALLOW_MULTI:
        bpf.prog_attach(
            cgroup_fd, new_fd, attach_flags=attach_flags | bpf.BPF_F_REPLACE, replace_fd=old_fd
        )
    else:
        bpf.prog_attach(cgroup_fd, new_fd, attach_flags=attach_flags)


def _put_back(cgroup_fd: int, attach_flags: int, old_fd: int, new_fd: int) -> None:
    try:
        _put(cgroup_fd, attach_flags, old_fd, new_fd)
    except linux.SyscallError as err:
        # Somebody has replaced ours since, or the cgroup is gone: there is nothing to put back.
        if err.errno not in (linux.ENOENT, linux.ENODEV):
            raise
