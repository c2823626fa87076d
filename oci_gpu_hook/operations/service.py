# SPDX-License-Identifier: Apache-2.0
"""The socket of one of NVIDIA's services, or its folder of sockets and pipes, in the container.

Read-only: a socket and a pipe serve on a read-only mount as well, and nothing can be left in the folder.  A CDI spec
has none of it: an engine would follow the path to whatever it leads to then.
"""

from __future__ import annotations

from oci_gpu_hook.changes.detached import attributes
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.changes.tree import Tree
    from oci_gpu_hook.changes.undo import Undo
    from oci_gpu_hook.host.root import HostRoot

OPTIONS = ("ro", "nosuid", "nodev", "noexec")


class Service(NamedTuple):
    """What `source` on the host is, attached at `target`; owner: see `HostRoot.clone_source`."""

    source: str
    target: str
    owner: int
    required: bool
    reason: str
    folder: bool = False

    def describe(self) -> str:
        """See `Operation`, for this and the rest."""
        return f"mount {self.source} at {self.target}"

    def prepare(self, host: HostRoot, undo: Undo) -> int | None:
        return host.clone_source(self.source, self.owner, attributes(OPTIONS))

    def perform(self, tree: Tree, prepared: int | None) -> str:
        assert prepared is not None
        tree.attach(prepared, self.target, folder=self.folder)
        return ""
