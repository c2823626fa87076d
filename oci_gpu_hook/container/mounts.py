# SPDX-License-Identifier: Apache-2.0
"""Trees attached at targets below the container's root, and the undoing of all that is done there.

From check to use there is only a descriptor: a source is cloned while we are in the host's mount namespace, a target
is resolved below the root's descriptor by the kernel (openat2), and move_mount joins the two.  NVIDIA's toolkit had
nine CVEs from the other way, a path that is checked and then used again by name.

Must not know what is mounted or why, and must not follow the image out of the container's own mounts: a volume of the
host that is mounted into the container is never written to (CVE-2024-0133 made files on the host that way).
"""

from __future__ import annotations

import posix

from oci_gpu_hook import linux, mountinfo
from oci_gpu_hook.container import pieces

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

_BELOW = linux.RESOLVE_IN_ROOT | linux.RESOLVE_NO_MAGICLINKS
_FOLDER_MODE = 0o755
_EMPTY_FILE = 0o100444
_NAMED = posix.O_PATH | posix.O_NOFOLLOW | posix.O_CLOEXEC
_MOST_LINKS = 40

_FILE_TYPE = 0o170000
_IS_FOLDER = 0o040000
_IS_LINK = 0o120000


class TargetError(OSError):
    """A target that cannot be used, in words; `errno` is the nearest one of the kernel's."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(number, message)

    def __str__(self) -> str:
        return str(self.strerror)


def is_folder(fd: int) -> bool:
    """Whether `fd` is open on a directory."""
    return posix.fstat(fd).st_mode & _FILE_TYPE == _IS_FOLDER


def enter_namespace(pid: int) -> int:
    """Enter the mount namespace of a process; gives a descriptor of the one that we leave, for `leave_namespace`."""
    flags = posix.O_RDONLY | posix.O_CLOEXEC
    home = posix.open("/proc/self/ns/mnt", flags)
    try:
        fd = posix.open(f"/proc/{pid}/ns/mnt", flags)
        try:
            linux.setns(fd, linux.CLONE_NEWNS)
        finally:
            posix.close(fd)
    except BaseException:
        posix.close(home)
        raise
    return home


def leave_namespace(home: int) -> None:
    """Go back to the namespace that `enter_namespace` left."""
    linux.setns(home, linux.CLONE_NEWNS)
    posix.close(home)


class Tree:
    """The container's root while it is being changed.

    Every change is remembered, and `undo` takes all of them back in reverse order.  Changes are allowed on the root's
    own mount, on the filesystems that the runtime made for this container, and on what we attached.  `mounted`: where
    the runtime mounted something, in its order, and whether that is the container's own.  A filesystem that we make
    bears `label`; "" is the policy's own choice.
    """

    def __init__(
        self, root_fd: int, mounted: tuple[tuple[str, bool], ...], label: str = ""
    ) -> None:
        self.root_fd = root_fd
        self._label = label
        self._mounted = mounted
        self._allowed = {linux.mount_id(root_fd)}
        self._folders: dict[str, int] = {}
        self._own_folders: dict[str, int] = {}
        self._made: set[str] = set()
        self._undo: list[tuple[Callable[..., object], tuple[object, ...]]] = []

    def mark(self) -> int:
        """This moment, for `undo`."""
        return len(self._undo)

    def undo(self, mark: int = 0) -> None:
        """Take back every change since `mark`; what the kernel refuses to take back goes with the namespace."""
        while len(self._undo) > mark:
            function, arguments = self._undo.pop()
            try:
                function(*arguments)
            except OSError:
                pass

    def remember(self, function: Callable[..., object], *arguments: object) -> None:
        """What `undo` must call for a change made by another room."""
        self._undo.append((function, arguments))

    def find(self, path: str) -> int | None:
        """A descriptor of what is at `path` already, links followed inside the root; None where there is nothing."""
        return linux.openat2_if_there(self.root_fd, path, posix.O_PATH, resolve=_BELOW)

    def _find_folder(self, path: str) -> int | None:
        flags = posix.O_PATH | posix.O_DIRECTORY
        try:
            return linux.openat2_if_there(self.root_fd, path or "/", flags, resolve=_BELOW)
        except OSError as err:
            if err.errno == linux.ENOTDIR:
                raise TargetError(linux.EEXIST, f"{path} is there and is no folder") from err
            raise

    def folder(self, path: str) -> int:
        """A descriptor of the folder at `path`, made with its parents where it is missing.

        Kept open: the caller must not close it.
        """
        fd = self._folders.get(path)
        if fd is None:
            # What we have made is empty.
            if path.rpartition("/")[0] not in self._made:
                fd = self._find_folder(path)
            if fd is None:
                fd = self._make_folder(path)
            self._folders[path] = fd
        return fd

    def own_folder(self, path: str) -> int:
        """As `folder`, and refused where it lies in a volume of the host."""
        fd = self._own_folders.get(path)
        if fd is None:
            fd = self.folder(path)
            if not self._is_own(fd):
                raise TargetError(
                    linux.EXDEV, f"{path} lies in a volume of the host, where nothing is made"
                )
            self._own_folders[path] = fd
        return fd

    def attach(self, tree: int, target: str, *, folder: bool) -> None:
        """Attach a detached tree, a folder or a file, at `target`, making the mount point where it is missing.

        A target that is the very same file already, because the container has it by other means, is left.
        """
        made = None if folder else self._make_missing_file(target)
        fd = self._mount_point(target, folder=folder) if made is None else made
        try:
            if made is None and _same(fd, tree):
                return
            linux.move_mount(tree, fd)
        finally:
            posix.close(fd)
        self._undo.append((_detach, (tree,)))
        if folder:
            self._allowed.add(linux.mount_id(tree))

    def name(self, target: str, name: str) -> None:
        """Another name in its folder for the file at `target`: a link where nothing has that name.

        Over what has it, the same file is mounted once more: an image may hold another driver's library there, or a
        link to one, and what is an image's own stays as it is.
        """
        folder, _, file = target.rpartition("/")
        try:
            parent = self._own_folders.get(folder) or self.own_folder(folder)
            posix.symlink(file, name, dir_fd=parent)
        except (FileExistsError, TargetError):
            self._attach_again(target, f"{folder}/{name}")
            return
        self._undo.append((_remove_file, (name, parent)))

    def _attach_again(self, target: str, path: str) -> None:
        """What is at `target` at `path` too; a link that leads there already is left."""
        there = linux.openat2(self.root_fd, target, posix.O_PATH, resolve=_BELOW)
        try:
            fd = self._mount_point(path, folder=False)
            try:
                if _same(fd, there):
                    return
                flags = linux.OPEN_TREE_CLONE | linux.AT_EMPTY_PATH
                tree = linux.open_tree(there, "", flags)
                linux.move_mount(tree, fd)
            finally:
                posix.close(fd)
        finally:
            posix.close(there)
        self._undo.append((_detach, (tree,)))

    def attach_tmpfs(
        self, target: str, options: tuple[str, ...], fill: Callable[[int], None]
    ) -> None:
        """A new tmpfs at `target`; `fill` gets the descriptor of its root before anyone can see it."""
        tree = pieces.new_tmpfs(fill, self._label)
        linux.mount_setattr(tree, pieces.attributes(options))
        fd = self._mount_point(target, folder=True)
        try:
            linux.move_mount(tree, fd)
        finally:
            posix.close(fd)
        self._undo.append((_detach, (tree,)))
        self._allowed.add(linux.mount_id(tree))

    def attach_file(self, target: str, options: tuple[str, ...], data: bytes, mode: int) -> None:
        """A new file at `target`, mounted over what is there: the image's own file stays as it is."""
        point = self._mount_point(target, folder=False)
        stage = pieces.new_tmpfs(lambda fd: pieces.write_file(fd, "file", data, mode), self._label)
        try:
            tree = self._clone_detached(stage, "file")
            linux.mount_setattr(tree, pieces.attributes(options))
            linux.move_mount(tree, point)
        finally:
            posix.close(stage)
            posix.close(point)
        self._undo.append((_detach, (tree,)))

    def _clone_detached(self, stage: int, name: str) -> int:
        """A clone of a file in a detached tree.

        Before Linux 6.15 only an attached mount can be cloned, so there the tree covers the root for a moment.  Nobody
        looks: the container has not started, and its runtime waits for us.
        """
        try:
            return linux.open_tree(stage, name, linux.OPEN_TREE_CLONE)
        except OSError as err:
            if err.errno != linux.EINVAL:
                raise
        linux.move_mount(stage, self.root_fd)
        try:
            return linux.open_tree(stage, name, linux.OPEN_TREE_CLONE)
        finally:
            _detach(stage)

    def _mount_point(self, target: str, *, folder: bool) -> int:
        """A descriptor to mount on; the caller closes it."""
        fd = self.find(target)
        if fd is None:
            if folder:
                return posix.dup(self.folder(target))
            return self._make_file(target)
        try:
            if not self._is_own(fd) and _propagates(fd):
                raise TargetError(
                    linux.EXDEV, f"{target} lies in a volume that shares its mounts with the host"
                )
            if is_folder(fd) != folder:
                raise TargetError(
                    linux.EEXIST, f"{target} is there and is {'no' if folder else 'a'} folder"
                )
        except OSError:
            posix.close(fd)
            raise
        return fd

    def _is_own(self, fd: int) -> bool:
        """Whether `fd` lies on a mount that exists for this container only."""
        mount = linux.mount_id(fd)
        if mount not in self._allowed and self._mounted:
            self._allowed |= self._own_mounts()
            self._mounted = ()
        return mount in self._allowed

    def _own_mounts(self) -> set[int]:
        """The ids of the filesystems that the runtime made for this container.

        A path says nothing by itself: an image's link may lead a volume of the host to where such a filesystem was
        mounted before.  Of all that lead to one mount the last has made it.
        """
        own: dict[int, bool] = {}
        for path, is_own in self._mounted:
            try:
                fd = self.find(path)
            except OSError:
                continue
            if fd is not None:
                own[linux.mount_id(fd)] = is_own
                posix.close(fd)
        return {mount for mount, is_own in own.items() if is_own}

    def _make_folder(self, path: str) -> int:
        """The folder at `path`, which is not there."""
        for _ in range(_MOST_LINKS):
            parent_path, _, name = path.rpartition("/")
            parent = self.own_folder(parent_path)
            try:
                posix.mkdir(name, _FOLDER_MODE, dir_fd=parent)
            except FileExistsError:
                # In a folder of ours nobody has looked, and it may have got this one by another name.
                fd = self._find_folder(path)
                if fd is not None:
                    return fd
                path = self._behind_link(parent, parent_path, name)
                continue
            self._undo.append((self._remove_folder, (name, parent, path)))
            fd = posix.open(name, posix.O_DIRECTORY | _NAMED, dir_fd=parent)
            # On the mount that its parent lies on, which is the container's own.
            self._own_folders[path] = fd
            self._made.add(path)
            return fd
        raise TargetError(linux.ELOOP, f"{path}: too many links")

    def _remove_folder(self, name: str, parent: int, path: str) -> None:
        """Take back a folder that we have made: whoever wants it again is to make it again."""
        posix.rmdir(name, dir_fd=parent)
        gone = self._own_folders.get(path)
        for known in (self._folders, self._own_folders):
            for known_path in [known_path for known_path, fd in known.items() if fd == gone]:
                del known[known_path]
                self._made.discard(known_path)
        if gone is not None:
            posix.close(gone)

    def _make_file(self, path: str) -> int:
        """An empty file at `path`, where there is nothing, to mount on."""
        for _ in range(_MOST_LINKS):
            parent_path, _, name = path.rpartition("/")
            parent = self.own_folder(parent_path)
            try:
                return self._new_file(name, parent)
            except FileExistsError:
                path = self._behind_link(parent, parent_path, name)
        raise TargetError(linux.ELOOP, f"{path}: too many links")

    def _make_missing_file(self, path: str) -> int | None:
        """An empty file at `path`; None where its name is taken, or where we may not make it.

        Most targets are not there: asking first would be a call more for each.
        """
        parent_path, _, name = path.rpartition("/")
        try:
            return self._new_file(
                name, self._own_folders.get(parent_path) or self.own_folder(parent_path)
            )
        except (FileExistsError, TargetError):
            return None

    def _new_file(self, name: str, parent: int) -> int:
        # Not open(2) with O_CREAT: an overlay would open the layer's file too, which takes longer than one call more.
        posix.mknod(name, _EMPTY_FILE, dir_fd=parent)
        self._undo.append((_remove_file, (name, parent)))
        return posix.open(name, _NAMED, dir_fd=parent)

    def _behind_link(self, parent: int, parent_path: str, name: str) -> str:
        """Where the link `name` leads: an image may hold one whose end is missing, left by another driver."""
        fd = posix.open(name, posix.O_PATH | posix.O_NOFOLLOW | posix.O_CLOEXEC, dir_fd=parent)
        try:
            if posix.fstat(fd).st_mode & _FILE_TYPE != _IS_LINK:
                raise TargetError(
                    linux.EEXIST, f"{parent_path}/{name} appeared while it was being made"
                )
            text = posix.readlink("", dir_fd=fd)
        finally:
            posix.close(fd)
        return text if text.startswith("/") else f"{parent_path}/{text}"


def _detach(tree: int) -> None:
    # umount2 has no form by descriptor; the link in /proc leads to this mount and no other.
    linux.umount2(f"/proc/self/fd/{tree}", linux.MNT_DETACH)


def _remove_file(name: str, parent: int) -> None:
    posix.unlink(name, dir_fd=parent)


def _propagates(fd: int) -> bool:
    """Whether what is mounted on top of `fd`'s mount shows elsewhere too (mount_namespaces(7), "shared")."""
    try:
        return bool(linux.mount_propagation(fd) & linux.MS_SHARED)
    except OSError:
        # Before Linux 6.8 mountinfo tells, which lists all mounts of the host and takes as long as a dozen mounts.
        mount = mountinfo.find("self", linux.mount_id(fd))
    return mount is None or any([tag.startswith("shared:") for tag in mount.tags])


def _same(one: int, other: int) -> bool:
    """Whether two descriptors are open on the same file."""
    first, second = posix.fstat(one), posix.fstat(other)
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)
