# SPDX-License-Identifier: Apache-2.0
"""What the container is like: its root's loader and folders, its namespaces, its /dev.

The root is opened once, from inside the mount namespace of the container's process, and everything is looked up below
that descriptor.  Reads only; nothing of the image is trusted or run: a name that exists in it decides between folders
that we know, and that is all it decides.
"""

from __future__ import annotations

import posix

from oci_gpu_hook import ldso, linux
from oci_gpu_hook.errors import BundleError
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.container.cgroup import DeviceCgroup
    from oci_gpu_hook.systemd import ScopeUnit

_BELOW = linux.RESOLVE_IN_ROOT | linux.RESOLVE_NO_MAGICLINKS

# The initial user namespace's number is part of the kernel's interface (PROC_USER_INIT_INO, include/linux/proc_ns.h).
_INITIAL_USER_NAMESPACE = 0xEFFFFFFD

# An image is not trusted to be of reasonable size.
_MOST_NAMES = 4096

# CUDA's images put newer driver libraries there, for hosts with an older driver.
COMPAT_FOLDER = "/usr/local/cuda/compat"

GLIBC = "glibc"
MUSL = "musl"


class Container(NamedTuple):
    """One container as `plan` needs it.

    library_folder: where its loader searches without being told; library_folder_32: the same for 32-bit programs, ""
    where there is none; loader: ``glibc``, or ``musl``, which reads no ld.so.cache; compat_names: the names in the
    image's folder of CUDA forward compatibility; user_namespace: whether mknod is refused or its nodes are dead;
    dev_is_hosts: its /dev is the host's own filesystem; device_cgroup: where it is, or why none can be changed; scope:
    the systemd unit that it is in, None where systemd does not restrict its devices.
    """

    id: str
    bundle: str
    rootfs: str
    library_folder: str
    library_folder_32: str
    compat_names: tuple[str, ...]
    loader: str
    user_namespace: bool
    dev_is_hosts: bool
    device_cgroup: DeviceCgroup
    scope: ScopeUnit | None = None


def like(container: Container) -> Container:
    """The container without what is its own: equal for all that are laid out alike."""
    nowhere = container.device_cgroup._replace(path="", top="")
    return container._replace(id="", bundle="", rootfs="", device_cgroup=nowhere, scope=None)


def open_root(path: str, pid: int | None) -> int:
    """An O_PATH descriptor of the container's root.

    `path` is seen from the mount namespace of `pid`: before pivot_root, /proc/PID/root leads into that namespace but
    is the host's root in it.  A link on the way is resolved inside it too, not in ours.  Without a pid, `path` is
    the host's.
    """
    flags = posix.O_PATH | posix.O_DIRECTORY
    start = "/" if pid is None else f"/proc/{pid}/root"
    try:
        namespace_root = posix.open(start, flags | posix.O_CLOEXEC)
    except OSError as err:
        raise BundleError(
            f"the container's process {pid} cannot be looked into: {err.strerror}",
            "the container engine or runtime must mend it",
        ) from err
    try:
        return linux.openat2(namespace_root, path, flags, resolve=_BELOW)
    except OSError as err:
        raise BundleError(
            f"the container's root {path} cannot be opened: {err.strerror}",
            "the container engine or runtime must mend it",
        ) from err
    finally:
        posix.close(namespace_root)


def library_folder(root_fd: int) -> tuple[str, str]:
    """The folder that the container's loader searches by itself, and the loader's kind.

    Where libc lies is where its loader looks: Debian's builds know their multiarch folder and not /usr/lib64, the
    others know /usr/lib64.  Without a libc to go by: Debian's own mark, else /usr/lib64 (and the cache will name it).
    """
    machine = posix.uname().machine
    multiarch = ldso.MULTIARCH.get(machine, "")
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
    return "/usr/lib64", GLIBC


def library_folder_32(folder: str, loader: str) -> str:
    """The 32-bit twin of a 64-bit library folder, on x86_64: where Debian's and where the others' loader searches."""
    if loader == MUSL or posix.uname().machine != "x86_64":
        return ""
    return "/usr/lib" if folder == "/usr/lib64" else f"/usr/lib/{ldso.MULTIARCH_32}"


def names(root_fd: int, path: str) -> tuple[str, ...]:
    """The names in a folder of the image, sorted; none where there is no folder, or one that is no image's (4,096)."""
    flags = posix.O_RDONLY | posix.O_DIRECTORY
    try:
        fd = linux.openat2_if_there(root_fd, path, flags, resolve=_BELOW)
    except OSError:
        return ()
    if fd is None:
        return ()
    try:
        found = posix.listdir(fd)
    finally:
        posix.close(fd)
    return tuple(sorted(found)) if len(found) <= _MOST_NAMES else ()


def dev_is_hosts(root_fd: int) -> bool:
    """Whether the container's /dev is the host's own filesystem: making a node there would change the host."""
    try:
        fd = linux.openat2(root_fd, "/dev", posix.O_PATH, resolve=_BELOW)
    except OSError:
        return False
    try:
        return posix.fstat(fd).st_dev == posix.stat("/dev").st_dev
    finally:
        posix.close(fd)


def in_user_namespace(pid: int) -> bool:
    """Whether the process is outside the initial user namespace, where mknod of a device is refused."""
    try:
        return posix.stat(f"/proc/{pid}/ns/user").st_ino != _INITIAL_USER_NAMESPACE
    except OSError as err:
        raise BundleError(
            f"the container's process {pid} cannot be looked into: {err.strerror}",
            "the container engine or runtime must mend it",
        ) from err


def _exists(root_fd: int, path: str) -> bool:
    try:
        fd = linux.openat2_if_there(root_fd, path, posix.O_PATH, resolve=_BELOW)
    except OSError:
        return False
    if fd is not None:
        posix.close(fd)
    return fd is not None
