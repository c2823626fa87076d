# SPDX-License-Identifier: Apache-2.0
"""The three mount calls that Python 3.9 lacks, and two questions about the machine."""

from __future__ import annotations

import ctypes
import os
import re

CLONE_NEWNS = 0x20000
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_BIND = 4096
MS_MOVE = 8192
MS_REC = 16384
MS_PRIVATE = 1 << 18
MS_SHARED = 1 << 20
MNT_DETACH = 2

CAP_SYS_RESOURCE = 24

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    result = _libc.mount(os.fsencode(source), os.fsencode(target), kind.encode(), flags, os.fsencode(options))
    _check(result, f"mount {kind or source} on {target}")


def unmount(target: str) -> None:
    """With everything mounted below it."""
    _check(_libc.umount2(os.fsencode(target), MNT_DETACH), f"unmount {target}")


def _unescape(field: str) -> str:
    return re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), field)


def mounts() -> list[tuple[str, str]]:
    """Mount point and file system type, in the order of mounting."""
    found = []
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            before, after = line.split(" - ", 1)
            found.append((_unescape(before.split()[4]), after.split()[0]))
    return found


def has_capability(number: int) -> bool:
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> number & 1)
    return False
