# SPDX-License-Identifier: Apache-2.0
"""A device node in the container's /dev."""

from __future__ import annotations

from oci_gpu_hook.changes import mknod
from oci_gpu_hook.changes.detached import attributes
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.changes.tree import Tree
    from oci_gpu_hook.changes.undo import Undo
    from oci_gpu_hook.host.root import HostRoot

_BIND_OPTIONS = ("nosuid", "noexec")


class Device(NamedTuple):
    """The node `path`.

    source: the host's node, to be bound where the container's user namespace refuses mknod; "" to make the node.
    """

    path: str
    type: str
    major: int
    minor: int
    access: str
    mode: int
    uid: int
    gid: int
    source: str
    required: bool
    reason: str

    def describe(self) -> str:
        """See `Operation`, for this and the rest."""
        if self.source:
            return f"bind the host's node {self.source}"
        return f"make the node {self.path}"

    def prepare(self, host: HostRoot, undo: Undo) -> int | None:
        return host.clone(self.source, attributes(_BIND_OPTIONS)) if self.source else None

    def perform(self, tree: Tree, prepared: int | None) -> str:
        if prepared is None:
            mode, uid, gid = self.mode, self.uid, self.gid
            mknod.make(tree, self.path, self.major, self.minor, mode=mode, uid=uid, gid=gid)
        elif not mknod.is_there(tree, self.path, self.major, self.minor):
            tree.attach(prepared, self.path, folder=False)
        return ""
