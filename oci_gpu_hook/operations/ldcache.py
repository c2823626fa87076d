# SPDX-License-Identifier: Apache-2.0
"""The container's ld.so.cache, with our libraries in it."""

from __future__ import annotations

from oci_gpu_hook.changes import loadercache
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.changes.tree import Tree
    from oci_gpu_hook.changes.undo import Undo
    from oci_gpu_hook.formats.ldcache_merge import Entry
    from oci_gpu_hook.host.root import HostRoot


class LdCache(NamedTuple):
    """The cache at `path` with `libraries` merged in, mounted over the image's own."""

    path: str
    libraries: tuple[Entry, ...]
    required: bool
    reason: str

    def entries(self) -> list[tuple[str, str]]:
        """The SONAME and the path of each library that the cache is to list."""
        return [(soname.decode(), path.decode()) for soname, path, *_ in self.libraries]

    def describe(self) -> str:
        """See `Operation`, for this and the rest."""
        return f"put our entries into {self.path}"

    def prepare(self, host: HostRoot, undo: Undo) -> int | None:
        return None

    def perform(self, tree: Tree, prepared: int | None) -> str:
        return loadercache.merge(tree, self.path, self.libraries)
