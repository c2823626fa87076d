# SPDX-License-Identifier: Apache-2.0
"""The vocabulary of a plan: one record a kind of operation, each a fact that needs no further decision.

`plan` makes them, `render` prints them, `hook` carries them out.  Paths named ``source`` are the host's; ``target`` and
``path`` are the container's.  ``reason`` says for people which request and which rule asked for it.  Pure: no function
here does anything.
"""

from __future__ import annotations

from oci_gpu_hook.oci import DeviceRule
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Union

    from oci_gpu_hook.ldmerge import Additions

    Operation = Union[
        "Mount", "Device", "Symlink", "Tmpfs", "LdCache", "Relabel", "AllowDevices", "DeviceAllow"
    ]


class Mount(NamedTuple):
    """A file or folder of the host, cloned and attached: options are ``ro``, ``nosuid``, ``nodev``, ``noexec``.

    names: other names of a file, in its folder in the container: ``libcuda.so.1``.
    """

    source: str
    target: str
    options: tuple[str, ...]
    required: bool
    reason: str
    folder: bool = False
    names: tuple[str, ...] = ()


class Device(NamedTuple):
    """A device node in the container's /dev.

    source: the host's node to bind where the container's user namespace refuses mknod; "" to make the node.
    """

    path: str
    type: str
    major: int
    minor: int
    access: str
    mode: int
    uid: int
    gid: int
    source: str
    required: bool
    reason: str


class Symlink(NamedTuple):
    """A symbolic link in the container's /dev: `to` is its text, relative."""

    path: str
    to: str
    required: bool
    reason: str


class File(NamedTuple):
    """A file inside a `Tmpfs`: name relative to it, whole content, mode bits."""

    name: str
    content: str
    mode: int


class Tmpfs(NamedTuple):
    """A small filesystem of our own, filled before it is attached."""

    path: str
    options: tuple[str, ...]
    folders: tuple[str, ...]
    files: tuple[File, ...]
    required: bool
    reason: str


class LdCache(NamedTuple):
    """The container's ld.so.cache with `additions` merged in, mounted over the image's own."""

    path: str
    additions: Additions
    required: bool
    reason: str


class Relabel(NamedTuple):
    """An IPC mount of the container or its pod, and all that lies in it, given a label; `was` is the mount's before."""

    path: str
    context: str
    was: str
    required: bool
    reason: str


class Labels(NamedTuple):
    """What SELinux needs: `context` for all that is made ("" is none), mounts to relabel, and what is left alone."""

    context: str
    operations: tuple[Relabel, ...]
    notes: tuple[str, ...]


class AllowDevices(NamedTuple):
    """The container's device cgroup opened for exactly these devices, never with the ``m`` (mknod) access.

    version: ``v1`` or ``v2``; path, top: see `container.cgroup.DeviceCgroup`, "" while the container does not exist.
    """

    version: str
    path: str
    top: str
    rules: tuple[DeviceRule, ...]
    required: bool
    reason: str


class DeviceAllow(NamedTuple):
    """systemd told of the same devices, for the container's scope: it puts its own rules in force again and again.

    before: what the scope's DeviceAllow= has, path and access.
    """

    unit: str
    rules: tuple[DeviceRule, ...]
    before: tuple[tuple[str, str], ...]
    required: bool
    reason: str


def mount_paths(mount: Mount) -> tuple[str, ...]:
    """Every path of a mount in the container; the target first."""
    folder = mount.target.rpartition("/")[0]
    return (mount.target, *[f"{folder}/{name}" for name in mount.names])
