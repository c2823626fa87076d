# SPDX-License-Identifier: Apache-2.0
"""What procfs says of processes, and whose they are.

A process has its name, its command line and its environment from its starter.  So only `program` says that it is an
engine's, and the latter two of any other are not read: they lie in its own memory, and a read waits as long as the
process wants (proc_pid_cmdline(5)).  Reads only.
"""

from __future__ import annotations

import fcntl
import posix
import re
from contextlib import ExitStack, suppress

from oci_gpu_hook.container.devicecgroup import CGROUP_ROOT, path_in
from oci_gpu_hook.errors import UsageError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel import procfile, syscalls
from oci_gpu_hook.kernel.descriptors import closing
from oci_gpu_hook.kernel.filetypes import is_same
from oci_gpu_hook.node.machine import foreignfile

# ioctl_nsfs(2); linux/nsfs.h.
_NS_GET_PARENT = 0xB702
# The kernel nests 32 user namespaces at most.
_DEEPEST = 33
# proc_pid_stat(5), counted from the state, which follows the command in parentheses.
_PARENT, _FLAGS, _THREADS, _START = 1, 6, 17, 19
_PF_KTHREAD = 0x00200000  # linux/sched.h
# linux/capability.h.
_CAP_MKNOD = 27
# How LXC, and LXD by it, begin the name of a container's cgroup.
LXC = "lxc.payload."
_LARGEST_ENVIRONMENT, _MAX_VARIABLES = 4 << 20, 10_000


def numbers(host: HostRoot) -> list[int]:
    return sorted([int(name) for name in host.names("/proc") if name.isdecimal()])


def started(host: HostRoot, pid: int) -> int | None:
    """When a process began, in clock ticks since the boot; None if there is none that runs."""
    fields = _stat(host, pid)
    return int(fields[_START]) if fields and fields[0] not in b"ZX" else None


def other_thread(host: HostRoot, pid: int) -> int:
    """A thread that runs on of a process whose first one, by which its namespaces are found, has ended; else that."""
    fields = _stat(host, pid)
    if not fields or fields[0] != b"Z" or int(fields[_THREADS]) < 2:
        return pid
    others = [int(name) for name in host.names(f"/proc/{pid}/task") if name != str(pid)]
    return next((thread for thread in others if started(host, thread) is not None), pid)


def parent(host: HostRoot, pid: int) -> int:
    fields = _stat(host, pid)
    return int(fields[_PARENT]) if fields else 0


def is_kernels(host: HostRoot, pid: int) -> bool:
    """Whether it is a thread of the kernel's: kdevtmpfs has a mount namespace and a root of its own."""
    fields = _stat(host, pid)
    return bool(fields and int(fields[_FLAGS]) & _PF_KTHREAD)


def credentials(host: HostRoot, pid: int) -> tuple[int, int, list[int]]:
    """Effective user, group and further groups of a process, as this user namespace has them."""
    fields = _status(host, pid)
    user, group = [(_numbers(fields.get(name, "")) or (0, 0))[1] for name in ("Uid", "Gid")]
    return user, group, list(_numbers(fields.get("Groups", "")))


def makes_nodes(host: HostRoot, pid: int) -> bool:
    """Whether a process has CAP_MKNOD in its user namespace."""
    return bool(int(_status(host, pid).get("CapEff", "0"), 16) >> _CAP_MKNOD & 1)


def program(host: HostRoot, pid: int) -> str:
    """The name of the program that a process runs, if root or we run it on the host itself; else "".  By the link that
    the kernel keeps: /proc/PID/comm and the first word of the command line are the process's to set, and a link of any
    name can start a set-user-ID program.
    """
    path = (host.link(f"/proc/{pid}/exe") or "").removesuffix(" (deleted)")  # by an upgrade
    return path.rpartition("/")[2] if path and _is_hosts(host, pid, path) else ""


def _is_hosts(host: HostRoot, pid: int, path: str) -> bool:
    """Whether a process is root's on the host itself, in no container, and its program where root put it; or ours.  A
    user can give a set-user-ID program another name in a folder of that user's (protected_hardlinks, proc_sys_fs(5)).
    """
    # Real, effective, saved and filesystem user; none if it has ended (proc_pid_status(5)).
    owners = set(_numbers(_status(host, pid).get("Uid", "")))
    if owners == {posix.geteuid()} != {0}:
        return True
    # Not by the mount namespace: a service of systemd's, such as ours, can have one of its own.
    if owners != {0} or not is_in_our_users(host, pid):
        return False
    # Nor by its root's filesystem: to ask that may take for ever.
    own = foreignfile.root_of(foreignfile.mountinfo(host, pid))
    if own is None or own != foreignfile.our_mounts().shown(host.path):
        return False
    found = host.source(path)
    return found is not None and not found[1]


