# SPDX-License-Identifier: Apache-2.0
"""Which labels /dev/shm and /dev/mqueue must bear.  Pure.

A level that differs from the container's makes POSIX semaphores fail: Python's multiprocessing dies in SemLock with
FileNotFoundError, and with it dask and PyTorch's data loaders.
"""

from __future__ import annotations

from oci_gpu_hook.container import ipc
from oci_gpu_hook.errors import BundleError, RequestError, quoted
from oci_gpu_hook.formats.contexts import Context, Level, meet, parse_context
from oci_gpu_hook.operations import Relabel
from oci_gpu_hook.planning.plan import Labels
from oci_gpu_hook.request.settings import Settings

_LEFT_ALONE = {
    ipc.LINK: "the image's {} is a link",
    ipc.HOST: "{} is the host's own",
    ipc.VOLUME: "{} is a volume of the host",
}


def labels_of(
    mounts: tuple[ipc.IpcMount, ...], mount_label: str, process_label: str, settings: Settings, *, required: bool
) -> Labels:
    """required: whether the container asks for a GPU."""
    label = context_for(mount_label, process_label)
    if label is None:
        return Labels(notes=("the engine gives this container no SELinux label: none is set",))
    if settings.ipc_labels == "off":
        return Labels(str(label), notes=("/dev/shm and /dev/mqueue keep their labels: ipc-labels = off",))
    operations, notes = [], []
    for mount in mounts:
        if mount.owner in _LEFT_ALONE:
            sentence = f"{_LEFT_ALONE[mount.owner].format(mount.path)}, and its label is left alone"
            if required and mount.owner == ipc.LINK:
                raise RequestError(sentence, "the image's author must remove it")
            notes.append(sentence)
            continue
        level, reason = _level(mount, label, process_label)
        context = label._replace(low=level)
        if mount.fixed:
            notes += _fixed(mount, context, process_label, settings, required)
        else:
            operations.append(Relabel(mount.path, str(context), mount.context, required, reason))
    return Labels(str(label), tuple(operations), tuple(notes))


def context_for(mount_label: str, process_label: str) -> Context | None:
    """The engine's, or the usual type with the process's level; None without any."""
    if mount_label:
        return _parsed(mount_label, "linux.mountLabel")
    level = _parsed(process_label, "process.selinuxLabel").low if process_label else None
    return Context("system_u", "object_r", "container_file_t", level, None) if process_label else None


def _level(mount: ipc.IpcMount, label: Context, process_label: str) -> tuple[Level | None, str]:
    """The highest level that all containers dominate that share the mount, and the reason for it."""
    if not mount.members or label.low is None:
        return label.low, f"{mount.path} must have the container's own label"
    clearances = [_parsed(text, "a container's label").clearance for text in (process_label, *mount.members) if text]
    level = meet([label.low, *[it for it in clearances if it is not None]])
    return level, f"{mount.path} is shared by a pod: the level that all its containers dominate"


def _fixed(mount: ipc.IpcMount, context: Context, process_label: str, settings: Settings, required: bool) -> list[str]:
    """Check a label that cannot be changed.  Gives a note, or raises BundleError, where the container cannot use it."""
    found = _parsed(mount.context, f"the label of {mount.path}")
    own = _parsed(process_label, "process.selinuxLabel").clearance if process_label else context.low
    within = found.low is None or own is None or own.dominates(found.low)
    if found.type == context.type and within:
        return []
    sentence = f"{mount.path} is mounted with context={mount.context}, the container needs {context}"
    remedy = "mount it without context=, or with that label"
    if required and settings.ipc_context_mismatch == "refuse":
        raise BundleError(sentence, f"{remedy}; ipc-context-mismatch = warn lets it start as it is")
    return [f"{sentence}: {remedy}"]


def _parsed(text: str, where: str) -> Context:
    try:
        return parse_context(text)
    except ValueError as err:
        raise BundleError(f"{where} {quoted(text)} is not an SELinux context: {err}") from err
