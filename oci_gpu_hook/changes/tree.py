# SPDX-License-Identifier: Apache-2.0
"""The container's root while it is being changed: trees are attached at targets below it, and all can be taken back.

From check to use there is only a descriptor: a source is cloned in the host's mount namespace, a target is resolved
below the root's descriptor by the kernel (openat2), and move_mount joins the two.  NVIDIA's toolkit had nine CVEs from
paths that were checked, and then used again by name.  Nothing is made in a volume of the host, nor in what was cloned
of the host's (CVE-2024-0133 made files on the host in that way).  Must not know what is mounted or why.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.changes import detached
from oci_gpu_hook.errors import plain
from oci_gpu_hook.kernel import mountinfo, procfile, syscalls
from oci_gpu_hook.kernel.descriptors import NAMED, closing, reopened, replace
from oci_gpu_hook.kernel.filetypes import S_IFCHR, S_IFREG, is_character_device, is_folder, is_link, is_regular, is_same

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    # By their ids.
    Mounts = tuple[int, ...]

_BELOW = syscalls.RESOLVE_BELOW
_MAX_LINKS = 40
# Each missing folder of a link's text would be made, and no driver leaves such a link.
_DEEPEST = 40
_LONGEST_MESSAGE = 300


class TargetError(OSError):
    """A target that cannot be used, in words; `errno` is the nearest one of the kernel's."""

    def __init__(self, number: int, message: str) -> None:
        # Links of the image lead to paths of any length and letters.
        super().__init__(number, plain(message, _LONGEST_MESSAGE))

    def __str__(self) -> str:
        return str(self.strerror)


class Undo:
    """The steps that take back what has been done; descriptors that they need stay open until the process ends."""

    def __init__(self) -> None:
        self._steps: list[tuple[Callable[..., object], tuple[object, ...], dict[str, object]]] = []

    def remember(self, function: Callable[..., object], *arguments: object, **named: object) -> None:
        self._steps.append((function, arguments, named))

    def mark(self) -> int:
        return len(self._steps)

    def take_back(self, mark: int = 0) -> None:
        """Take back every change since `mark`, the last one first; what the kernel refuses goes with the container."""
        while len(self._steps) > mark:
            function, arguments, named = self._steps.pop()
            try:
                function(*arguments, **named)
            except OSError:
                pass


