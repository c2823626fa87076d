# SPDX-License-Identifier: Apache-2.0
"""The one loop that carries a plan out: each operation in its order, by the room of `container` that knows how.

Decides nothing: what is required, where it goes and with which options stands in the plan.  Where a required operation
fails, everything done before it is undone and the start is stopped; an optional one is undone alone and noted.
"""

from __future__ import annotations

import posix

from oci_gpu_hook import oci
from oci_gpu_hook.container import cgroup, devices, ldcache, mounts, pieces, scope
from oci_gpu_hook.errors import ApplyError, DriverError
from oci_gpu_hook.operations import Device, DeviceAllow, LdCache, Mount, Relabel, Symlink, Tmpfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Callable

    from oci_gpu_hook.host.root import HostRoot
    from oci_gpu_hook.operations import AllowDevices, Operation
    from oci_gpu_hook.plan import Plan

    Preparation = Callable[["Start", Any, HostRoot], int]
    Effect = Callable[["Start", Any, int], None]

_DEVICE_OPTIONS = ("nosuid", "noexec")


class Start:
    """One container start while its plan is carried out: what the operations share."""

    def __init__(self, tree: mounts.Tree, bundle: oci.Bundle, labels: ModuleType | None) -> None:
        self.tree = tree
        self.bundle = bundle
        self.labels = labels
        self.notes: list[str] = []


def run(
    plan: Plan,
    host: HostRoot,
    root_fd: int,
    bundle: oci.Bundle,
    pid: int,
    labels: ModuleType | None,
) -> list[str]:
    """Carry out `plan`; gives a sentence for each optional operation that could not be.

    labels: the room container.labels where the plan labels anything, so that a host without SELinux does not load it.
    DriverError where a required file of the host is gone, ApplyError where a required operation fails.
    """
    # The engine's umask may be 077; modes here are meant as they are written.
    posix.umask(0)
    start = Start(mounts.Tree(root_fd, oci.mounted(bundle), plan.label), bundle, labels)
    # Sources are cloned first: the kernel clones only mounts of the namespace that one is in.
    # systemd is asked then too, by its socket on the host, and works while we do.
    sources = [
        _PREPARATIONS.get(type(operation).__name__, _nothing)(start, operation, host)
        for operation in plan.operations
    ]
    _label_creations(start, plan.label)
    home = mounts.enter_namespace(pid)
    try:
        for operation, source in zip(plan.operations, sources):
            _perform(start, operation, source)
    finally:
        mounts.leave_namespace(home)
    # Some hundred descriptors are open, and close with the process, which ends with this start.
    return start.notes


def _label_creations(start: Start, label: str) -> None:
    """Mount points and nodes are to bear the container's label from the moment that they exist."""
    if start.labels is None:
        return
    try:
        start.labels.create_as(label)
    except OSError as err:
        hint = "the policy must know the container's label"
        raise ApplyError(f"cannot label what is made for the container: {err}", hint) from err


def _perform(start: Start, operation: Operation, source: int) -> None:
    done_before = start.tree.mark()
    try:
        _EFFECTS[type(operation).__name__](start, operation, source)
    except OSError as err:
        sentence = f"cannot {_words(operation)}: {err}"
        if not operation.required:
            start.tree.undo(done_before)
            start.notes.append(sentence)
            return
        start.tree.undo()
        raise ApplyError(sentence, "'oci-gpu-hook plan' shows every step") from err
    except BaseException:
        start.tree.undo()
        raise


def _nothing(start: Start, operation: Operation, host: HostRoot) -> int:
    return -1


def _clone_mount(start: Start, mount: Mount, host: HostRoot) -> int:
    """A detached clone of a file of the host; -1 where an optional one is gone."""
    try:
        return host.clone(mount.source, pieces.attributes(mount.options))
    except OSError as err:
        return _not_there(start, mount, err)


def _clone_device(start: Start, node: Device, host: HostRoot) -> int:
    """The same of the host's node where ours would be refused; -1 where it is not."""
    if not node.source:
        return -1
    try:
        return host.clone(node.source, pieces.attributes(_DEVICE_OPTIONS))
    except OSError as err:
        return _not_there(start, node, err)


