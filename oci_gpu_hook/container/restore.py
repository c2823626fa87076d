# SPDX-License-Identifier: Apache-2.0
"""A container that CRIU restores from a checkpoint, from which all comes back that a start puts into it.  Reads only.

runc calls its hooks while the process is CRIU's child, in a copy of the host's mounts: what a start would make there
would be the host's.  So it must be proved, and nothing but the device cgroup may be changed.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.container.process import Process
from oci_gpu_hook.errors import BundleError
from oci_gpu_hook.host.source import open_source
from oci_gpu_hook.kernel.descriptors import NAMED, closing, reopened
from oci_gpu_hook.kernel.filetypes import is_open_to_others, is_regular, is_same

# A checkpoint's folder has the first of these, and for each tmpfs an archive of tar's, compressed.
_INVENTORY, _TMPFS = "inventory.img", "tmpfs-"
# A node takes 512 bytes of an archive.
_MAX_BYTES = 4 << 20
_MAX_ARCHIVES = 64
_FOLDER = posix.O_RDONLY | posix.O_DIRECTORY | posix.O_CLOEXEC
_BLOCK, _GZIP = 512, 31
_CHARACTER_DEVICE = b"3"


def prove(process: Process, root_fd: int) -> None:
    """BundleError unless the program of `process` is root's own CRIU, below the host's root."""
    path = process.program()
    try:
        # Its own name is what a process says of itself; the file is what the kernel has started.
        with closing(process.open("exe", posix.O_PATH)) as program, closing(open_source(root_fd, path)) as found:
            status = posix.fstat(found)
            is_criu = path.rpartition("/")[2] == "criu" and is_same(status, posix.fstat(program))
            if is_criu and not is_open_to_others(status):
                return
    except OSError:
        pass
    raise BundleError(f"the state says that the container is stopped, and process {process.pid} is not root's CRIU")


def dumped(process: Process) -> frozenset[tuple[int, int]]:
    """Devices of the checkpoint that CRIU has open.  They grant nothing: the container's user may have made some."""
    found: set[tuple[int, int]] = set()
    with closing(process.open("fd", posix.O_RDONLY | posix.O_DIRECTORY)) as descriptors:
        for name in posix.listdir(descriptors):
            try:
                with closing(posix.open(name, _FOLDER, dir_fd=descriptors)) as folder:
                    posix.stat(_INVENTORY, dir_fd=folder)
                    for archive in [it for it in posix.listdir(folder) if it.startswith(_TMPFS)][:_MAX_ARCHIVES]:
                        found |= _nodes(_read(folder, archive))
            except OSError:
                continue
    return frozenset(found)


def _read(folder: int, name: str) -> bytes:
    """The first bytes of a file; none of what is not one: a checkpoint that came from elsewhere may have a device."""
    with closing(posix.open(name, NAMED, dir_fd=folder)) as found:
        if not is_regular(posix.fstat(found)):
            return b""
        with closing(reopened(found)) as fd:
            return posix.read(fd, _MAX_BYTES)


def _nodes(archive: bytes) -> set[tuple[int, int]]:
    """The numbers of the character devices in an archive, as far as it can be read; tar(5)."""
    import zlib

    found = set()
    try:
        data = zlib.decompressobj(_GZIP).decompress(archive, _MAX_BYTES)
        at = 0
        # A header that is cut off has other numbers.
        while len(header := data[at : at + _BLOCK]) == _BLOCK and header.strip(b"\0"):
            if header[156:157] == _CHARACTER_DEVICE:
                found.add((_octal(header[329:337]), _octal(header[337:345])))
            at += _BLOCK + -(-_octal(header[124:136]) // _BLOCK) * _BLOCK
    except (zlib.error, ValueError):
        pass
    return found


def _octal(field: bytes) -> int:
    digits = field.rstrip(b"\0 ") or b"0"
    if not digits.isdigit():
        raise ValueError("no number")
    return int(digits, 8)
