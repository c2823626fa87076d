# SPDX-License-Identifier: Apache-2.0
"""The kinds of operations: what each says of itself, what it prepares on the host and what it does in the container.

Paths named `source` are the host's; `target` and `path` are the container's.  No kind knows of another.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.changes import detached, loadercache
from oci_gpu_hook.container.devicecgroup import CGROUP_ROOT, levels
from oci_gpu_hook.formats.devicerule import DeviceRule
from oci_gpu_hook.host import source
from oci_gpu_hook.kernel.descriptors import closing
from oci_gpu_hook.kernel.filetypes import is_socket
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Protocol

    from oci_gpu_hook.changes.tree import Tree, Undo
    from oci_gpu_hook.formats import scopeunit
    from oci_gpu_hook.formats.ldcache import Entry
    from oci_gpu_hook.host.root import HostRoot

    class Operation(Protocol):
        """One step of a plan.  A new kind is named in `cli.plantext`, and in `planning.meanings` if CDI can."""

        @property
        def required(self) -> bool:
            """Whether the container is stopped if the step fails."""

        @property
        def reason(self) -> str:
            """Which request and which rule asked for it, for people."""

        def describe(self) -> str:
            """What it does, to stand behind "cannot"."""

        def prepare(self, host: HostRoot, undo: Undo) -> Perform:
            """Do what must be done in the host's mount namespace; gives what does the rest.  Both may raise OSError.
            It imports all that the rest needs: in the container's namespace the package may be out of reach.
            """

    # Called in the container's mount namespace; may give a sentence that says why nothing was done.
    Perform = Callable[[Tree], "str | None"]


class Mount(NamedTuple):
    """The host's `source`, cloned and attached at `target`; names: others of a file, in its folder in the container."""

    source: str
    target: str
    options: tuple[str, ...]
    required: bool
    reason: str
    folder: bool = False
    names: tuple[str, ...] = ()

    def paths(self) -> tuple[str, ...]:
        folder = self.target.rpartition("/")[0]
        return (self.target, *[f"{folder}/{name}" for name in self.names])

    def describe(self) -> str:
        return f"mount {self.source} at {self.target}"

    def prepare(self, host: HostRoot, undo: Undo) -> Perform:
        # The kernel clones mounts of the namespace that one is in only.
        mount = host.clone(self.source, detached.attributes(self.options))

        def perform(tree: Tree) -> None:
            tree.attach(mount, self.target, folder=self.folder)
            for path in self.paths()[1:]:
                tree.name(self.target, path, self.target.rpartition("/")[2])

        return perform


_SOCKET_OPTIONS = ("nosuid", "nodev", "noexec")
_SERVICE_OPTIONS = ("ro", *_SOCKET_OPTIONS)


class Service(NamedTuple):
    """The socket `source` of one of the host's services, or its folder of sockets and pipes, attached at `target`;
    owner: see `HostRoot.clone_source`.  A socket is not read-only: a container in the container mounts it again, and
    the kernel forbids to clear a read-only flag in a user namespace (mount_namespaces(7)).  All else is, or things
    could be left in the host's folder and its sockets be replaced.
    """

    source: str
    target: str
    owner: int
    required: bool
    reason: str
    folder: bool = False

    def options(self) -> tuple[str, ...]:
        """For people."""
        return _SERVICE_OPTIONS if self.folder else _SOCKET_OPTIONS

    def describe(self) -> str:
        return f"mount {self.source} at {self.target}"

    def prepare(self, host: HostRoot, undo: Undo) -> Perform:
        mount = host.clone_source(
            self.source,
            self.owner,
            lambda status: detached.attributes(_SOCKET_OPTIONS if is_socket(status) else _SERVICE_OPTIONS),
        )
        return lambda tree: tree.attach(mount, self.target, folder=self.folder)


class Device(NamedTuple):
    """The device node `path`; source: the host's, which is bound where a node cannot be made or would stay, else ""."""

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

    def is_closed(self) -> bool:
        # To use a MIG device its capabilities are read: the driver gives them 0444.
        return self.mode & 0o6 not in ((0o4, 0o6) if "/nvidia-caps/" in self.path else (0o6,))

    def describe(self) -> str:
        return f"bind the host's node {self.source}" if self.source else f"make the node {self.path}"

    def prepare(self, host: HostRoot, undo: Undo) -> Perform:
        if not self.source:
            mode, uid, gid = self.mode, self.uid, self.gid
            return lambda tree: tree.make_node(self.path, self.major, self.minor, mode=mode, uid=uid, gid=gid)
        mount = host.clone(self.source, detached.attributes(("nosuid", "noexec")))
        number = posix.fstat(mount).st_rdev
        if number != posix.makedev(self.major, self.minor):
            found, right = f"{posix.major(number)}:{posix.minor(number)}", f"{self.major}:{self.minor}"
            raise FileExistsError(f"it is device {found}, and the driver's is {right}")

        def perform(tree: Tree) -> None:
            # Where /dev lies on a disk, the mount point of the last start stays as a file.
            if not tree.has_node(self.path, self.major, self.minor, covers=True):
                tree.attach(mount, self.path, folder=False)

        return perform


class Symlink(NamedTuple):
    """The symbolic link `path`, whose text is `to`; if it `covers` what is there, the file that it leads to is mounted
    over that, which else is left.
    """

    path: str
    to: str
    required: bool
    reason: str
    covers: bool = False

    def describe(self) -> str:
        return f"link {self.path} to {self.to}"

    def prepare(self, host: HostRoot, undo: Undo) -> Perform:
        def perform(tree: Tree) -> None:
            if self.covers:
                tree.name(self.to, self.path, self.to)
                return
            try:
                tree.link(self.path, self.to)
            except FileExistsError:
                pass

        return perform


