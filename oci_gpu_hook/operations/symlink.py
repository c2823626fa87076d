# SPDX-License-Identifier: Apache-2.0
"""A symbolic link: in the container's /dev, or to a driver's file."""

from __future__ import annotations

from oci_gpu_hook.changes import mknod
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.changes.tree import Tree
    from oci_gpu_hook.changes.undo import Undo
    from oci_gpu_hook.host.root import HostRoot


class Symlink(NamedTuple):
    """The link `path`; `to` is its text."""

    path: str
    to: str
    required: bool
    reason: str

    def describe(self) -> str:
        """See `Operation`, for this and the rest."""
        return f"link {self.path} to {self.to}"

    def prepare(self, host: HostRoot, undo: Undo) -> int | None:
        return None

    def perform(self, tree: Tree, prepared: int | None) -> str:
        mknod.link(tree, self.path, self.to)
        return ""
