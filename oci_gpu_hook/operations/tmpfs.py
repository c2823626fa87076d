# SPDX-License-Identifier: Apache-2.0
"""A small filesystem of ours in the container, filled before it is attached.

So it can be read-only, and nobody sees it half done.
"""

from __future__ import annotations

from oci_gpu_hook.changes import detached
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.changes.tree import Tree
    from oci_gpu_hook.changes.undo import Undo
    from oci_gpu_hook.host.root import HostRoot

    # Name below the filesystem's root, whole content, mode bits.
    File = tuple[str, str, int]


class Tmpfs(NamedTuple):
    """A new tmpfs at `path`; folders are relative to its root."""

    path: str
    options: tuple[str, ...]
    folders: tuple[str, ...]
    files: tuple[File, ...]
    required: bool
    reason: str

    def describe(self) -> str:
        """See `Operation`, for this and the rest."""
        return f"cover {self.path}"

    def prepare(self, host: HostRoot, undo: Undo) -> int | None:
        return None

    def perform(self, tree: Tree, prepared: int | None) -> str:
        def fill(root: int) -> None:
            for folder in self.folders:
                detached.make_folders(root, folder)
            for name, content, mode in self.files:
                detached.write_file(root, name, content.encode(), mode)

        tree.attach_tmpfs(self.path, self.options, fill)
        return ""