class Tree:
    """Things are made in the mounts with the ids `own`, and in filesystems that are made here; these bear `label`, ""
    leaves that to the policy.  as_owners: whether each thing is made as the owner of the folder that it lies in: a
    filesystem of a user namespace refuses those of an owner whom the namespace does not know (EOVERFLOW).  is_layer:
    whether files of the image may be written, as no other container reads them.
    """

    def __init__(
        self, root_fd: int, own: Mounts, undo: Undo, label: str = "", *, as_owners: bool = False, is_layer: bool = False
    ) -> None:
        self.root_fd = root_fd
        self.undo = undo
        self._label = label
        self._as_owners = as_owners
        self._is_layer = is_layer
        self._own = {*own}
        # Other mounts, by their ids: whether what is mounted there shows elsewhere too.
        self._propagates: dict[int, bool] = {}
        # Mounts that are to be read-only in the end.
        self._open: list[int] = []
        # Folders that are open, by path; and those of them in which things may be made.
        self._folders: dict[str, int] = {}
        self._own_folders: set[int] = set()
        self._root_mount = syscalls.mount_of(root_fd)[0]
        # The filesystems that were made here, each with "/": in them nothing lies that is not known.
        self._new: tuple[str, ...] = ()

    def make_writable(self) -> None:
        """Make a root that is mounted read-only writable until the end, for mount points.  Runtimes make a root
        read-only after their hooks, but LXC before.  What a mount of more power has locked stays (mount_namespaces(7)).
        """
        if not posix.fstatvfs(self.root_fd).f_flag & posix.ST_RDONLY:
            return
        try:
            syscalls.mount_setattr(self.root_fd, syscalls.mount_attr(0, syscalls.MOUNT_ATTR_RDONLY, 0))
        except OSError:
            return
        self.undo.remember(_make_readonly, self.root_fd)
        self._open.append(self.root_fd)

    def make_readonly(self) -> None:
        """The filesystems that were made here, as far as they are meant so, and such a root again."""
        for tree in self._open:
            _make_readonly(tree)

    def find(self, path: str) -> int | None:
        return syscalls.openat2_if_there(self.root_fd, path, posix.O_PATH, resolve=_BELOW)

    def is_own(self, fd: int) -> bool:
        """Whether `fd` lies on a mount that exists for this container only."""
        return syscalls.mount_of(fd)[0] in self._own

    def is_images(self, fd: int) -> bool:
        """Whether `fd` lies on the root's own mount."""
        return syscalls.mount_of(fd)[0] == self._root_mount

    def own_folder(self, path: str) -> int:
        """A descriptor, kept open, of the folder at `path`, made if it is missing; TargetError in a volume."""
        fd = self._folder(path)
        if fd not in self._own_folders:
            if not self.is_own(fd):
                why = "in a volume of the host, where nothing is made"
                if self.is_images(fd):
                    why = "in a root of the host's, where nothing is made: it needs one of its own, such as an overlay"
                raise TargetError(syscalls.EXDEV, f"{path or '/'} lies {why}")
            self._own_folders.add(fd)
        return fd

    def make(self, call: Callable[..., None], *arguments: object, folder: int) -> None:
        """Make something in the folder that is open at `folder`, by a function with a dir_fd, as posix has them."""
        if not self._as_owners:
            call(*arguments, dir_fd=folder)
            return
        owner = posix.fstat(folder)
        effective, permitted = syscalls.capget()
        syscalls.setfsids(owner.st_uid, owner.st_gid)
        try:
            # The kernel takes the capabilities for files away with user 0; a folder may be closed to its own owner.
            syscalls.capset(effective, permitted)
            call(*arguments, dir_fd=folder)
        finally:
            syscalls.setfsids(posix.geteuid(), posix.getegid())

    def attach(self, tree: int, target: str, *, folder: bool) -> None:
        """Attach a detached tree at `target`, which is made if it is missing, unless the very same file is there."""
        point = None
        if not folder:
            # Most targets are missing: to look for each first would cost one system call more.
            parent_path, _, name = target.rpartition("/")
            try:
                point = self._new_file(name, self.own_folder(parent_path), target)
            except (FileExistsError, TargetError):
                pass
        if point is None:
            found = self.find(target)
            if found is not None and is_same(syscalls.known_of(found), syscalls.known_of(tree)):
                posix.close(found)
                return
            point = self._mount_point(found, target, folder=folder)
        self._move(tree, point)

    def name(self, target: str, path: str, text: str) -> None:
        """By a link; over another driver's file there, which an image may hold, the file is mounted once more."""
        try:
            self.link(path, text)
        except (FileExistsError, TargetError):
            self._attach_again(target, path)

    def cover(self, target: str, path: str) -> None:
        found = self.find(path)
        if found is not None:
            posix.close(found)
            self._attach_again(target, path)

    def _attach_again(self, target: str, path: str) -> None:
        with closing(syscalls.openat2(self.root_fd, target, posix.O_PATH, resolve=_BELOW)) as there:
            tree = syscalls.open_tree(there)
        # What was made here is read-only in the end only.
        _make_readonly(tree)
        self.attach(tree, path, folder=False)

    def link(self, path: str, to: str) -> None:
        """FileExistsError if anything has its name."""
        folder, _, name = path.rpartition("/")
        parent = self.own_folder(folder)
        self.make(posix.symlink, to, name, folder=parent)
        self.undo.remember(posix.unlink, name, dir_fd=parent)

    def make_node(self, path: str, major: int, minor: int, *, mode: int, uid: int, gid: int) -> None:
        """Make the character device `path`, if it is not there; the process's umask must be 0.  It bears the
        container's own label, so that ``container_t`` may open it.  mknod and stat do not wake a GPU, as open would.
        """
        folder, _, name = path.rpartition("/")
        # The mode is mknod's, not chmod's: chmod follows links, and another container of this root could put a link to
        # a file of the host in the node's place.
        try:
            parent = self.own_folder(folder)
            posix.mknod(name, S_IFCHR | mode, posix.makedev(major, minor), dir_fd=parent)
        except (FileExistsError, TargetError):
            # Rare: to look first would cost one system call more for each node.
            if self.has_node(path, major, minor):
                return
            raise
        self.undo.remember(posix.unlink, name, dir_fd=parent)
        if uid or gid:
            posix.chown(name, uid, gid, dir_fd=parent, follow_symlinks=False)

    def has_node(self, path: str, major: int, minor: int, *, covers: bool = False) -> bool:
        """TargetError if something else has its name, but for a file that it `covers`."""
        fd = self.find(path)
        if fd is None:
            return False
        with closing(fd):
            status = syscalls.known_of(fd)
        if covers and is_regular(status):
            return False
        if not is_character_device(status):
            raise TargetError(syscalls.EEXIST, f"{path} is there and is not a character device")
        if status.st_rdev != posix.makedev(major, minor):
            found = f"{posix.major(status.st_rdev)}:{posix.minor(status.st_rdev)}"
            raise TargetError(syscalls.EEXIST, f"{path} is there as {found}, it must be {major}:{minor}")
        return True

    def attach_tmpfs(
        self, target: str, options: tuple[str, ...], folders: tuple[str, ...], files: list[detached.File]
    ) -> str:
        """Gives a sentence if it hides the image's files.  "ro" holds in the end only: things come into it before."""
        found = self.find(target)
        hides = found is not None and (_has_names(found) if self.is_images(found) else not _is_of_ours(found))
        point = self._mount_point(found, target, folder=True)
        tree = detached.new_tmpfs(self._label, folders, files)
        syscalls.mount_setattr(tree, detached.attributes(tuple([option for option in options if option != "ro"])))
        self._move(tree, point)
        self._own.add(syscalls.mount_of(tree)[0])
        # Not what lies below it, which may have been made and be open.
        self._folders[target] = tree
        self._own_folders.add(tree)
        self._new += (f"{target}/",)
        if "ro" in options:
            self._open.append(tree)
        return f"{target}: what the container has there is hidden" if hides else ""

    def rewrite(self, path: str, data: bytes, before: bytes | None) -> None:
        """before: its content, None if there is none.  TargetError in a root that may be another container's too, where
        nothing is made, and if something else has its name.
        """
        if not self._is_layer:
            raise TargetError(syscalls.EXDEV, f"{path} lies in a root that is not a layer of the container's own")
        folder, _, name = path.rpartition("/")
        parent = self.own_folder(folder)
        try:
            with closing(posix.open(name, NAMED, dir_fd=parent)) as fd:
                is_as_read = before is not None and is_regular(syscalls.known_of(fd)) and self.is_own(fd)
        except FileNotFoundError:
            is_as_read = before is None
        if not is_as_read:
            raise TargetError(syscalls.EEXIST, f"{path} is not a file of the image's own")
        self._write(parent, name, data)
        if before is None:
            self.undo.remember(posix.unlink, name, dir_fd=parent)
        else:
            self.undo.remember(self._write, parent, name, before)

    def _write(self, parent: int, name: str, data: bytes) -> None:
        """Write beside it and rename, as ldconfig does: who reads the file has all of the old one or of the new one."""
        beside = f".{name}.oci-gpu-hook"
        try:
            # One that a killed start has left.
            posix.unlink(beside, dir_fd=parent)
        except FileNotFoundError:
            pass
        self.make(lambda dir_fd: replace(name, data, beside, folder=dir_fd, mode=0o644), folder=parent)

    def cover_with(self, target: str, file: str, data: bytes) -> None:
        point = self._mount_point(self.find(target), target, folder=False)
        folder, _, name = file.rpartition("/")
        parent = self.own_folder(folder)
        detached.write(name, data, 0o644, dir_fd=parent)
        tree = syscalls.open_tree(parent, name)
        syscalls.mount_setattr(tree, detached.attributes(("ro", "nosuid", "nodev", "noexec")))
        self._move(tree, point)

    def _move(self, tree: int, point: int) -> None:
        with closing(point):
            syscalls.move_mount(tree, point)
        # By the link in /proc, which leads to this mount and to no other.
        self.undo.remember(syscalls.umount2, f"/proc/self/fd/{tree}", syscalls.MNT_DETACH)

    def _mount_point(self, found: int | None, target: str, *, folder: bool) -> int:
        if found is None:
            if not folder:
                return self._make_at(target, self._new_file)
            return posix.dup(self._folder(target, is_missing=True))
        if self._shows_elsewhere(found):
            raise TargetError(syscalls.EXDEV, f"{target} lies in a volume that shares its mounts with the host")
        if is_folder(syscalls.known_of(found)) != folder:
            raise TargetError(syscalls.EEXIST, f"{target} is there and is {'not a' if folder else 'a'} folder")
        return found

    def _folder(self, path: str, *, is_missing: bool = False) -> int:
        """A descriptor of the folder at `path`, kept open; made with its parents if it is missing."""
        fd = self._folders.get(path)
        if fd is None:
            # To make what is there only fails.
            fd = None if is_missing or path.startswith(self._new) else self._find_folder(path)
            if fd is None:
                fd = self._make_at(path, self._new_folder)
            self._folders[path] = fd
        return fd

    def _find_folder(self, path: str) -> int | None:
        flags = posix.O_PATH | posix.O_DIRECTORY
        try:
            return syscalls.openat2_if_there(self.root_fd, path or "/", flags, resolve=_BELOW)
        except OSError as err:
            if err.errno == syscalls.ENOTDIR:
                raise TargetError(syscalls.EEXIST, f"{path} is there and is not a folder") from err
            raise

    def _shows_elsewhere(self, fd: int) -> bool:
        """Whether what is mounted on `fd`'s mount shows elsewhere too (mount_namespaces(7), "shared")."""
        id = syscalls.mount_of(fd)[0]
        if id in self._own:
            return False
        if id not in self._propagates:
            mount = mountinfo.mount(procfile.pieces("/proc/self/mountinfo"), id)
            self._propagates[id] = mount is None or any([tag.startswith("shared:") for tag in mount.tags])
        return self._propagates[id]

    def _make_at(self, path: str, make: Callable[[str, int, str], int]) -> int:
        """What `make` makes at `path`, or where a link leads that another driver may have left there: a descriptor."""
        for _ in range(_MAX_LINKS):
            parent_path, _, name = path.rpartition("/")
            parent = self.own_folder(parent_path)
            try:
                return make(name, parent, path)
            except FileExistsError:
                path = _behind_link(parent, parent_path, name)
        raise TargetError(syscalls.ELOOP, f"{path}: too many links")

    def _new_folder(self, name: str, parent: int, path: str) -> int:
        try:
            self.make(posix.mkdir, name, 0o755, folder=parent)
        except FileExistsError:
            # What the path leads through may have been made since it was searched: a/b/.. is there with a/b.
            found = self._find_folder(path)
            if found is None:
                raise
            return found
        self.undo.remember(self._remove_folder, name, parent, path)
        fd = self._folders[path] = posix.open(name, posix.O_DIRECTORY | NAMED, dir_fd=parent)
        # It lies on the mount of its parent, which is the container's own.
        self._own_folders.add(fd)
        return fd

    def _new_file(self, name: str, parent: int, path: str) -> int:
        # Not open(2) with O_CREAT: an overlay would open the layer's file too, which takes longer than one call more.
        self.make(posix.mknod, name, S_IFREG | 0o444, folder=parent)
        self.undo.remember(posix.unlink, name, dir_fd=parent)
        return posix.open(name, NAMED, dir_fd=parent)

    def _remove_folder(self, name: str, parent: int, path: str) -> None:
        """Take back a folder that was made here: what needs it later makes it again."""
        posix.rmdir(name, dir_fd=parent)
        gone = self._folders.get(path)
        if gone is not None:
            # By whatever other path it was found.
            self._folders = {other: fd for other, fd in self._folders.items() if fd != gone}
            self._own_folders.discard(gone)
            posix.close(gone)


