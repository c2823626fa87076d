# SPDX-License-Identifier: Apache-2.0
"""The container's ld.so.cache, merged by us, a file of the driver's folder, and mounted over the image's own.

No ldconfig runs: it would be a program that works on the image's folders with our rights (CVE-2024-0136, CVE-2024-0137,
CVE-2025-23267), and costs more than everything else together.  The image's cache is read as data, and believed only as
far as `formats.ldcache` has checked it.  One that is damaged is replaced by a cache of our libraries alone: glibc would
ignore it too.  So is one in a volume, whose server may never answer, or in procfs, where a read may do something: of
what is mounted below the root only a file in memory is read.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.changes.tree import Tree
from oci_gpu_hook.formats import ldcache
from oci_gpu_hook.kernel import mountinfo, procfile, syscalls
from oci_gpu_hook.kernel.descriptors import closing, reopened
from oci_gpu_hook.kernel.filetypes import is_regular


def merge(tree: Tree, path: str, file: str, ours: tuple[ldcache.Entry, ...]) -> str:
    """Write a cache to `file` with `ours` and the container's own entries, and mount it over `path`.

    Gives a note if the container's are left out.
    """
    try:
        found = tree.find(path)
    except OSError:
        found = None
    is_left_out = found is not None and not _is_readable(tree, found)
    data = None if found is None or is_left_out else _read(found)
    try:
        merged = ldcache.merge(data, ours)
    except ldcache.MalformedCache:
        merged = ldcache.merge(None, ours)
    tree.cover(path, file, merged)
    return f"{path} lies in a volume or in procfs, and what it lists is left out" if is_left_out else ""


def _is_readable(tree: Tree, found: int) -> bool:
    """Whether it lies on the root's own mount, or in a tmpfs, where an earlier hook of ours has put a cache."""
    id = syscalls.mount_of(found)[0]
    if id == syscalls.mount_of(tree.root_fd)[0]:
        return True
    mount = mountinfo.mount(procfile.pieces("/proc/self/mountinfo"), id)
    return mount is not None and mount.type == "tmpfs"


def _read(found: int) -> bytes | None:
    """The content of the cache that `found` is an O_PATH descriptor of; None if it is no file that can be read."""
    try:
        status = posix.fstat(found)
        # Checked before it is opened: to open a device of the host's, which an image may name, can do harm, and a fifo
        # would hold the start up for ever.
        if not is_regular(status) or not 0 < status.st_size <= ldcache.LARGEST:
            return None
        with closing(reopened(found)) as fd:
            return posix.read(fd, status.st_size)
    except OSError:
        return None
