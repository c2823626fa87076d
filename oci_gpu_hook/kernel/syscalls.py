# SPDX-License-Identifier: Apache-2.0
"""System calls that Python lacks: their constants and structs, and one thin wrapper for each purpose.

The only file that imports ctypes.  A wrapper takes and returns file descriptors, raises `SyscallError`, and decides
nothing.  Numbers and layouts are from the kernel's uapi headers of x86_64 and aarch64; a test compares them with those
of the C compiler.  The oldest kernel is Linux 5.14.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.errors import plain
from oci_gpu_hook.kernel.descriptors import closing
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# --- asm-generic/errno.h; importing Python's module errno takes as long as twenty system calls
EPERM = 1
ENOENT = 2
EINTR = 4
E2BIG = 7
EAGAIN = 11
EACCES = 13
EBUSY = 16
EEXIST = 17
EXDEV = 18
ENOTDIR = 20
EINVAL = 22
EFBIG = 27
ENAMETOOLONG = 36
ELOOP = 40
EILSEQ = 84

# --- openat2(2), Linux 5.6; linux/openat2.h
RESOLVE_NO_XDEV = 0x01
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_IN_ROOT = 0x10
# Links of a root are followed inside it, and none of procfs's.
RESOLVE_BELOW = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS

# --- fcntl.h
AT_FDCWD, AT_EMPTY_PATH, AT_STATX_DONT_SYNC, AT_RECURSIVE = -100, 0x1000, 0x4000, 0x8000

# --- open_tree(2), move_mount(2): Linux 5.2; mount_setattr(2): Linux 5.12; linux/mount.h
OPEN_TREE_CLONE = 1
MOVE_MOUNT_F_EMPTY_PATH, MOVE_MOUNT_T_EMPTY_PATH = 0x04, 0x40
MOUNT_ATTR_RDONLY = 0x01
MOUNT_ATTR_NOSUID = 0x02
MOUNT_ATTR_NODEV = 0x04
MOUNT_ATTR_NOEXEC = 0x08
MS_PRIVATE, MS_SLAVE = 1 << 18, 1 << 19

# --- fsopen(2), fsconfig(2), fsmount(2): Linux 5.2; linux/mount.h
FSOPEN_CLOEXEC, FSMOUNT_CLOEXEC = 1, 1
FSCONFIG_SET_STRING, FSCONFIG_CMD_CREATE = 1, 6

# --- umount2(2)
MNT_DETACH = 2

# --- statx(2); linux/stat.h
STATX_TYPE, STATX_INO, STATX_MNT_ID, STATX_ATTR_MOUNT_ROOT = 0x1, 0x100, 0x1000, 0x2000

# --- setns(2), and ioctl(2) on a namespace (ioctl_ns(2)): Linux 4.11; linux/sched.h, linux/nsfs.h
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
NS_GET_OWNER_UID = 0xB704

# --- prctl(2), capget(2), capset(2); linux/prctl.h, linux/capability.h
PR_SET_NO_NEW_PRIVS = 38
_LINUX_CAPABILITY_VERSION_3 = 0x20080522

# --- socket(2), setsockopt(2), connect(2), sendto(2); sys/socket.h
AF_UNIX, SOCK_STREAM, SOCK_DGRAM = 1, 1, 2
SOL_SOCKET, SO_RCVTIMEO, SO_SNDTIMEO = 1, 20, 21
MSG_DONTWAIT, MSG_NOSIGNAL = 0x40, 0x4000

# --- statfs(2); linux/magic.h
OVERLAYFS_SUPER_MAGIC = 0x794C7630
TMPFS_MAGIC = 0x01021994
PROC_SUPER_MAGIC = 0x9FA0
SYSFS_MAGIC = 0x62656572
DEBUGFS_MAGIC = 0x64626720
TRACEFS_MAGIC = 0x74726163
CGROUP_SUPER_MAGIC = 0x27E0EB
CGROUP2_SUPER_MAGIC = 0x63677270
SECURITYFS_MAGIC = 0x73636673
SELINUX_MAGIC = 0xF97CFF8C
BPF_FS_MAGIC = 0xCAFE4A11
EFIVARFS_MAGIC = 0xDE5E81E4
PSTOREFS_MAGIC = 0x6165676C
# Filesystems whose files are calls of the kernel: to read or write one may take away, wait or change something.
KERNEL_MAGICS = frozenset(
    (
        *(PROC_SUPER_MAGIC, SYSFS_MAGIC, DEBUGFS_MAGIC, TRACEFS_MAGIC, CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC),
        *(SECURITYFS_MAGIC, SELINUX_MAGIC, BPF_FS_MAGIC, EFIVARFS_MAGIC, PSTOREFS_MAGIC),
    )
)

# asm/unistd.h, of the calls that glibc 2.34 has no function for; from 424 on all architectures have the same numbers.
_NUMBERS = {
    "bpf": {"x86_64": 321, "aarch64": 280}[posix.uname().machine],
    **{"open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "openat2": 437},
    "mount_setattr": 442,
}

_RETRIES = 128
_LONGEST_SUBJECT = 300


class FileStatus(NamedTuple):
    st_mode: int
    st_dev: int
    st_ino: int
    st_rdev: int


class SyscallError(OSError):
    """A system call failed; the text says which call, on which subject, and why."""

    def __init__(self, number: int, syscall: str, subject: str) -> None:
        super().__init__(number, posix.strerror(number))
        self.syscall = syscall
        self.subject = subject

    def __str__(self) -> str:
        return f"{self.syscall} {plain(self.subject, _LONGEST_SUBJECT)}: {self.strerror}"


if TYPE_CHECKING:
    _foreign: Any
    _Function: Any
    _address_of: Callable[[str], int]
else:
    try:
        # The C module that ctypes wraps.  ctypes also imports os, types and struct, and costs five times as much.
        import _ctypes as _foreign

        class _Function(_foreign.CFuncPtr):
            # PYTHONAPI keeps the interpreter's lock during a call.  A start has only one thread, and every call would
            # take longer if it released the lock and took it again.
            _flags_ = _foreign.FUNCFLAG_CDECL | _foreign.FUNCFLAG_USE_ERRNO | _foreign.FUNCFLAG_PYTHONAPI

        _libc = _foreign.dlopen(None, 0)

        def _address_of(name):
            return _foreign.dlsym(_libc, name)

        _address_of("syscall")  # what fails with another Python must fail here
    except (ImportError, AttributeError, TypeError, ValueError, OSError):
        # If a later Python changes the private names, the public ones do the same, only slower.
        import ctypes as _foreign

        _Function = _foreign.CFUNCTYPE(_foreign.c_int, use_errno=True)

        def _address_of(name):
            return _foreign.cast(_foreign.CDLL(None)[name], _foreign.c_void_p).value


_byref, _get_errno = _foreign.byref, _foreign.get_errno

# Functions of libc, without argtypes: to check them would take as long as the call.  An int is passed as a C int, which
# is what all of these calls take and return; bytes as their address; memory that the kernel writes to by reference.
_syscall = _Function(_address_of("syscall"))
_FUNCTIONS: dict[str, Callable[..., int]] = {}
# A start has three kinds of struct open_how, and opens fifty times by them.
_OPEN_HOWS: dict[tuple[int, int], bytes] = {}


def _result(name: str, *arguments: Any) -> int:
    if name in _NUMBERS:
        return int(_syscall(_NUMBERS[name], *arguments))
    if name not in _FUNCTIONS:
        _FUNCTIONS[name] = _Function(_address_of(name))
    return _FUNCTIONS[name](*arguments)


def _call(name: str, subject: str | int, *arguments: Any) -> int:
    result = _result(name, *arguments)
    if result < 0:
        raise SyscallError(_get_errno(), name, f"fd {subject}" if isinstance(subject, int) else subject)
    return result


# Structs are bytes: to define a ctypes class for one would take longer than all the calls that use it.


def words(*values: int) -> bytes:
    return b"".join([value.to_bytes(8, "little") for value in values])


def _encoded(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


def word(struct: bytearray, index: int) -> int:
    return int.from_bytes(struct[8 * index : 8 * index + 8], "little")


def _reference(memory: bytearray) -> Any:
    """Memory of 8 bytes at least, for the kernel to write to."""
    # Any ctypes type can stand for memory, and to define one more takes as long as two mounts.
    return _byref(_Function.from_buffer(memory))


def address_of(memory: bytearray) -> int:
    """The address of memory of 8 bytes at least, for a struct with a pointer.  The caller must keep the memory."""
    return int(_foreign.addressof(_Function.from_buffer(memory)))


def function_of(library: str, name: str) -> Callable[..., int]:
    """For a process of its own; OSError, AttributeError if there is none.  It takes words of 64 bits: of a register or
    a stack slot a function that wants a C int takes the lower half.
    """
    import ctypes

    function = getattr(ctypes.CDLL(library), name)
    return lambda *values: int(function(*[ctypes.c_uint64(value) for value in values]))


def openat2_if_there(dirfd: int, path: str, flags: int, *, resolve: int) -> int | None:
    """openat2(2): a close-on-exec descriptor of `path` below `dirfd`; None for ENOENT: to raise takes as long again."""
    open_how = _OPEN_HOWS.get((flags, resolve))
    if open_how is None:
        open_how = _OPEN_HOWS[flags, resolve] = words(flags | posix.O_CLOEXEC, 0, resolve)
    name, number = _encoded(path), 0
    # With RESOLVE_IN_ROOT it gives EAGAIN if anything is renamed or mounted while it walks a "..": one tries again.
    for _ in range(_RETRIES):
        fd = _result("openat2", dirfd, name, open_how, len(open_how))
        if fd >= 0:
            return fd
        number = _get_errno()
        if number not in (EAGAIN, EINTR):
            break
    if number == ENOENT:
        return None
    raise SyscallError(number, "openat2", path)


def openat2(dirfd: int, path: str, flags: int, *, resolve: int) -> int:
    """The same; an error for ENOENT, too."""
    fd = openat2_if_there(dirfd, path, flags, resolve=resolve)
    if fd is None:
        raise SyscallError(ENOENT, "openat2", path)
    return fd


def open_tree(dirfd: int, path: str = "") -> int:
    """open_tree(2), OPEN_TREE_CLONE: a detached copy of the mount at `path`, "" for what is open at `dirfd`."""
    flags = OPEN_TREE_CLONE | posix.O_CLOEXEC | (0 if path else AT_EMPTY_PATH)
    return _call("open_tree", path or dirfd, dirfd, _encoded(path), flags)


def move_mount(from_fd: int, to_fd: int) -> None:
    """move_mount(2), from descriptor to descriptor: neither end is a path."""
    _call("move_mount", to_fd, from_fd, b"", to_fd, b"", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH)


def mount_attr(attr_set: int, attr_clr: int = 0, propagation: int = MS_PRIVATE) -> bytes:
    """A struct mount_attr: MOUNT_ATTR_* flags to set and to clear, and the propagation; 0 leaves it as it is."""
    return words(attr_set, attr_clr, propagation, 0)


def mount_setattr(fd: int, mount_attr: bytes, *, recursive: bool = False) -> None:
    """mount_setattr(2) on the mount that `fd` is the root of, and on those below it if so."""
    flags = AT_EMPTY_PATH | (AT_RECURSIVE if recursive else 0)
    _call("mount_setattr", fd, fd, b"", flags, mount_attr, len(mount_attr))


def fsmount(fsname: str, options: dict[str, str]) -> int:
    """fsopen(2), fsconfig(2) and fsmount(2): a detached mount of a new filesystem of type `fsname`."""
    with closing(_call("fsopen", fsname, fsname.encode(), FSOPEN_CLOEXEC)) as fd:
        for key, value in options.items():
            _call("fsconfig", f"{key}={value}", fd, FSCONFIG_SET_STRING, key.encode(), value.encode(), 0)
        _call("fsconfig", "create", fd, FSCONFIG_CMD_CREATE, None, None, 0)
        return _call("fsmount", fd, fd, FSMOUNT_CLOEXEC, 0)


def umount2(path: str, flags: int) -> None:
    """umount2(2).  The kernel has no form by descriptor; /proc/self/fd/N names one."""
    _call("umount2", path, _encoded(path), flags)


def setns(fd: int, nstype: int) -> None:
    _call("setns", fd, fd, nstype)


def ns_get_owner_uid(fd: int) -> int:
    """ioctl(2), NS_GET_OWNER_UID: the user who has made the user namespace open at `fd`, as our own numbers users."""
    uid = bytearray(8)
    _call("ioctl", fd, fd, NS_GET_OWNER_UID, _reference(uid))
    return int.from_bytes(uid[:4], "little")


def setfsids(uid: int, gid: int) -> None:
    """setfsgid(2), setfsuid(2): as whom this process makes files.  The kernel does not say whether it was allowed."""
    # They give the number before, which as a C int may be negative.
    _result("setfsgid", gid)
    _result("setfsuid", uid)


def no_new_privs() -> None:
    """prctl(2), PR_SET_NO_NEW_PRIVS: no program that is executed gives more than this process has."""
    _call("prctl", "no_new_privs", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def capget() -> tuple[int, int]:
    """capget(2): the effective and the permitted capabilities of this process, a bit for each."""
    data = bytearray(24)
    _call("capget", "self", _CAPABILITY_HEADER, _reference(data))
    # struct __user_cap_data_struct, twice: the low 32 bits of the three sets, then the high ones.
    numbers = [int.from_bytes(data[at : at + 4], "little") for at in range(0, 24, 4)]
    return numbers[0] | numbers[3] << 32, numbers[1] | numbers[4] << 32


def capset(effective: int, permitted: int) -> None:
    """capset(2), with no inheritable ones."""
    sets = (effective, permitted, 0)
    data = b"".join([(bits >> at & 0xFFFFFFFF).to_bytes(4, "little") for at in (0, 32) for bits in sets])
    _call("capset", "self", _CAPABILITY_HEADER, data)


# struct __user_cap_header_struct: the version, and 0 for this process.
_CAPABILITY_HEADER = _LINUX_CAPABILITY_VERSION_3.to_bytes(4, "little") + bytes(4)


def _sockaddr_un(path: str) -> bytes:
    """struct sockaddr_un (unix(7)): the family, then the path with its NUL."""
    return AF_UNIX.to_bytes(2, "little") + _encoded(path) + b"\0"


def connect(path: str, seconds: int) -> int:
    """socket(2), connect(2): a close-on-exec stream to the Unix socket `path`, with a time limit (EAGAIN)."""
    # If one of the calls fails, the descriptor closes with the process.
    fd = _call("socket", path, AF_UNIX, SOCK_STREAM | posix.O_CLOEXEC, 0)
    timeval, address = words(seconds, 0), _sockaddr_un(path)
    for option in (SO_RCVTIMEO, SO_SNDTIMEO):
        _call("setsockopt", path, fd, SOL_SOCKET, option, timeval, len(timeval))
    _call("connect", path, fd, address, len(address))
    return fd


def mount_of(fd: int) -> tuple[int, bool]:
    """statx(2): the id of the mount that `fd` is open on, and whether `fd` is its root (Linux 5.8).  Asks no server."""
    _call("statx", fd, fd, b"", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_MNT_ID, _STATX_REFERENCE)
    return word(_STATX, 18), bool(word(_STATX, 1) & STATX_ATTR_MOUNT_ROOT)


def known_of(fd: int) -> FileStatus:
    """statx(2), AT_STATX_DONT_SYNC: what of a file never changes, as the kernel knows it already.  fstat(2) asks the
    server of a network filesystem, or of FUSE, which may never answer.
    """
    _call("statx", fd, fd, b"", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE | STATX_INO, _STATX_REFERENCE)
    device, rdev = [posix.makedev(number & 0xFFFFFFFF, number >> 32) for number in (word(_STATX, 17), word(_STATX, 16))]
    return FileStatus(word(_STATX, 3) >> 32 & 0xFFFF, device, word(_STATX, 4), rdev)


# struct statx is 256 bytes; stx_attributes lies at offset 8, stx_mode at 28, stx_ino at 32, stx_rdev_major at 128,
# stx_dev_major at 136, stx_mnt_id at 144 (linux/stat.h).
_STATX = bytearray(256)
_STATX_REFERENCE = _reference(_STATX)


def filesystem_magic(fd: int) -> int:
    """fstatfs(2): the type of the filesystem that `fd` lies on, as in linux/magic.h."""
    # struct statfs is 120 bytes on 64-bit architectures; f_type is its first long.
    statfs = bytearray(120)
    _call("fstatfs", fd, fd, _reference(statfs))
    return word(statfs, 0)


def send_datagram(path: str, data: bytes) -> None:
    """socket(2) and sendto(2): send `data` to the socket at `path`, without waiting for its reader."""
    address = _sockaddr_un(path)
    with closing(_call("socket", path, AF_UNIX, SOCK_DGRAM | posix.O_CLOEXEC, 0)) as fd:
        _call("sendto", path, fd, data, len(data), MSG_DONTWAIT | MSG_NOSIGNAL, address, len(address))


def bpf(command: int, attr: bytes, subject: str) -> tuple[int, bytearray]:
    """bpf(2): `attr` is the union bpf_attr; gives the result, and the union as the kernel left it.  Of a longer union a
    kernel requires that what it does not know is zero; into these 128 bytes a newer one may write more.
    """
    union = bytearray(attr.ljust(128, b"\0"))
    return _call("bpf", subject, command, _reference(union), len(union)), union
