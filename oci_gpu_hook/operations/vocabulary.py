# SPDX-License-Identifier: Apache-2.0
"""The vocabulary of a plan: every kind of operation, each in a file of its own.

An operation is a record: a fact that needs no further decision.  Its file says what it prepares on the host and what it
does in the container.  Paths named `source` are the host's; `target` and `path` are the container's.  To add a kind,
write its file, name it here, and say in `planning.carriedout` what a CDI spec can do of it, and in `cli.shown` how
people see it.
"""

from __future__ import annotations

from oci_gpu_hook.operations.cgroup import OpenCgroup
from oci_gpu_hook.operations.device import Device
from oci_gpu_hook.operations.ldcache import LdCache
from oci_gpu_hook.operations.mount import Mount
from oci_gpu_hook.operations.relabel import Relabel
from oci_gpu_hook.operations.service import Service
from oci_gpu_hook.operations.symlink import Symlink
from oci_gpu_hook.operations.systemd import TellSystemd
from oci_gpu_hook.operations.tmpfs import Tmpfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oci_gpu_hook.operations.operation import Operation

# By their names in `plan --format json`.
KINDS: dict[str, Any] = {
    "mount": Mount,
    "service": Service,
    "device": Device,
    "symlink": Symlink,
    "tmpfs": Tmpfs,
    "ldcache": LdCache,
    "relabel": Relabel,
    "cgroup": OpenCgroup,
    "deviceallow": TellSystemd,
}
_NAMES = {kind: name for name, kind in KINDS.items()}


def name_of(operation: Operation) -> str:
    """The name of an operation's kind."""
    return _NAMES[type(operation)]
