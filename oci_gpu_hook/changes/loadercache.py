# SPDX-License-Identifier: Apache-2.0
"""The container's ld.so.cache, with the driver's libraries merged in by us, and what an ldconfig in it reads.

In an overlay, as engines make one for each container, it takes the place of the image's own file, as ldconfig's does:
over a mount no program could rename a file, and apt-get, which runs ldconfig, would fail.  In another root, which may
be another container's too, and where the folder cannot be written, a file of the driver's folder is mounted over it.

No ldconfig runs: it would work on the image's folders with our rights (CVE-2024-0136, CVE-2024-0137, CVE-2025-23267),
and costs more than everything else together.  The image's cache is believed only as far as `formats.ldcache` has
checked it.  One that is damaged is replaced by a cache of our libraries alone: glibc would ignore it too.  So is one in
a volume, whose server may never answer, or in procfs, where a read may do something.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.changes.tree import Tree
from oci_gpu_hook.errors import reason
from oci_gpu_hook.formats import ldcache
from oci_gpu_hook.kernel import mountinfo, procfile, syscalls
from oci_gpu_hook.kernel.descriptors import closing, reopened
from oci_gpu_hook.kernel.filetypes import is_regular


def merge(tree: Tree, path: str, configuration: str, folders: tuple[str, ...], ours: tuple[ldcache.Entry, ...]) -> str:
    """Gives a note if the container's entries are left out.  configuration: a file that names `folders`, which are
    those of drivers, made here, for ldconfig.
    """
    below = tuple([f"{folder}/".encode() for folder in folders])
    try:
        found = tree.find(path)
    except OSError:
        found = None
    is_left_out = found is not None and not _is_readable(tree, found)
    data = None if found is None or is_left_out else _read(found)
    is_file = found is None or data is not None
    try:
        wanted = ldcache.without_spares(data, ours, below)
        merged = ldcache.merge(data, wanted, below)
    except ldcache.MalformedCache:
        # glibc may read more than we do.
        wanted = ldcache.without_spares(None, ours, below)
        merged, is_file = ldcache.merge(None, wanted), False
    if merged != data:
        _put(tree, path, folders[0], merged, data, is_file=is_file)
    searched = [entry.path.rpartition(b"/")[0] for entry in wanted if entry.path.startswith(below)]
    note = _tell_ldconfig(tree, configuration, folders[0], tuple(dict.fromkeys(searched)))
    return f"{path} lies in a volume or in procfs, and what it lists is left out" if is_left_out else note


def _put(tree: Tree, path: str, folder: str, data: bytes, before: bytes | None, *, is_file: bool) -> None:
    if is_file:
        try:
            tree.rewrite(path, data, before)
            return
        except OSError:
            # A volume, a link of the image's, a root that cannot be written, or is full.
            pass
    tree.cover_with(path, f"{folder}/{path.rpartition('/')[2]}", data)


def _tell_ldconfig(tree: Tree, path: str, folder: str, folders: tuple[bytes, ...]) -> str:
    """Have an ldconfig in the container find the libraries, where the image has a folder of such files for it."""
    parent, _, name = path.rpartition("/")
    try:
        found = tree.find(parent)
        if found is not None and tree.is_own(found):
            tree.cover_with(path, f"{folder}/{name}", b"".join([it + b"\n" for it in folders]))
    except OSError as err:
        return f"an ldconfig in the container will not find the driver: {reason(err)}"
    return ""


def _is_readable(tree: Tree, found: int) -> bool:
    """Whether it lies on the root's own mount, or in a tmpfs, where an earlier hook of ours has put a cache."""
    if tree.is_images(found):
        return True
    mount = mountinfo.mount(procfile.pieces("/proc/self/mountinfo"), syscalls.mount_of(found)[0])
    return mount is not None and mount.type == "tmpfs"


def _read(found: int) -> bytes | None:
    try:
        status = posix.fstat(found)
        # See `reopened`.
        if not is_regular(status) or status.st_size > ldcache.LARGEST:
            return None
        if not status.st_size:
            return b""
        with closing(reopened(found)) as fd:
            return posix.read(fd, status.st_size)
    except OSError:
        return None
