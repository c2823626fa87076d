# SPDX-License-Identifier: Apache-2.0
"""A SELinux label for /dev/shm or /dev/mqueue, of the container or its pod."""

from __future__ import annotations

from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.changes.tree import Tree
    from oci_gpu_hook.changes.undo import Undo
    from oci_gpu_hook.host.root import HostRoot


class Relabel(NamedTuple):
    """The label `context` for the mount at `path` and all that lies in it; `was` is the mount's label before."""

    path: str
    context: str
    was: str
    required: bool
    reason: str

    def describe(self) -> str:
        """See `Operation`, for this and the rest."""
        return f"relabel {self.path} as {self.context}"

    def prepare(self, host: HostRoot, undo: Undo) -> int | None:
        # A host without SELinux does not load it, and `perform` runs where the package may be out of reach.
        from oci_gpu_hook.changes import contextset  # noqa: F401

        return None

    def perform(self, tree: Tree, prepared: int | None) -> str:
        from oci_gpu_hook.changes import contextset

        contextset.relabel(tree, self.path, self.context)
        return ""
