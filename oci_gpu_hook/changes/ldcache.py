# SPDX-License-Identifier: Apache-2.0
"""The container's ld.so.cache, merged by us and mounted over the image's own.

No ldconfig runs: it would be a program that works on the image's folders with our rights (CVE-2024-0136, CVE-2024-0137,
CVE-2025-23267), and costs more than everything else together.  The image's cache is read as data, and believed only as
far as `formats.ldcache` has checked it.  One that is damaged is replaced by a cache of our libraries alone: glibc would
ignore it too.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.formats import ldcache, ldcache_merge
from oci_gpu_hook.kernel.filetypes import is_regular

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.changes.tree import Tree
    from oci_gpu_hook.formats.ldcache_additions import Additions

_OPTIONS = ("ro", "nosuid", "nodev", "noexec")


def merge(tree: Tree, path: str, additions: Additions) -> None:
    """Mount a cache over `path` that lists `additions` and all that the container's own cache lists."""
    data = _read(tree, path)
    try:
        merged = ldcache_merge.merge(data, additions)
    except ldcache.MalformedCache:
        merged = ldcache_merge.merge(None, additions)
    tree.attach_file(path, _OPTIONS, merged, 0o644)


def _read(tree: Tree, path: str) -> bytes | None:
    """The image's cache; None where there is none that can be read."""
    try:
        found = tree.find(path)
    except OSError:
        return None
    if found is None:
        return None
    try:
        status = posix.fstat(found)
        # Looked at before it is opened: to open a device of the host's, which an image may name, can do harm, and a
        # fifo would hold the start up for ever.
        if not is_regular(status) or not 0 < status.st_size <= ldcache.LARGEST:
            return None
        return _content(found, status.st_size)
    except OSError:
        return None
    finally:
        posix.close(found)


def _content(found: int, size: int) -> bytes:
    """`size` bytes of the file that an O_PATH descriptor is open on: its link in /proc leads to the very same file."""
    fd = posix.open(f"/proc/self/fd/{found}", posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        return posix.read(fd, size)
    finally:
        posix.close(fd)
