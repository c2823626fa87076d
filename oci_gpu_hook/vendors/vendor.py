# SPDX-License-Identifier: Apache-2.0
"""A vendor: what an accelerator's driver has for containers, as one file describes it.

A value, and nothing else: `vendorfile` reads it from JSON, `tegra` from NVIDIA's CSV files, and `wsl` has one of its
own.  It names patterns; `survey` finds which of a host's files they mean, and `devices` which nodes.
"""

from __future__ import annotations

from oci_gpu_hook.record import NamedTuple

# Of a vendor's file, in bytes.
LARGEST_FILE = 1 << 20


class DevicePattern(NamedTuple):
    """Which character devices of the host are meant: those for which all that is said here holds.

    path: a glob below /dev, "" for any; major: the driver's name in /proc/devices; pci: PCI vendors, ``1002``, or
    vendors and devices, ``1d0f:7064``, in lower case, of which one must be the device's; properties: in udev's
    database.
    each: whether it is one of the devices that a request can name, else every request gets it; name: the file in the
    device's folder in sysfs that has one more name for it, such as ``ibdev``.
    required: whether a request fails if the host has none.
    """

    path: str
    major: str = ""
    pci: tuple[str, ...] = ()
    properties: tuple[tuple[str, str], ...] = ()
    each: bool = False
    name: str = ""
    required: bool = True


class Item(NamedTuple):
    """Files of the host: `path` is a glob, in which ``{version}`` stands for the driver's version.

    target: the folder in the container, "" for the usual one: the loader's own for libraries, else the host's.
    """

    path: str
    target: str = ""
    required: bool = False


class Link(NamedTuple):
    """A symbolic link in the container: where it lies, and its text."""

    path: str
    to: str


class Group(NamedTuple):
    """One of a driver's features, and what it needs; `files` are folders too, which are mounted with their content."""

    name: str
    devices: tuple[DevicePattern, ...] = ()
    libraries: tuple[Item, ...] = ()
    files: tuple[Item, ...] = ()
    sockets: tuple[Item, ...] = ()
    links: tuple[Link, ...] = ()


class Version(NamedTuple):
    """Where a driver's version is found: kind is ``text``, ``module`` (its name) or ``file`` (its path), or ""."""

    kind: str = ""
    value: str = ""


class Vendor(NamedTuple):
    """What one file says.

    file: its path, for people; flag: the variable that asks for it; kind: of its CDI devices, ``amd.com/gpu``, "" for
    none; groups: those that a request gets; environment: what programs in a container may need, which a hook cannot
    set; kernel: the lowest release, "" for any; modules: those that must be loaded; selinux_type: the type that a
    container's process needs, selinux_boolean: the boolean that must be on, "" for none.
    """

    file: str
    flag: str
    groups: tuple[Group, ...]
    kind: str = ""
    version: Version = Version()
    environment: tuple[tuple[str, str], ...] = ()
    kernel: str = ""
    modules: tuple[str, ...] = ()
    selinux_type: str = ""
    selinux_boolean: str = ""
