# SPDX-License-Identifier: Apache-2.0
"""The socket of one of NVIDIA's services, or its folder of sockets and pipes, in the container.

A socket is not read-only: a container in the container mounts it again, and the kernel forbids to clear a read-only
flag in a user namespace (mount_namespaces(7)).  All else is read-only, or things could be left in the host's folder and
its sockets be replaced; sockets and pipes serve on such a mount as well.  A CDI spec has none of it: an engine would
follow the path to whatever it leads to then.
"""

from __future__ import annotations

from oci_gpu_hook.changes.detached import attributes
from oci_gpu_hook.kernel.filetypes import is_socket
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.changes.tree import Tree
    from oci_gpu_hook.changes.undo import Undo
    from oci_gpu_hook.host.root import HostRoot

SOCKET_OPTIONS = ("nosuid", "nodev", "noexec")
OPTIONS = ("ro", *SOCKET_OPTIONS)


class Service(NamedTuple):
    """What `source` on the host is, attached at `target`; owner: see `HostRoot.clone_source`."""

    source: str
    target: str
    owner: int
    required: bool
    reason: str
    folder: bool = False

    def options(self) -> tuple[str, ...]:
        """Those of the mount; what is neither a folder nor a socket is read-only, too."""
        return OPTIONS if self.folder else SOCKET_OPTIONS

    def describe(self) -> str:
        """See `Operation`, for this and the rest."""
        return f"mount {self.source} at {self.target}"

    def prepare(self, host: HostRoot, undo: Undo) -> int | None:
        return host.clone_source(
            self.source, self.owner, lambda status: attributes(SOCKET_OPTIONS if is_socket(status) else OPTIONS)
        )

    def perform(self, tree: Tree, prepared: int | None) -> str:
        assert prepared is not None
        tree.attach(prepared, self.target, folder=self.folder)
        return ""
