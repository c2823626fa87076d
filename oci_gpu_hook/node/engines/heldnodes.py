# SPDX-License-Identifier: Apache-2.0
"""The device nodes that a container has: by its mounts, and by its folders if root alone can mount anything there.

In a user namespace of his own a user can mount an overlay of a FUSE filesystem that never answers, by his own rights:
a step there may never return.  Nodes that he could use there are the host's own, and its mounts say where.
Reads only: no device is opened.  What a container could make endless is bounded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oci_gpu_hook.errors import UsageError
from oci_gpu_hook.kernel.filetypes import is_character_device
from oci_gpu_hook.node.machine import processes, untrusted
from oci_gpu_hook.node.machine.mounts import Mounts
from oci_gpu_hook.node.machine.untrusted import Budget, ContainerRoot
from oci_gpu_hook.record import NamedTuple

if TYPE_CHECKING:
    from oci_gpu_hook.host.root import HostRoot

    # Major and minor.
    Number = tuple[int, int]
    # The first path in the container of each number that was found, and whether all was looked at.
    Nodes = tuple[dict[Number, str], bool]

# Of /dev, and of the folder of MIG's capabilities in it.
_FOLDERS = ("/dev", "/dev/nvidia-caps")
_MOST_BOUND = 256
_MOST_FOLDERS = 64
# Far more than the devices of a host; each is asked of the device cgroup.
_MOST_NODES = 256
_SECONDS = 0.25


class Wanted(NamedTuple):
    """The devices that count.

    majors: nodes of these are listed; nodes: paths of the host and numbers of further ones; numbers: those that device
    cgroups are asked for.
    """

    majors: tuple[int, ...]
    nodes: tuple[tuple[str, int, int], ...]
    numbers: tuple[Number, ...]

    @property
    def folders(self) -> tuple[str, ...]:
        """Where the host has them, and where a container has them as a rule."""
        others = [path.rpartition("/")[0] for path, _, _ in self.nodes]
        return tuple(dict.fromkeys([*_FOLDERS, *others]))


class HostsNodes:
    """The host's nodes in the folders that count, by their filesystem's device and their place in it."""

    def __init__(self, root: HostRoot, hosts: Mounts, wanted: Wanted) -> None:
        self._numbers: dict[tuple[str, str], Number] = {}
        self._above: set[tuple[str, str]] = set()
        for folder in wanted.folders:
            for path in [f"{folder}/{name}" for name in root.names(folder)]:
                status, place = root.stat(path), hosts.shown(root.path.rstrip("/") + path)
                if status is not None and place is not None and is_character_device(status):
                    self._numbers.setdefault(place, untrusted.number(status))
        for device, path in self._numbers:
            parts = path.split("/")[1:-1]
            above = ["/" + "/".join(parts[:end]) for end in range(len(parts) + 1)]
            self._above.update([(device, folder) for folder in above])

    def shown_by(self, mounts: Mounts) -> Nodes:
        """Those that these mounts show, wherever a container has put them."""
        found: dict[Number, str] = {}
        folders = []
        for point, mount in mounts.points.items():
            number = self._numbers.get((mount.device, mount.root))
            if number is not None:
                found.setdefault(number, point)
            elif (mount.device, mount.root) in self._above:
                folders.append((point, mount.device, mount.root.rstrip("/") + "/"))
        for point, device, top in folders[:_MOST_FOLDERS]:
            for (its, path), number in self._numbers.items():
                if its == device and path.startswith(top):
                    place = f"{point.rstrip('/')}/{path[len(top) :]}"
                    # Another mount may lie over it.
                    if mounts.way(place)[-1] == point:
                        found.setdefault(number, place)
        return found, len(folders) <= _MOST_FOLDERS


def look(root: HostRoot, pid: int, ours: HostsNodes, wanted: Wanted) -> Nodes:
    """The nodes that a container has of those that count."""
    mounts = untrusted.mounts_of(root, pid)
    if mounts is None:
        return {}, processes.started(root, pid) is None
    found, is_whole = ours.shown_by(mounts)
    if processes.is_in_our_users(root, pid):
        others, was_whole = _inside(root, pid, mounts, wanted)
        found, is_whole = {**others, **found}, is_whole and was_whole
    numbers = {(major, minor) for _, major, minor in wanted.nodes}
    count = [at for at in found if at[0] in wanted.majors or at in numbers]
    # First those that there are on this host: a container that may make nodes can have thousands.
    count.sort(key=lambda at: (at not in wanted.numbers, at))
    return {at: found[at] for at in count[:_MOST_NODES]}, is_whole and len(count) <= _MOST_NODES


def _inside(root: HostRoot, pid: int, mounts: Mounts, wanted: Wanted) -> Nodes:
    """What a look into the container finds, where root alone can have mounted anything."""
    try:
        inside = ContainerRoot(root, pid) if mounts.is_local("/") else None
    except UsageError:
        return {}, True  # it has ended
    if inside is None:
        return {}, False
    found: dict[Number, str] = {}
    budget, is_whole = Budget(_SECONDS), True
    try:
        for folder in wanted.folders:
            nodes, was_whole = inside.nodes(folder, budget) if mounts.is_local(folder) else ([], False)
            is_whole = is_whole and was_whole
            for name, at in nodes:
                found.setdefault(at, f"{folder}/{name}")
        for point in _bound(mounts, wanted):
            status = inside.status(point, with_links=False) if mounts.is_local(point) else None
            if status is not None and is_character_device(status):
                found.setdefault(untrusted.number(status), point)
    finally:
        inside.close()
    return found, is_whole


def _bound(mounts: Mounts, wanted: Wanted) -> list[str]:
    """Where mounts can be of a node of another folder of the host's, as a driver container has one."""
    names = {path.rpartition("/")[2] for path, _, _ in wanted.nodes}
    found = [
        point
        for point, mount in mounts.points.items()
        if "/nvidia" in mount.root or mount.root.rpartition("/")[2] in names
    ]
    return found[:_MOST_BOUND]
