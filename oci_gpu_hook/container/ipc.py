# SPDX-License-Identifier: Apache-2.0
"""The container's /dev/shm and /dev/mqueue: who owns them, which labels they have, which containers share them.

Needed only on a host with SELinux.  They are looked up below the descriptor of the container's root, and never through
/proc/PID/root/dev/shm: before pivot_root that is the host's own /dev/shm, and to relabel it would break the host.
Reads only.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.errors import BundleError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel import syscalls
from oci_gpu_hook.kernel.mountinfo import MountTable
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.request.bundle import Bundle, read_bundle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.container.process import Process
    from oci_gpu_hook.container.rootfs import Rootfs
    from oci_gpu_hook.kernel.mountinfo import Mount

PATHS = ("/dev/shm", "/dev/mqueue")

# The owners of a mount: the container, its pod, the host, a volume of the host; LINK where the image has a link there.
CONTAINER = "container"
POD = "pod"
HOST = "host"
VOLUME = "volume"
LINK = "link"

XATTR = "security.selinux"
REALLY_THERE = (
    syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS | syscalls.RESOLVE_NO_SYMLINKS
)
# Where CRI-O, containerd's CRI plug-in and podman write the id of a container's pod sandbox.
_SANDBOX_KEYS = ("io.kubernetes.cri-o.SandboxID", "io.kubernetes.cri.sandbox-id")


class IpcMount(NamedTuple):
    """One of `PATHS` as it is now.

    owner: one of the constants above; context: its label, "" where it has none; fixed: whether it was mounted with
    ``context=``, so that its label cannot be changed; members: process labels of the other containers that share it.
    """

    path: str
    owner: str
    context: str
    fixed: bool
    members: tuple[str, ...]


def mounts(
    bundle: Bundle, state_id: str, rootfs: Rootfs, process: Process, host: HostRoot
) -> tuple[IpcMount, ...]:
    """Those of `PATHS` that the container has."""
    table = MountTable(process.read("mountinfo"))
    has_hosts_ipc = process.namespace("ipc") == posix.stat("/proc/self/ns/ipc").st_ino
    found = []
    for path in PATHS:
        try:
            flags = posix.O_PATH | posix.O_DIRECTORY
            fd = syscalls.openat2(rootfs.fd, path, flags, resolve=REALLY_THERE)
        except OSError as err:
            if err.errno in (syscalls.ELOOP, syscalls.ENOTDIR):
                found.append(IpcMount(path, LINK, "", False, ()))
            continue
        try:
            owner, members = _owner(bundle, state_id, path, fd, host)
            if has_hosts_ipc:
                owner = HOST
            mount = table.mount(syscalls.mount_of(fd)[0])
            found.append(IpcMount(path, owner, label_of(fd), _is_fixed(mount), members))
        finally:
            posix.close(fd)
    return tuple(found)


def label_of(fd: int) -> str:
    """The SELinux label of what `fd` is open on, O_PATH or not; "" where it has none."""
    try:
        # fgetxattr refuses an O_PATH descriptor; its link in /proc leads to the very same file.
        data = posix.getxattr(f"/proc/self/fd/{fd}", XATTR)
    except OSError:
        return ""
    return data.rstrip(b"\0").decode("utf-8", "replace")


def _owner(
    bundle: Bundle, state_id: str, path: str, fd: int, host: HostRoot
) -> tuple[str, tuple[str, ...]]:
    """The owner of the mount, and the process labels of the other containers that share it."""
    hosts_own = host.stat(path)
    if hosts_own is not None and hosts_own.st_dev == posix.fstat(fd).st_dev:
        return HOST, ()
    source = bundle.mount_source(path)
    if source is None:
        return CONTAINER, ()
    sandbox = _sandbox(bundle)
    parts = source.split("/")
    siblings = _siblings(bundle.path, state_id)
    # Engines keep a pod's shm in a folder with the sandbox's id, podman also in one with the id of any of its
    # containers.
    ids = [sandbox, state_id, *[name for name, _ in siblings]]
    if not any([name and name in parts for name in ids]):
        return VOLUME, ()
    members = [_process_label(path_, source, sandbox, path) for _, path_ in siblings]
    return POD, tuple(dict.fromkeys([label for label in members if label]))


def _sandbox(bundle: Bundle) -> str:
    annotations = bundle.annotations()
    return next((annotations[key] for key in _SANDBOX_KEYS if annotations.get(key)), "")


def _siblings(bundle_path: str, state_id: str) -> list[tuple[str, str]]:
    """Id and bundle of the engine's other containers: an engine keeps each bundle in a folder with its id."""
    parts = bundle_path.split("/")
    if state_id not in parts:
        return []
    at = parts.index(state_id)
    try:
        names = sorted(posix.listdir("/".join(parts[:at])))
    except OSError:
        return []
    others = [name for name in names if name != state_id]
    return [(name, "/".join([*parts[:at], name, *parts[at + 1 :]])) for name in others]


def _process_label(bundle_path: str, source: str, sandbox: str, path: str) -> str:
    """The process label of a container that shares the mount with ours; "" of any other."""
    try:
        other = read_bundle(bundle_path)
        same_pod = bool(sandbox) and _sandbox(other) == sandbox
        if same_pod or other.mount_source(path) == source:
            return other.process_label()
    except BundleError:
        # No bundle, or a container that is just being made or removed.
        pass
    return ""


def _is_fixed(mount: Mount | None) -> bool:
    """Whether a mount has the option ``context=``."""
    options = mount.options.split(",") if mount else []
    return any([option.startswith("context=") for option in options])
