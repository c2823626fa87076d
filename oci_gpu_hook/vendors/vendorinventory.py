# SPDX-License-Identifier: Apache-2.0
"""A vendor: what its file says of an accelerator's driver, and what of that is on this host, which is saved.

`vendorfile`, `tegra` and `wsl` give patterns.  `vendorsurvey` finds which of a host's files they mean, and saves that.
A start loads it while everything that was looked at is still the same.  Device nodes are never saved.  Reads only.
"""

from __future__ import annotations

from oci_gpu_hook.driver.inventory import DriverFile, Library
from oci_gpu_hook.host import statefile
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Optional

    # Three numbers that are the same while a file or a folder is; None if it is absent.
    Identity = Optional[tuple[int, int, int]]
    # Is called with each file and folder that a vendor is read from, before it is read.
    See = Callable[[str], object]

# See `inventory.HEADING`.
HEADING = b"oci-gpu-hook vendors 079bd73c\n"
PREFIX = "vendor."

LARGEST_FILE = 1 << 20


class DevicePattern(NamedTuple):
    """The character devices of the host for which all that is said here holds.  path: a glob below /dev, "" for any;
    major: the driver's name in /proc/devices; pci: ``1002`` or ``1d0f:7064``, in lower case; each: whether a request
    can name it, else every request gets it; name: the file in the device's folder in sysfs that has one more name for
    it; required: whether a request fails if the host has none.
    """

    path: str = ""
    major: str = ""
    pci: tuple[str, ...] = ()
    udev: tuple[tuple[str, str], ...] = ()
    each: bool = False
    name: str = ""
    required: bool = True
    group: str = ""


class Item(NamedTuple):
    """path: a glob, in which ``{version}`` stands for the driver's version; target: the folder in the container, "" for
    the usual one: the driver's own for libraries, else the host's.
    """

    path: str
    target: str = ""
    required: bool = False


class Group(NamedTuple):
    """One of a driver's features, and what it needs; `files` are folders too, which are mounted with their content;
    links: the path and the text of each.
    """

    name: str
    devices: tuple[DevicePattern, ...] = ()
    libraries: tuple[Item, ...] = ()
    files: tuple[Item, ...] = ()
    sockets: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()


class Vendor(NamedTuple):
    """One vendor: what its file says, and in place of `groups`, once they were surveyed, what a host has.

    groups: those that a request gets; source: where the version is, a kind (``text``, ``module``, ``file``, "") and its
    value; environment: what programs in a container may need, which a hook cannot set; kernel: the lowest release;
    modules: those that must be loaded; selinux_type: which a container's process needs; selinux_boolean: which must be
    on.  cached: libraries in folders that are mounted, which only need a place in ld.so.cache; needed: the host's own
    that others need, for an image that has none of the name; lacking: a sentence for each thing that must be there and
    is not; absent: what may be missing and is; faults: of what is left out.
    """

    file: str
    flag: str
    groups: tuple[Group, ...] = ()
    kind: str = ""
    source: tuple[str, str] = ("", "")
    version: str = ""
    patterns: tuple[DevicePattern, ...] = ()
    libraries: tuple[Library, ...] = ()
    cached: tuple[Library, ...] = ()
    needed: tuple[Library, ...] = ()
    files: tuple[DriverFile, ...] = ()
    sockets: tuple[tuple[str, str], ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    kernel: str = ""
    modules: tuple[str, ...] = ()
    selinux_type: str = ""
    selinux_boolean: str = ""
    lacking: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()


def way(host: HostRoot, path: str) -> Identity:
    """Whose a folder is, and who may write to it: its user, its group and its mode; None if there is nothing."""
    status = host.stat(path)
    return None if status is None else (status.st_uid, status.st_gid, status.st_mode)


def identity(host: HostRoot, path: str) -> Identity:
    status = host.stat(path)
    return None if status is None else (status.st_dev, status.st_ino, status.st_ctime_ns)


_INNER = {"patterns": DevicePattern, "files": DriverFile, **dict.fromkeys(("libraries", "cached", "needed"), Library)}


def read_saved(host: HostRoot, name: str, file: str) -> Vendor | None:
    """The saved inventory of this name, made from the vendor's `file`; None if there is none that is still true.  Saved
    with it are places, whose time changes with their names; ways, the folders that lead there and the files in a folder
    that is given whole, of which the owner and the mode count; and texts, what files said.
    """
    try:
        seen, row = statefile.load(host, f"{PREFIX}{name}", HEADING)
        found = statefile.nested(Vendor, row, _INNER)
        facts = [(now, path, was) for now, looked in zip((identity, way, HostRoot.read), seen) for path, was in looked]
    except (ValueError, TypeError):
        return None
    return found if found.file == file and all([now(host, path) == was for now, path, was in facts]) else None
