# SPDX-License-Identifier: Apache-2.0
"""The container's /dev/shm and /dev/mqueue: who owns them, which labels they have, which containers share them.

Needed only on a host with SELinux.  Before pivot_root /proc/PID/root/dev/shm is the host's own, and to relabel it would
break the host: they are looked up below the descriptor of the container's root.  Reads only.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.container.process import Process
from oci_gpu_hook.container.rootfs import Rootfs
from oci_gpu_hook.errors import BundleError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel import mountinfo, syscalls
from oci_gpu_hook.kernel.descriptors import closing
from oci_gpu_hook.kernel.filetypes import is_same
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.request.annotations import CONTAINERD, DOCKER, PODMAN, TASKS, folder_of, keeper_of
from oci_gpu_hook.request.bundle import Bundle, read_bundle

PATHS = ("/dev/shm", "/dev/mqueue")

# The owners of a mount: the container, its pod, the host, a volume of the host; LINK if the image has a link there.
CONTAINER, POD, HOST, VOLUME, LINK = "container", "pod", "host", "volume", "link"

XATTR = "security.selinux"
NO_SYMLINKS = syscalls.RESOLVE_BELOW | syscalls.RESOLVE_NO_SYMLINKS


class IpcMount(NamedTuple):
    """owner: one of the constants above; context: its label, "" for none; fixed: whether it has a wrong label which
    cannot be changed, as it was mounted with ``context=``; members: process labels of the others that share it.
    """

    path: str
    owner: str
    context: str
    fixed: bool
    members: tuple[str, ...]


def mounts(bundle: Bundle, state_id: str, rootfs: Rootfs, process: Process, host: HostRoot) -> tuple[IpcMount, ...]:
    has_hosts_ipc = process.namespace("ipc") == posix.stat("/proc/self/ns/ipc").st_ino
    found = []
    for path in PATHS:
        try:
            fd = syscalls.openat2(rootfs.fd, path, posix.O_PATH | posix.O_DIRECTORY, resolve=NO_SYMLINKS)
        except OSError as err:
            if err.errno in (syscalls.ELOOP, syscalls.ENOTDIR):
                found.append(IpcMount(path, LINK, "", False, ()))
            continue
        with closing(fd):
            owner, members = (HOST, ()) if has_hosts_ipc else _owner(bundle, state_id, path, fd, host)
            context = label_of(fd)
            is_right = context == bundle.mount_label() and {bundle.process_label()}.issuperset(members)
            may_change = owner in (CONTAINER, POD) and not is_right
            found.append(IpcMount(path, owner, context, may_change and _is_fixed(process, fd), members))
    return tuple(found)


def label_of(fd: int) -> str:
    try:
        # fgetxattr refuses an O_PATH descriptor; its link in /proc leads to the very same file.
        data = posix.getxattr(f"/proc/self/fd/{fd}", XATTR)
    except OSError:
        return ""
    return data.rstrip(b"\0").decode("utf-8", "replace")


def _owner(bundle: Bundle, state_id: str, path: str, fd: int, host: HostRoot) -> tuple[str, tuple[str, ...]]:
    """Also the process labels of the other containers that share it."""
    hosts_own, here = host.stat(path), posix.fstat(fd)
    if hosts_own is not None and hosts_own.st_dev == here.st_dev:
        return HOST, ()
    source = bundle.mount_source(path)
    if source is None:
        return CONTAINER, ()
    there = host.stat(source)
    # The path tells whose it is, so it must be what lies at that path.
    if there is None or not is_same(there, here):
        return VOLUME, ()
    bundles = _bundles(bundle.path, state_id)
    owner = _kept(bundle.path, state_id, source)
    if owner not in bundles:
        return VOLUME, ()
    labels = [_process_label(its, source, path, is_owner=id == owner) for id, its in bundles.items() if id != state_id]
    return POD, tuple(dict.fromkeys([label for label in labels if label]))


def _kept(bundle: str, id: str, source: str) -> str:
    """The id of the container whose shared memory its engine keeps at `source`, by the whole path; "" for none."""
    keeper, folder = keeper_of(bundle, id), folder_of(bundle)[0]
    before, behind = f"{folder}/", "/userdata/shm"
    if keeper == CONTAINERD:
        state = folder[: -len(f"/{TASKS}/k8s.io")]
        before, behind = f"{state}/io.containerd.grpc.v1.cri/sandboxes/", "/shm"
    elif keeper == DOCKER:
        # The folder of its data may lie anywhere.
        before, behind = f"{source.rpartition('/containers/')[0]}/containers/", "/mounts/shm"
    elif keeper != PODMAN:
        return ""
    owner = source[len(before) : -len(behind)]
    return owner if source == f"{before}{owner}{behind}" else ""


def _bundles(bundle: str, id: str) -> dict[str, str]:
    folder, name = folder_of(bundle)
    if name != id:
        return {}
    rest = bundle[len(f"{folder}/{name}") :]
    try:
        return {other: f"{folder}/{other}{rest}" for other in sorted(posix.listdir(folder))}
    except OSError:
        return {}


def _process_label(bundle: str, source: str, path: str, *, is_owner: bool) -> str:
    try:
        other = read_bundle(bundle)
        return other.process_label() if is_owner or other.mount_source(path) == source else ""
    except BundleError:
        return ""  # no bundle, or a container that is just being made or removed


def _is_fixed(process: Process, fd: int) -> bool:
    mount = mountinfo.mount(process.pieces("mountinfo"), syscalls.mount_of(fd)[0])
    return mount is not None and any([option.startswith("context=") for option in mount.options.split(",")])