def _not_there(start: Start, operation: Mount | Device, err: OSError) -> int:
    sentence = f"the host's {operation.source} cannot be mounted: {err}"
    if operation.required:
        hint = "run 'oci-gpu-hook inventory refresh', or mend the driver"
        raise DriverError(sentence, hint) from err
    start.notes.append(sentence)
    return -1


def _tell(start: Start, told: DeviceAllow, host: HostRoot) -> int:
    """A connection to systemd, which has been asked; -1 where it cannot be."""
    try:
        connection = scope.tell(told.unit, told.rules)
    except OSError as err:
        start.notes.append(f"cannot {_words(told)}: {err}")
        return -1
    start.tree.remember(scope.withdraw, connection, told.unit, told.before)
    return connection


def _mount(start: Start, mount: Mount, source: int) -> None:
    if source >= 0:
        start.tree.attach(source, mount.target, folder=mount.folder)
        for name in mount.names:
            start.tree.name(mount.target, name)


def _device(start: Start, node: Device, source: int) -> None:
    mode, uid, gid = node.mode, node.uid, node.gid
    if source < 0:
        devices.make(start.tree, node.path, node.major, node.minor, mode=mode, uid=uid, gid=gid)
    elif not devices.is_there(start.tree, node.path, node.major, node.minor):
        start.tree.attach(source, node.path, folder=False)


def _symlink(start: Start, link: Symlink, source: int) -> None:
    devices.link(start.tree, link.path, link.to)


def _tmpfs(start: Start, tmpfs: Tmpfs, source: int) -> None:
    def fill(root: int) -> None:
        for folder in tmpfs.folders:
            pieces.make_folders(root, folder)
        for file in tmpfs.files:
            pieces.write_file(root, file.name, file.content.encode(), file.mode)

    start.tree.attach_tmpfs(tmpfs.path, tmpfs.options, fill)


def _ld_cache(start: Start, cache: LdCache, source: int) -> None:
    ldcache.merge(start.tree, cache.path, cache.additions)


def _relabel(start: Start, relabelled: Relabel, source: int) -> None:
    if start.labels is not None:
        start.labels.relabel(start.tree, relabelled.path, relabelled.context)


def _allow_devices(start: Start, opened: AllowDevices, source: int) -> None:
    place = cgroup.DeviceCgroup(opened.version, opened.path, opened.top, "")
    change = cgroup.allow(place, opened.rules, oci.device_rules(start.bundle))
    start.tree.remember(change.undo)
    if change.skipped:
        start.notes.append(f"the device cgroup is left alone: {change.skipped}")


def _device_allow(start: Start, told: DeviceAllow, source: int) -> None:
    if source >= 0:
        scope.answer(source)


# By the names of their classes, for a start is spared those of which its plan has none.
_PREPARATIONS: dict[str, Preparation] = {
    "Mount": _clone_mount,
    "Device": _clone_device,
    "DeviceAllow": _tell,
}
_EFFECTS: dict[str, Effect] = {
    "Mount": _mount,
    "Device": _device,
    "Symlink": _symlink,
    "Tmpfs": _tmpfs,
    "LdCache": _ld_cache,
    "Relabel": _relabel,
    "AllowDevices": _allow_devices,
    "DeviceAllow": _device_allow,
}


def _words(operation: Operation) -> str:
    """What was to be done, for a sentence."""
    if isinstance(operation, Mount):
        return f"mount {operation.source} at {operation.target}"
    if isinstance(operation, Device):
        return f"make the node {operation.path}"
    if isinstance(operation, Symlink):
        return f"link {operation.path} to {operation.to}"
    if isinstance(operation, Tmpfs):
        return f"cover {operation.path}"
    if isinstance(operation, LdCache):
        return f"put our entries into {operation.path}"
    if isinstance(operation, Relabel):
        return f"relabel {operation.path} as {operation.context}"
    if isinstance(operation, DeviceAllow):
        return f"tell systemd of the devices of {operation.unit}, which its next reload will close"
    return f"open the device cgroup ({operation.version})"
