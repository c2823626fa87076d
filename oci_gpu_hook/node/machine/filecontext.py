# SPDX-License-Identifier: Apache-2.0
"""Give folders that others may write to, and what lies in them, the SELinux type that the file contexts have.

restorecon(8) walks a folder by name: a user who may write to it exchanges what lies in it for a link, and any file of
the host gets the type.  Here a folder is opened by a path that root alone could lead elsewhere, and each name in it by
its descriptor: no link is followed, no folder and no mount in it is entered (services put sockets and files there), and
a file with a second name is left, as it may be the host's.  Must not choose types: the file contexts do.
"""

from __future__ import annotations

import os
from contextlib import suppress

from oci_gpu_hook.container.ipc import XATTR, label_of
from oci_gpu_hook.errors import ApplyError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.host.source import UntrustedError, open_source
from oci_gpu_hook.kernel import syscalls
from oci_gpu_hook.kernel.descriptors import NAMED, closing, reopened
from oci_gpu_hook.kernel.filetypes import is_link, is_regular
from oci_gpu_hook.node.machine import childprocess

# Of a service's user, of MPS's clients, of a node's agents.
SHARED = (
    "/etc/kubernetes/node-feature-discovery/features.d",
    "/run/nvidia-persistenced",
    "/run/nvidia-fabricmanager",
    "/tmp/nvidia-mps",
)
_UNKNOWN = "unlabeled_t"
_MAX_FILES = 10_000


def restore(host: HostRoot, path: str, owner: int = 0) -> list[str]:
    """A sentence for each thing that has another type now, and for a folder that is left alone.  owner: a user beside
    root whose the folder may be.  ApplyError if matchpathcon(8) is missing.
    """
    try:
        top = open_source(host.fd, path, owner)
    except UntrustedError as err:
        return [f"left alone: {path}: {err}"]
    except OSError:
        return []
    with closing(top):
        kind = _expected(path) or _inherited(host, path, top)
        return _restored(top, path, kind) if kind else []


def is_unknown(path: str) -> bool:
    """Whether the loaded policy does not know the type of what lies at a path that root alone leads to."""
    with suppress(OSError), closing(os.open(path, NAMED)) as fd:
        return type_of(label_of(fd)) == _UNKNOWN
    return False


def _expected(path: str) -> str:
    try:
        done = childprocess.program(["matchpathcon", "-n", "-m", "dir", path])
    except OSError as err:
        hint = "install libselinux-utils (dnf) or selinux-utils (apt)"
        raise ApplyError(f"cannot run matchpathcon: {err.strerror}", hint) from err
    return type_of(done.stdout) if done.returncode == 0 else ""


def _inherited(host: HostRoot, path: str, top: int) -> str:
    """The type of the folder around it, if its own is gone with its module, and none has been put in its place."""
    if type_of(label_of(top)) != _UNKNOWN:
        return ""
    with suppress(OSError), closing(open_source(host.fd, path.rpartition("/")[0] or "/")) as parent:
        return type_of(label_of(parent))
    return ""


def _restored(top: int, path: str, kind: str) -> list[str]:
    mount, said = syscalls.mount_of(top)[0], _set(top, path, kind)
    with suppress(OSError), closing(reopened(top, os.O_DIRECTORY)) as folder, os.scandir(folder) as entries:
        for count, entry in enumerate(entries):
            if count == _MAX_FILES:
                return [*said, f"left alone: {path} holds more than {_MAX_FILES} files"]
            with suppress(OSError), closing(os.open(entry.name, NAMED, dir_fd=folder)) as fd:
                status = os.fstat(fd)
                is_elsewhere = is_link(status) or (is_regular(status) and status.st_nlink > 1)
                if not is_elsewhere and syscalls.mount_of(fd)[0] == mount:
                    said += _set(fd, f"{path}/{entry.name}", kind)
    return said


def _set(fd: int, path: str, kind: str) -> list[str]:
    """Set the type of what is open at `fd`; its user, role and level stay, as with restorecon."""
    before = label_of(fd)
    fields = before.split(":")
    if len(fields) < 3 or fields[2] == kind:
        return []
    after = ":".join([*fields[:2], kind, *fields[3:]])
    # fsetxattr refuses an O_PATH descriptor; its link in /proc leads to the very same file.
    os.setxattr(f"/proc/self/fd/{fd}", XATTR, after.encode())
    return [f"Relabeled {path} from {before} to {after}"]


def type_of(context: str) -> str:
    fields = context.strip().split(":")
    return fields[2] if len(fields) > 2 else ""
