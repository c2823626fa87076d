# SPDX-License-Identifier: Apache-2.0
"""VendorInventory: what of one vendor's file is on this host; and the saved copies of it and of the files' flags.

`survey` makes an inventory from a vendor's file and the files that it names, and saves it.  A start loads the saved one
while everything that was looked at is still the same.  Device nodes are never saved: see `devices`.  Reads only.
"""

from __future__ import annotations

from oci_gpu_hook.driver.inventory import DriverFile, Library
from oci_gpu_hook.host import saved
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.request.vendorrequest import Known
from oci_gpu_hook.vendors import folders
from oci_gpu_hook.vendors.vendor import DevicePattern, Link

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    # Three numbers that are the same while a file or a folder is; None if it is absent.
    Identity = Optional[tuple[int, int, int]]

# Raise the number with a change of the fields of a record below, of Library, DriverFile, DevicePattern or Known, or of
# what a survey leaves out.
HEADING = b"oci-gpu-hook vendors 3\n"
KNOWN = "vendors"
PREFIX = "vendor."


class VendorInventory(NamedTuple):
    """What a host has of one vendor's.

    file, flag, kind, environment, kernel, modules, selinux_type, selinux_boolean: see `Vendor`.
    patterns: of its devices, each with its group; libraries: to be mounted; cached: those in folders that are mounted,
    which only need a place in ld.so.cache; lacking: a sentence for each thing that must be there and is not; absent:
    what may be missing and is; faults: a sentence for each thing that is left out as others than root could have made
    it.
    """

    file: str
    flag: str
    kind: str = ""
    version: str = ""
    patterns: tuple[tuple[str, DevicePattern], ...] = ()
    libraries: tuple[Library, ...] = ()
    cached: tuple[Library, ...] = ()
    files: tuple[DriverFile, ...] = ()
    sockets: tuple[tuple[str, str], ...] = ()
    links: tuple[Link, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    kernel: str = ""
    modules: tuple[str, ...] = ()
    selinux_type: str = ""
    selinux_boolean: str = ""
    lacking: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()


def way(root: HostRoot, path: str) -> Identity:
    """Whose a folder is, and who may write to it: its user, its group and its mode; None if there is nothing."""
    status = root.stat(path)
    return None if status is None else (status.st_uid, status.st_gid, status.st_mode)


def identity(root: HostRoot, path: str) -> Identity:
    """What tells one state of a file or folder from another; None if there is nothing."""
    status = root.stat(path)
    return None if status is None else (status.st_dev, status.st_ino, status.st_ctime_ns)


def files_now(root: HostRoot) -> tuple[tuple[str, Identity], ...]:
    """The vendors' files of this host as they are now, and whose their folders are."""
    files = [(path, identity(root, path)) for path in folders.list_files(root)]
    ways = [(path, way(root, path)) for path in folders.WAYS] if files else []
    return (*files, *ways)


def read_known(root: HostRoot, now: tuple[tuple[str, Identity], ...]) -> tuple[Known, ...] | None:
    """What the vendors' files said when they were as `now`; None if that was not saved."""
    values = saved.unpacked(HEADING, saved.read(root, KNOWN))
    try:
        files, rows = values
        return saved.records(Known, rows) if files == now else None
    except (ValueError, TypeError):
        return None


def read_saved(root: HostRoot, name: str, file: str) -> VendorInventory | None:
    """The saved inventory of this name, made from the vendor's `file`; None if there is none that is still true.

    What was looked at is saved with it.  Places: a folder's time changes with its names, its owner and its mode.  Ways:
    the folders that lead there, of which the owner and the mode count, and not what else is put into them, and the
    files in a folder that is given whole.  Texts: what files said.
    """
    values = saved.unpacked(HEADING, saved.read(root, f"{PREFIX}{name}"))
    try:
        (places, ways, texts), row = values
        found = _from_row(row)
    except (ValueError, TypeError):
        return None
    if found.file != file:
        return None
    is_same = (
        all([identity(root, path) == was for path, was in places])
        and all([way(root, path) == was for path, was in ways])
        and all([root.read(path) == was for path, was in texts])
    )
    return found if is_same else None


def _from_row(row: tuple[object, ...]) -> VendorInventory:
    """The inventory from plain tuples; ValueError or TypeError if one does not fit its record."""
    (found,) = saved.records(VendorInventory, (row,))
    groups = [group for group, _ in found.patterns]
    patterns = saved.records(DevicePattern, [pattern for _, pattern in found.patterns])
    return found._replace(
        patterns=tuple(zip(groups, patterns)),
        libraries=saved.records(Library, found.libraries),
        cached=saved.records(Library, found.cached),
        files=saved.records(DriverFile, found.files),
        links=saved.records(Link, found.links),
    )
