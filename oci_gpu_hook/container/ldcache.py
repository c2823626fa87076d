# SPDX-License-Identifier: Apache-2.0
"""The container's ld.so.cache, merged by us and mounted over the image's own.

No ldconfig runs: it would be a program working on the image's folders with our rights (CVE-2024-0136, CVE-2024-0137,
CVE-2025-23267), and costs more than everything else together.  The image's cache is read as data and believed no
further than `ldso` has checked it; one that is damaged is replaced by a cache of our libraries alone, as glibc itself
would have ignored it.
"""

from __future__ import annotations

import posix

from oci_gpu_hook import ldmerge, ldso, linux
from oci_gpu_hook.container.mounts import Tree

_BELOW = linux.RESOLVE_IN_ROOT | linux.RESOLVE_NO_MAGICLINKS
_OPTIONS = ("ro", "nosuid", "nodev", "noexec")


def merge(tree: Tree, path: str, ours: ldmerge.Additions) -> None:
    """Mount a cache over `path` that lists `ours` and all that the container's own lists."""
    tree.attach_file(path, _OPTIONS, _merged(_read(tree, path), ours), 0o644)


def _merged(data: bytes | None, ours: ldmerge.Additions) -> bytes:
    try:
        return ldmerge.merge(data, ours)
    except ldso.MalformedCache:
        return ldmerge.merge(None, ours)


def _read(tree: Tree, path: str) -> bytes | None:
    """The image's cache; None where there is none that can be read.

    O_NONBLOCK: an image may have a fifo of that name, which would hold the start up for ever.
    """
    try:
        fd = linux.openat2(tree.root_fd, path, posix.O_RDONLY | posix.O_NONBLOCK, resolve=_BELOW)
    except OSError:
        return None
    try:
        size = posix.fstat(fd).st_size
        return posix.read(fd, size) if 0 < size <= ldso.LARGEST else None
    except OSError:
        return None
    finally:
        posix.close(fd)
