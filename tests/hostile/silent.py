# SPDX-License-Identifier: Apache-2.0
"""A FUSE filesystem that answers until it gets SIGUSR1, and then never again: a hung server's volume, or a user's trap.

silent.py FOLDER [OPTION...]: mounts it, prints a line, and serves; without rights in a user namespace of one's own.

Every name is there, or that of `only=NAME` alone: one that begins with "d" is a folder, any other a file of a megabyte.
With `hangs=opening` it never answers whoever opens or reads, with `hangs=asked` whatever the hook asks, which it knows
by its command line.  What asks then waits in the kernel, and no signal ends that, until this process has ended.
Imports nothing of the repository: a user may not see that.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys
from contextlib import suppress

# linux/fuse.h, protocol 7.31.
_HEADER = struct.Struct("<IIQQIIII")
_ANSWER = struct.Struct("<IiQ")
_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _STATFS = 1, 2, 3, 14, 15, 17
_INIT, _OPENDIR, _READDIR, _INTERRUPT, _BATCH_FORGET = 26, 27, 28, 36, 42
_RELEASE, _FLUSH, _RELEASEDIR, _READDIRPLUS = 18, 25, 29, 44
_UNANSWERED = (_FORGET, _INTERRUPT, _BATCH_FORGET)
_EMPTY = (_RELEASE, _FLUSH, _RELEASEDIR, _READDIR, _READDIRPLUS)
_ROOT = 1
_ENOENT, _ENOSYS = 2, 38
_SIZE = 1 << 20
_MS_NOSUID_NODEV = 6


class Filesystem:
    def __init__(self, only: str) -> None:
        self._only = only.encode()
        self._names = {_ROOT: b"d"}
        self._numbers: dict[tuple[int, bytes], int] = {}

    def answer(self, kind: int, node: int, body: bytes) -> bytes | int:
        if kind == _INIT:
            return struct.pack("<4I2H2I2HI28x", 7, 31, 1 << 16, 0, 12, 9, 1 << 16, 1, 0, 0, 0)
        if kind == _LOOKUP:
            name = body.split(b"\0")[0]
            if self._only not in (b"", name):
                return _ENOENT
            number = self._numbers.setdefault((node, name), len(self._numbers) + 2)
            self._names[number] = name
            # Valid for no time: each look asks again.
            return struct.pack("<4Q2I", number, 0, 0, 0, 0, 0) + self._status(number)
        if kind == _GETATTR:
            return struct.pack("<Q2I", 0, 0, 0) + self._status(node)
        if kind in (_OPEN, _OPENDIR):
            return struct.pack("<Q2I", 1, 0, 0)
        if kind == _READ:
            return b"A" * 4096
        if kind == _STATFS:
            return struct.pack("<5Q4I24x", 1, 1, 1, 1, 1, 4096, 255, 4096, 0)
        return b"" if kind in _EMPTY else _ENOSYS

    def _status(self, number: int) -> bytes:
        mode = 0o40755 if self._names.get(number, b"")[:1] == b"d" else 0o100644
        return struct.pack("<6Q10I", number, _SIZE, 8, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def mount(folder: str, options: list[str]) -> int:
    fd = os.open("/dev/fuse", os.O_RDWR)
    words = [f"fd={fd}", "rootmode=40000", f"user_id={os.geteuid()}", f"group_id={os.getegid()}"]
    data = ",".join([*words, *options]).encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"fuse", os.fsencode(folder), b"fuse", _MS_NOSUID_NODEV, data):
        raise OSError(ctypes.get_errno(), "mount")
    return fd


def is_hung(hangs: str, kind: int, pid: int) -> bool:
    if hangs != "asked":
        return hangs == "opening" and kind in (_OPEN, _READ, _OPENDIR)
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"linked.run()" in file.read()
    except OSError:
        return False


def serve(fd: int, hangs: str, only: str) -> None:
    found = Filesystem(only)
    silent: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: silent.append(number))
    while True:
        try:
            request = os.read(fd, 1 << 18)
        except OSError:
            return
        length, kind, unique, node, _, _, pid, _ = _HEADER.unpack_from(request)
        if kind != _INIT and (silent or is_hung(hangs, kind, pid)):
            continue
        said = found.answer(kind, node, request[_HEADER.size : length])
        if kind not in _UNANSWERED:
            data, error = (b"", -said) if isinstance(said, int) else (said, 0)
            # Whoever asked may have been killed.
            with suppress(FileNotFoundError):
                os.write(fd, _ANSWER.pack(_ANSWER.size + len(data), error, unique) + data)


if __name__ == "__main__":
    given = [word.partition("=") for word in sys.argv[2:]]
    own = {key: value for key, sign, value in given if sign}
    served = mount(sys.argv[1], [key for key, sign, _ in given if not sign])
    print("ready", flush=True)
    serve(served, own.get("hangs", ""), own.get("only", ""))