def _has_names(folder: int) -> bool:
    try:
        with closing(reopened(folder, posix.O_RDONLY | posix.O_DIRECTORY)) as fd, posix.scandir(fd) as names:
            return next(names, None) is not None
    except OSError:
        return False


def _is_of_ours(folder: int) -> bool:
    """Whether it is a filesystem of an earlier hook's, as far as its mode tells."""
    return syscalls.known_of(folder).st_mode & 0o7777 == 0o555


def _make_readonly(tree: int) -> None:
    syscalls.mount_setattr(tree, syscalls.mount_attr(syscalls.MOUNT_ATTR_RDONLY, 0, 0))


def _behind_link(parent: int, parent_path: str, name: str) -> str:
    """Where the link `name` leads; TargetError if it is none, or leads too deep."""
    with closing(posix.open(name, NAMED, dir_fd=parent)) as fd:
        if not is_link(posix.fstat(fd)):
            raise TargetError(syscalls.EEXIST, f"{parent_path}/{name} appeared while it was being made")
        text = posix.readlink("", dir_fd=fd).rstrip("/") or "/"
    found = text if text.startswith("/") else f"{parent_path}/{text}"
    if found.count("/") > _DEEPEST:
        raise TargetError(syscalls.ENAMETOOLONG, f"{parent_path}/{name} leads too deep")
    return found