def is_in_our_users(host: HostRoot, pid: int) -> bool:
    theirs, ours = host.stat(f"/proc/{pid}/ns/user"), host.stat("/proc/self/ns/user")
    return theirs is not None and ours is not None and is_same(theirs, ours)


def command_line(host: HostRoot, pid: int) -> list[str]:
    """The words that a process was started with.  Only of one that `program` has named."""
    return host.text(f"/proc/{pid}/cmdline").split("\0")


def environment(host: HostRoot, pid: int) -> list[str]:
    """Only of one that `program` has named, or in a child under a time limit; to a bound."""
    data = host.read(f"/proc/{pid}/environ") or b""
    items = data[:_LARGEST_ENVIRONMENT].split(b"\0", _MAX_VARIABLES)[:_MAX_VARIABLES]
    return [item.decode("utf-8", "replace") for item in items if item]


def maker(host: HostRoot, pid: int) -> int | None:
    """Whose a rootless engine's container is: the user who made the outermost user namespace below ours that a process
    is in; 0 for one that is in ours, None if we may not see it.
    """
    owner = 0
    with suppress(OSError), ExitStack() as opened:
        ours = posix.stat("/proc/self/ns/user").st_ino
        fd = opened.enter_context(closing(host.open(f"/proc/{pid}/ns/user", posix.O_RDONLY)))
        for _ in range(_DEEPEST):
            if posix.fstat(fd).st_ino == ours:
                return owner
            owner = syscalls.ns_get_owner_uid(fd)
            # EPERM: it does not descend from ours.
            fd = opened.enter_context(closing(fcntl.ioctl(fd, _NS_GET_PARENT)))
    return None


def is_contained(pid: int) -> bool:
    """Whether a process has another mount namespace than ours; UsageError if we may not see it."""
    try:
        theirs = posix.stat(f"/proc/{pid}/ns/mnt")
    except OSError as err:
        hint = "it has ended" if isinstance(err, FileNotFoundError) else "run it as root, with CAP_SYS_PTRACE"
        raise UsageError(f"the process {pid} cannot be looked into: {err.strerror}", hint) from err
    return theirs.st_ino != posix.stat("/proc/self/ns/mnt").st_ino


def device_cgroup(host: HostRoot, pid: int, version: str) -> str:
    controller = "devices" if version == "v1" else ""
    path = path_in(host.read(f"/proc/{pid}/cgroup") or b"", controller) if version else None
    return "" if path is None else f"{CGROUP_ROOT}{controller and '/devices'}{path}"


def trusted_cgroup(host: HostRoot, pid: int, version: str, owner: int) -> list[str]:
    """The names of the process's device cgroup and those above it, from the top, as far as root or `owner` gave them.
    Who was given a cgroup may call the ones in it what it likes, also a container whose root is the host's, as podman's
    with systemd in it.  So what is below the first name with a whole id does not count.
    """
    folder, found = CGROUP_ROOT, list[str]()
    for name in device_cgroup(host, pid, version)[len(CGROUP_ROOT) :].split("/")[1:]:
        status = host.stat(folder)
        if status is None or status.st_uid not in (0, posix.fstat(host.fd).st_uid, owner):
            break
        found.append(name)
        folder += f"/{name}"
        if id_in(name):
            break
    return found


def id_in(cgroup: str) -> str:
    """The container's id in the name of a cgroup, of LXC's its name; "" if there is none."""
    if cgroup.startswith(LXC):
        return cgroup[len(LXC) :]
    return next((word for word in re.split("[-.:]", cgroup) if re.fullmatch("[0-9a-f]{64}", word)), "")


def _stat(host: HostRoot, pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat from the state on; none if there is no such process."""
    fields = procfile.stat_words(host.read(f"/proc/{pid}/stat") or b"")
    return fields if len(fields) > _START else []


def _status(host: HostRoot, pid: int) -> dict[str, str]:
    """The fields of /proc/PID/status by name; the kernel escapes a newline in the process's own name."""
    return dict([line.partition(":\t")[::2] for line in host.text(f"/proc/{pid}/status").split("\n")])


def _numbers(field: str) -> tuple[int, ...]:
    return tuple([int(word) for word in field.split() if word.isdecimal()])
