# SPDX-License-Identifier: Apache-2.0
"""What attacks and the look-out for them ask of the kernel and Python 3.9 lacks.

Must not: use anything of the hook's; what looks for its mistakes must not share them.
"""

from __future__ import annotations

import ctypes
import os
import struct

CLONE_NEWNS = 0x20000
CLONE_NEWIPC = 0x08000000
RENAME_EXCHANGE = 2
AT_FDCWD = -100
PR_SET_CHILD_SUBREAPER = 36
IN_OPEN = 0x20
SYS_BPF = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
BPF_PROG_QUERY = 16
BPF_CGROUP_DEVICE = 6

_libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def setns(path: str, kind: int = CLONE_NEWNS) -> None:
    with open(path) as file:
        check(_libc.setns(file.fileno(), kind), f"setns {path}")


def exchange(one: str, other: str) -> None:
    first, second = os.fsencode(one), os.fsencode(other)
    check(_libc.renameat2(AT_FDCWD, first, AT_FDCWD, second, RENAME_EXCHANGE), f"exchange {one}")


def adopt_orphans() -> None:
    check(_libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")


class Watch:
    """Tells whether files were opened; O_PATH opens none, as inotify sees it."""

    def __init__(self) -> None:
        self._fd = check(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "inotify_init1")
        self._paths: dict[int, str] = {}

    def add(self, path: str) -> None:
        wd = check(_libc.inotify_add_watch(self._fd, os.fsencode(path), IN_OPEN), path)
        self._paths[wd] = path

    def opened(self) -> list[str]:
        found = set()
        try:
            data = os.read(self._fd, 1 << 16)
        except BlockingIOError:
            data = b""
        while data:
            wd, mask, _, length = struct.unpack_from("iIII", data)
            # Beside it the kernel tells of the end of a watch.
            if mask & IN_OPEN:
                found.add(self._paths[wd])
            data = data[16 + length :]
        os.close(self._fd)
        return sorted(found)


def device_programs(cgroup: str) -> tuple[int, ...]:
    ids = (ctypes.c_uint32 * 64)()
    fd = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # union bpf_attr, "query": target_fd, attach_type, query_flags, attach_flags, prog_ids, prog_cnt.
        words = struct.pack("IIIIQI", fd, BPF_CGROUP_DEVICE, 0, 0, ctypes.addressof(ids), len(ids))
        attr = ctypes.create_string_buffer(words.ljust(128, b"\0"), 128)
        check(_libc.syscall(SYS_BPF, BPF_PROG_QUERY, attr, 128), f"bpf {cgroup}")
        (count,) = struct.unpack_from("I", attr, 24)
    finally:
        os.close(fd)
    return tuple(ids[:count])
