# SPDX-License-Identifier: Apache-2.0
"""How a container is laid out: its loader, its library folders, its /dev, its user namespace.  Reads only.

The image is not trusted: a file of it that is there chooses between folders that we know, and nothing else.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.container.process import Process
from oci_gpu_hook.formats.ldcache import MULTIARCH, MULTIARCH_32
from oci_gpu_hook.kernel import syscalls
from oci_gpu_hook.kernel.descriptors import closing
from oci_gpu_hook.kernel.filetypes import is_link
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.container.compat import Compat

_SAME_MOUNT = syscalls.RESOLVE_BELOW | syscalls.RESOLVE_NO_XDEV
# No image has more names in one folder.
_MAX_NAMES = 4096

# CUDA's images hold newer driver libraries there, for hosts with an older driver; those for a Jetson Orin lie apart.
COMPAT_FOLDER, COMPAT_ORIN_FOLDER = "/usr/local/cuda/compat", "/usr/local/cuda/compat_orin"
# Where X servers are built to look for modules: Fedora's, and Debian's and Arch's.
_XORG_FOLDERS = ("/usr/lib64/xorg/modules", "/usr/lib/xorg/modules")
# Of a driver in the image's own library folder one of these is there.
_DRIVERS = ("libnvidia-ml.so.1", "libcuda.so.1")
GLIBC, MUSL = "glibc", "musl"


class Layout(NamedTuple):
    """library_folder: where its loader searches by itself; library_folder_32: for 32-bit programs; compat: the image's
    own CUDA libraries, if they were asked for; loader: `GLIBC`, `MUSL`, or "" for one that is not known;
    user_namespace: whether mknod is refused, or makes nodes that no process can open; dev_is_hosts: whether a node made
    in its /dev would be the host's; makes_nodes: see `Rootfs`; xorg_folder: of the modules of the image's X server;
    has_driver: whether a driver's libraries, or what an earlier start has left of them, are in the image's library
    folder; caches: whether a cache is made for it; local_is_volume: whether /usr/local is another mount than the root.
    """

    library_folder: str
    library_folder_32: str
    compat: Compat | None
    loader: str
    user_namespace: bool
    dev_is_hosts: bool
    makes_nodes: bool = True
    xorg_folder: str = ""
    has_driver: bool = False
    caches: bool = True
    local_is_volume: bool = False

    def finds_by_cache(self) -> bool:
        """Whether the loader finds a library wherever it lies: musl's reads no cache."""
        return self.caches and self.loader != MUSL


def layout_of(root_fd: int, process: Process | None, *, user_namespace: bool, compat: str, draws: bool) -> Layout:
    """process: None while there is none, and then `user_namespace` is config.json's; compat: the folder of the image's
    own CUDA libraries, "" if they are not wanted; draws: whether it may have an X server.
    """
    folder, loader = library_folder(root_fd)
    found = None
    # Most images have nothing there, and load nothing for it.
    if compat and loader != MUSL and (inside := names(root_fd, compat)):
        from oci_gpu_hook.container.compat import compat_of

        found = compat_of(root_fd, compat, inside)
    return Layout(
        library_folder=folder,
        library_folder_32=library_folder_32(root_fd, folder, loader),
        compat=found,
        loader=loader,
        user_namespace=process.in_user_namespace() if process else user_namespace,
        dev_is_hosts=process is not None and _dev_is_hosts(root_fd),
        # In this order: most images have it on their own mount.
        local_is_volume=not _exists(root_fd, "/usr/local", _SAME_MOUNT) and _exists(root_fd, "/usr/local"),
        has_driver=any([_exists(root_fd, f"{folder}/{name}") for name in _DRIVERS]),
        xorg_folder=next((it for it in _XORG_FOLDERS if draws and _exists(root_fd, it)), ""),
    )


def library_folder(root_fd: int) -> tuple[str, str]:
    """The folder of its own libc, and its loader's kind; without a libc Debian's own mark decides."""
    machine = posix.uname().machine
    multiarch = MULTIARCH.get(machine, "")
    signs = (
        (f"/usr/lib/{multiarch}/libc.so.6", f"/usr/lib/{multiarch}", GLIBC),
        (f"/lib/{multiarch}/libc.so.6", f"/usr/lib/{multiarch}", GLIBC),
        ("/usr/lib64/libc.so.6", "/usr/lib64", GLIBC),
        ("/lib64/libc.so.6", "/usr/lib64", GLIBC),
        (f"/lib/ld-musl-{machine}.so.1", "/usr/lib", MUSL),
        ("/etc/debian_version", f"/usr/lib/{multiarch}", GLIBC),
    )
    for sign, folder, loader in signs:
        if _exists(root_fd, sign):
            return folder, loader
    return "/usr/lib64", ""


def library_folder_32(root_fd: int, folder: str, loader: str) -> str:
    """The 32-bit twin of a library folder on x86_64, where that distribution's loader searches; "" for none."""
    if loader == MUSL or posix.uname().machine != "x86_64":
        return ""
    if folder != "/usr/lib64":
        return f"/usr/lib/{MULTIARCH_32}"
    # Arch's is a link to /usr/lib, which has no 32-bit library then.
    fd = _opened(root_fd, folder, posix.O_PATH | posix.O_NOFOLLOW)
    if fd is None:
        return "/usr/lib"
    with closing(fd):
        return "/usr/lib32" if is_link(posix.fstat(fd)) else "/usr/lib"


def names(root_fd: int, path: str) -> tuple[str, ...]:
    """The names in a folder of the image, sorted; none for a volume's, which may never answer, or for too many."""
    fd = _opened(root_fd, path, posix.O_RDONLY | posix.O_DIRECTORY, _SAME_MOUNT)
    if fd is None:
        return ()
    # Not listdir: an image may have millions of names there.
    with closing(fd), posix.scandir(fd) as entries:
        found = [entry.name for _, entry in zip(range(_MAX_NAMES + 1), entries)]
    return tuple(sorted(found)) if len(found) <= _MAX_NAMES else ()


def _dev_is_hosts(root_fd: int) -> bool:
    fd = _opened(root_fd, "/dev")
    if fd is None:
        return False
    with closing(fd):
        return posix.fstat(fd).st_dev == posix.stat("/dev").st_dev


def _exists(root_fd: int, path: str, resolve: int = syscalls.RESOLVE_BELOW) -> bool:
    fd = _opened(root_fd, path, resolve=resolve)
    if fd is not None:
        posix.close(fd)
    return fd is not None


def _opened(root_fd: int, path: str, flags: int = posix.O_PATH, resolve: int = syscalls.RESOLVE_BELOW) -> int | None:
    try:
        return syscalls.openat2_if_there(root_fd, path, flags, resolve=resolve)
    except OSError:
        return None
