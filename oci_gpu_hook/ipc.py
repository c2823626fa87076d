# SPDX-License-Identifier: Apache-2.0
"""The container's /dev/shm and /dev/mqueue: whose they are, which label they bear, who shares them.

Reads only, and only on a host with SELinux.  Looks below the container's root by descriptor, never by way of
/proc/PID/root/dev/shm: before pivot_root that is the host's own, and to relabel it would break the host.
"""

from __future__ import annotations

import posix

from oci_gpu_hook import linux, mountinfo, oci
from oci_gpu_hook.errors import BundleError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.record import NamedTuple

PATHS = ("/dev/shm", "/dev/mqueue")

# Whose a mount is.
CONTAINER = "container"
POD = "pod"
HOST = "host"
VOLUME = "volume"
LINK = "link"

XATTR = "security.selinux"
_REALLY_THERE = linux.RESOLVE_IN_ROOT | linux.RESOLVE_NO_MAGICLINKS | linux.RESOLVE_NO_SYMLINKS
# Where CRI-O, containerd's CRI plug-in and podman write the id of a container's pod sandbox.
_SANDBOX_KEYS = ("io.kubernetes.cri-o.SandboxID", "io.kubernetes.cri.sandbox-id")


class IpcMount(NamedTuple):
    """One of `PATHS` as it is now.

    owner: see the constants; context: its label, "" where it has none; fixed: mounted with ``context=``, which the
    kernel does not let anyone change; members: process labels of the other containers that share it.
    """

    path: str
    owner: str
    context: str
    fixed: bool
    members: tuple[str, ...]


def mounts(
    bundle: oci.Bundle, state_id: str, root_fd: int, pid: int, host: HostRoot
) -> tuple[IpcMount, ...]:
    """Those of `PATHS` that the container has."""
    shares_hosts = _ipc_namespace(pid) == _ipc_namespace("self")
    found = []
    for path in PATHS:
        try:
            flags = posix.O_PATH | posix.O_DIRECTORY
            fd = linux.openat2(root_fd, path, flags, resolve=_REALLY_THERE)
        except OSError as err:
            if err.errno in (linux.ELOOP, linux.ENOTDIR):
                found.append(IpcMount(path, LINK, "", False, ()))
            continue
        try:
            owner, members = _owner(bundle, state_id, path, fd, host)
            if shares_hosts:
                owner = HOST
            fixed = _is_fixed(linux.mount_id(fd), pid)
            found.append(IpcMount(path, owner, label_of(fd), fixed, members))
        finally:
            posix.close(fd)
    return tuple(found)


def label_of(fd: int) -> str:
    """The SELinux label of what `fd` is open on, O_PATH or not; "" where it has none."""
    try:
        # The link in /proc leads to the very file; an O_PATH descriptor itself is refused by fgetxattr.
        data = posix.getxattr(f"/proc/self/fd/{fd}", XATTR)
    except OSError:
        return ""
    return data.rstrip(b"\0").decode("utf-8", "replace")


def _owner(
    bundle: oci.Bundle, state_id: str, path: str, fd: int, host: HostRoot
) -> tuple[str, tuple[str, ...]]:
    """Whose the mount is, and the labels of those who share it."""
    hosts_own = host.stat(path)
    if hosts_own is not None and hosts_own.st_dev == posix.fstat(fd).st_dev:
        return HOST, ()
    source = oci.mount_source(bundle, path)
    if source is None:
        return CONTAINER, ()
    sandbox = _sandbox(bundle)
    parts = source.split("/")
    siblings = _siblings(bundle.path, state_id)
    # Engines keep a pod's shm in a folder of the sandbox's id, podman also in that of any container of the pod.
    ids = [sandbox, state_id, *[name for name, _ in siblings]]
    if not any([name and name in parts for name in ids]):
        return VOLUME, ()
    members = [_process_label(path_, source, sandbox, path) for _, path_ in siblings]
    return POD, tuple(dict.fromkeys([label for label in members if label]))


def _sandbox(bundle: oci.Bundle) -> str:
    annotations = oci.bundle_annotations(bundle)
    return next((annotations[key] for key in _SANDBOX_KEYS if annotations.get(key)), "")


def _siblings(bundle_path: str, state_id: str) -> list[tuple[str, str]]:
    """Id and bundle of the engine's other containers: engines keep bundles in one folder, each below its id."""
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
    """The process label of a bundle that shares the mount with ours; "" of any other, or of none."""
    try:
        other = oci.read_bundle(bundle_path)
        same_pod = bool(sandbox) and _sandbox(other) == sandbox
        if same_pod or oci.mount_source(other, path) == source:
            return oci.process_label(other)
    except BundleError:
        # Not a bundle, or one of a container that is being made or removed right now.
        pass
    return ""


def _is_fixed(mount_id: int, pid: int) -> bool:
    """Whether a mount has a ``context=`` option: nobody can change a label on it then."""
    mount = mountinfo.find(pid, mount_id)
    options = mount.filesystem_options.split(",") if mount else []
    return any([option.startswith("context=") for option in options])


def _ipc_namespace(pid: int | str) -> int:
    try:
        return posix.stat(f"/proc/{pid}/ns/ipc").st_ino
    except OSError as err:
        raise BundleError(
            f"the container's process {pid} cannot be looked into: {err.strerror}",
            "the container engine or runtime must mend it",
        ) from err