class Cover(NamedTuple):
    """Each of these files of ours is mounted over the image's own of its name in `folder`, if there is one."""

    folder: str
    files: tuple[str, ...]
    required: bool
    reason: str

    def paths(self) -> tuple[str, ...]:
        return tuple([f"{self.folder}/{file.rpartition('/')[2]}" for file in self.files])

    def describe(self) -> str:
        return f"cover the image's own files in {self.folder}"

    def prepare(self, host: HostRoot, undo: Undo) -> Perform:
        def perform(tree: Tree) -> None:
            for file, path in zip(self.files, self.paths()):
                tree.cover(file, path)

        return perform


class Tmpfs(NamedTuple):
    """A small filesystem at `path`; files: each by its name below it, its content and the bits of its mode."""

    path: str
    options: tuple[str, ...]
    folders: tuple[str, ...]
    files: tuple[tuple[str, str, int], ...]
    required: bool
    reason: str

    def describe(self) -> str:
        return f"cover {self.path}"

    def prepare(self, host: HostRoot, undo: Undo) -> Perform:
        files = [(name, content.encode(), mode) for name, content, mode in self.files]
        return lambda tree: tree.attach_tmpfs(self.path, self.options, self.folders, files)


class LdCache(NamedTuple):
    """folders: the drivers' own; configuration: a file that names these for ldconfig, if the image has its folder."""

    path: str
    configuration: str
    folders: tuple[str, ...]
    libraries: tuple[Entry, ...]
    required: bool
    reason: str

    def entries(self) -> list[tuple[str, str]]:
        return [(entry.soname.decode(), entry.path.decode()) for entry in self.libraries]

    def describe(self) -> str:
        return f"put our entries into {self.path}"

    def prepare(self, host: HostRoot, undo: Undo) -> Perform:
        return lambda tree: loadercache.merge(tree, self.path, self.configuration, self.folders, self.libraries)


class Relabel(NamedTuple):
    """context: for the mount at `path`, and all that lies in it; was: the mount's label before."""

    path: str
    context: str
    was: str
    required: bool
    reason: str

    def describe(self) -> str:
        return f"relabel {self.path} as {self.context}"

    def prepare(self, host: HostRoot, undo: Undo) -> Perform:
        # A host without SELinux does not load it.
        from oci_gpu_hook.changes import contextset

        return lambda tree: contextset.relabel(tree, self.path, self.context)


class OpenCgroup(NamedTuple):
    """`rules` are added to what a `DeviceCgroup` allows, never with the ``m`` (mknod) access.  pinned: see `ScopeUnit`;
    fallback: linux.resources.devices of config.json, for a v2 program whose instructions the kernel does not show.
    """

    version: str
    path: str
    top: str
    rules: tuple[DeviceRule, ...]
    fallback: tuple[DeviceRule, ...]
    required: bool
    reason: str
    pinned: str = ""

    def describe(self) -> str:
        return f"open the device cgroup ({self.version})"

    def prepare(self, host: HostRoot, undo: Undo) -> Perform:
        directories = levels(self.path, self.top)
        if self.version == "v1":
            from oci_gpu_hook.changes import cgroup_v1

            return lambda tree: cgroup_v1.allow(directories, self.rules, tree.undo)
        from oci_gpu_hook.changes import cgroup_v2

        pin = cgroup_v2.pin_at(host.fd, self.pinned) if self.pinned else None
        return lambda tree: cgroup_v2.allow(directories, self.rules, self.fallback, tree.undo, pin)


class LimitMemory(NamedTuple):
    """The memory of devices that a cgroup may take, in bytes: of regions by their names in dmem.capacity; or, by the
    host's libnvidia-ml, which is `library`, of GPUs by their PCI addresses.  path, top: see `DeviceCgroup`.
    """

    path: str
    top: str
    limits: tuple[tuple[str, int], ...]
    required: bool
    reason: str
    library: str = ""

    def describe(self) -> str:
        return f"limit the memory of the devices ({'NVML' if self.library else 'dmem'})"

    def prepare(self, host: HostRoot, undo: Undo) -> Perform:
        if self.library:
            from oci_gpu_hook.changes import nvmllimit

            # It is done here, in the host's namespaces, and goes with the cgroup.
            with closing(source.open_source(host.fd, self.library)) as library:
                nvmllimit.limit(library, self.path, self.limits)
            return lambda tree: ""
        from oci_gpu_hook.changes import dmem

        above, own = levels(self.top, CGROUP_ROOT)[:-1], levels(self.path, self.top)
        return lambda tree: dmem.limit(above, own, self.limits, tree.undo)


class TellSystemd(NamedTuple):
    """`rules` added to DeviceAllow= of the scope `unit`, if systemd restricts its devices; before: what is there.  It
    puts its own rules in force at each daemon-reload, by which the container would lose its GPUs.
    """

    unit: str
    rules: tuple[DeviceRule, ...]
    before: tuple[scopeunit.Entry, ...]
    required: bool
    reason: str

    def describe(self) -> str:
        return f"add the devices to DeviceAllow= of {self.unit}"

    def prepare(self, host: HostRoot, undo: Undo) -> Perform:
        from oci_gpu_hook.changes import scope

        # It works while the hook does.
        connection = scope.tell(self.unit, self.rules)
        undo.remember(scope.withdraw, connection, self.unit, self.before)
        return lambda tree: scope.wait(connection)
