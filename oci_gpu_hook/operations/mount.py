# SPDX-License-Identifier: Apache-2.0
"""A file or folder of the host, in the container."""

from __future__ import annotations

from oci_gpu_hook.changes.detached import attributes
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.changes.tree import Tree
    from oci_gpu_hook.changes.undo import Undo
    from oci_gpu_hook.host.root import HostRoot


class Mount(NamedTuple):
    """The host's `source`, cloned and attached at `target`; options are ``ro``, ``nosuid``, ``nodev``, ``noexec``.

    names: other names of a file, in its folder in the container, such as ``libcuda.so.1``.
    """

    source: str
    target: str
    options: tuple[str, ...]
    required: bool
    reason: str
    folder: bool = False
    names: tuple[str, ...] = ()

    def paths(self) -> tuple[str, ...]:
        """Every path of the file or folder in the container; the target first."""
        folder = self.target.rpartition("/")[0]
        return (self.target, *[f"{folder}/{name}" for name in self.names])

    def describe(self) -> str:
        """See `Operation`, for this and the rest."""
        return f"mount {self.source} at {self.target}"

    def prepare(self, host: HostRoot, undo: Undo) -> int | None:
        # The kernel clones mounts of the namespace that one is in only.
        return host.clone(self.source, attributes(self.options))

    def perform(self, tree: Tree, prepared: int | None) -> str:
        assert prepared is not None
        tree.attach(prepared, self.target, folder=self.folder)
        for name in self.names:
            tree.name(self.target, name)
        return ""
