# SPDX-License-Identifier: Apache-2.0
"""What others than root have laid out for the hook, on the host and in an image, and what became of it.

Each trap has one folder of the host's that no start may change.  Things that were made there and taken back count: they
change the folder's times.  Must not start a container: `engine` gives it the trap's links, mounts and hooks.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from tests.gpunode.catalogue import MPS_FOLDER

from ..files import write
from .mounting import below, label, mount, set_label, unmount

HOST = "/srv/trap"
BELOW = f"{HOST}/sub"
USER = 1000
LEVEL = "s0:c1,c2"

Status = tuple[int, int, int, int, str]


class Trap(NamedTuple):
    """One of them.

    type: of the folder, and of all in it.  place: where it lies.  owner: whose it is.  via: a user's link that leads to
    it.  below: whether another filesystem of the host's is mounted in it.  folders, links: of the image, the latter by
    path.  tmpfs: where the runtime makes one.  volume: where the folder is mounted in the container.  moved: whether
    the path of the container's root is led to the folder before our hook runs.
    """

    type: str = "var_t"
    place: str = HOST
    owner: int = 0
    via: str = ""
    below: bool = False
    folders: tuple[str, ...] = ()
    links: Mapping[str, str] = MappingProxyType({})
    tmpfs: str = ""
    volume: str = ""
    moved: bool = False

    def context(self) -> str:
        """The label of the folder; what may be a container's has the very level of the one that starts."""
        level = LEVEL if self.type == "container_file_t" else "s0"
        return f"system_u:object_r:{self.type}:{level}"

    def covers_root(self) -> bool:
        """Whether the folder is mounted over the container's root."""
        return self.links.get(self.volume[1:]) == "/"

    def prepare_image(self, rootfs: str) -> None:
        """What the image has of it."""
        for path in self.folders:
            os.makedirs(rootfs + path)
        for path, text in self.links.items():
            place = f"{rootfs}/{path}"
            if os.path.lexists(place):
                os.unlink(place)
            os.symlink(text, place)

    def moving(self, above: str) -> list[list[str]]:
        """The commands by which the owner of the folder `above` the root leads the root's path elsewhere."""
        return [["mv", above, f"{above}.aside"], ["ln", "-s", self.place, above]]

    def move_back(self, above: str) -> None:
        if os.path.islink(above):
            os.unlink(above)
            os.rename(f"{above}.aside", above)


FOLDER_OF_A_USER = Trap("user_tmp_t", MPS_FOLDER, USER)
LINK_OF_A_USER = Trap(owner=USER, via=MPS_FOLDER)
CLONE = Trap("nvidia_mps_t", MPS_FOLDER, folders=(MPS_FOLDER,), links={"etc/ld.so.cache": f"{MPS_FOLDER}/planted"})
BELOW_A_VOLUME = Trap(
    below=True,
    # What the volume hides.
    folders=("/srv/data/sub",),
    links={"scratch": "srv/data/sub", "etc/ld.so.cache": "/scratch/planted"},
    tmpfs="/scratch",
    volume="/srv/data",
)
OVER_THE_ROOT = Trap(links={"data": "/"}, volume="/data")
MOVED_ROOT = Trap(moved=True)


@contextlib.contextmanager
def laid(trap: Trap) -> Iterator[list[str]]:
    """While a trap is there; the list gets a line for each change in its folder once the start is over."""
    changes: list[str] = []
    with contextlib.ExitStack() as later:
        for path in {trap.place, trap.via} & {MPS_FOLDER}:
            # The daemon's own comes back as it was.
            os.rename(path, f"{path}.aside")
            later.callback(os.rename, f"{path}.aside", path)
        _make(trap, later)
        before = _look(trap.place)
        yield changes
        after = _look(trap.place)
        changes += [
            f"{path} {'is new' if path not in before else 'is gone' if path not in after else 'changed'}"
            for path in sorted({*before, *after})
            if before.get(path) != after.get(path)
        ]


def _make(trap: Trap, later: contextlib.ExitStack) -> None:
    # What a root has, for a trap that is taken for one; and `merged`, where `engine` has a root that is moved.
    top = f"{trap.place}/merged" if trap.moved else trap.place
    for name in ("dev", "proc", "sys", "etc", "usr/bin", "tmp", "sub"):
        os.makedirs(f"{top}/{name}")
    later.callback(shutil.rmtree, trap.place)
    write(f"{top}/secret", "secret")
    for path in below(trap.place):
        os.chmod(path, 0o777)
        os.chown(path, trap.owner, trap.owner)
        set_label(path, trap.context())
    if trap.below:
        mount("trap", BELOW, "tmpfs", 0, f'mode=0777,context="{trap.context()}"')
        later.callback(unmount, BELOW)
    if trap.via:
        os.symlink(trap.place, trap.via)
        os.chown(trap.via, trap.owner, trap.owner, follow_symlinks=False)
        later.callback(os.unlink, trap.via)


def _look(top: str) -> dict[str, Status]:
    found = {path: os.lstat(path) for path in below(top)}
    return {path: (it.st_mode, it.st_uid, it.st_gid, it.st_ctime_ns, label(path)) for path, it in found.items()}
