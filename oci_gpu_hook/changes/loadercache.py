# SPDX-License-Identifier: Apache-2.0
"""The container's ld.so.cache, merged by us and mounted over the image's own.

No ldconfig runs: it would be a program that works on the image's folders with our rights (CVE-2024-0136, CVE-2024-0137,
CVE-2025-23267), and costs more than everything else together.  The image's cache is read as data, and believed only as
far as `formats.ldcache` has checked it.  One that is damaged is replaced by a cache of our libraries alone: glibc would
ignore it too.  So is a volume's, whose server may never answer: of a volume only a file in memory is read.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.formats import ldcache
from oci_gpu_hook.kernel import mountinfo, procfile, syscalls
from oci_gpu_hook.kernel.filetypes import is_regular

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.changes.tree import Tree
    from oci_gpu_hook.formats.ldcache import Entry

_OPTIONS = ("ro", "nosuid", "nodev", "noexec")


def merge(tree: Tree, path: str, ours: tuple[Entry, ...]) -> str:
    """Mount a cache over `path` with `ours` and the container's own entries; a note if these are left out."""
    found, is_volumes = _cache(tree, path)
    data = None if found is None else _read(found)
    try:
        merged = ldcache.merge(data, ours)
    except ldcache.MalformedCache:
        merged = ldcache.merge(None, ours)
    tree.attach_file(path, _OPTIONS, merged, 0o644)
    return f"{path} lies in a volume, and what it lists is left out" if is_volumes else ""


def _cache(tree: Tree, path: str) -> tuple[int | None, bool]:
    """A descriptor of the cache that is there, None for none; and whether a volume's is there."""
    try:
        try:
            return tree.find_image(path), False
        except OSError as err:
            if err.errno != syscalls.EXDEV:
                raise
        found = tree.find(path)
    except OSError:
        return None, False
    if found is None or _is_in_memory(found):
        return found, False
    posix.close(found)
    return None, True


def _is_in_memory(found: int) -> bool:
    """Whether it lies in a tmpfs, as what an earlier hook of ours has mounted does: no server answers for it."""
    mount = mountinfo.mount(procfile.pieces("/proc/self/mountinfo"), syscalls.mount_of(found)[0])
    return mount is not None and mount.type == "tmpfs"


def _read(found: int) -> bytes | None:
    """The content of the cache that is open at `found`, which is closed; None if it is no file that can be read."""
    try:
        status = posix.fstat(found)
        # Checked before it is opened: to open a device of the host's, which an image may name, can do harm, and a fifo
        # would hold the start up for ever.
        if not is_regular(status) or not 0 < status.st_size <= ldcache.LARGEST:
            return None
        # The link of an O_PATH descriptor in /proc leads to the very same file.
        fd = posix.open(f"/proc/self/fd/{found}", posix.O_RDONLY | posix.O_CLOEXEC)
        try:
            return posix.read(fd, status.st_size)
        finally:
            posix.close(fd)
    except OSError:
        return None
    finally:
        posix.close(found)
