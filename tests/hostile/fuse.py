# SPDX-License-Identifier: Apache-2.0
"""A FUSE filesystem that never answers a process that opens its file: a server that hangs, or that means to.

It speaks to /dev/fuse itself (linux/fuse.h, protocol 7), in a thread, and knows the hook by its command line.  Must
not: use anything of the hook's.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
import time
from pathlib import Path

from tests.hostile import linux

_INIT, _LOOKUP, _GETATTR, _FORGET, _BATCH_FORGET, _OPEN, _READ, _OPENDIR = (26, 1, 3, 2, 42, 14, 15, 27)
_ENOENT, _ENOSYS = 2, 38
_IN = struct.Struct("IIQQIIIHH")
_OUT = struct.Struct("IiQ")
_FILE, _FOLDER = 0o100644, 0o40755
_ROOT, _INSIDE = 1, 2  # nodes
_SIZE = 4096
# What never comes back: an open or a read of anybody's, or any word of the hook's.
OPENING, ASKED = "opening", "asked"


class Fuse:
    """A filesystem of one file, mounted on a file, or of a folder with one file, mounted on a folder.

    hangs: one of the words above; name: of the file in the folder.
    """

    def __init__(self, target: Path, hangs: str, name: str = "") -> None:
        self._hangs = hangs
        self._name = name
        self._modes = {_ROOT: _FOLDER if name else _FILE, _INSIDE: _FILE}
        self._fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        libc = ctypes.CDLL(None, use_errno=True)
        options = f"fd={self._fd},rootmode={self._modes[_ROOT]:o},user_id=0,group_id=0,allow_other"
        words = (b"hung", os.fsencode(target), b"fuse", 0, options.encode())
        linux.check(libc.mount(*words), f"mount on {target}")
        threading.Thread(target=self._serve, daemon=True).start()

    def end(self) -> None:
        """A process that waits for it gets an error."""
        os.close(self._fd)

    def _serve(self) -> None:
        while True:
            try:
                request = os.read(self._fd, 1 << 20)
            except OSError:
                return
            _, code, unique, node, _, _, pid, _, _ = _IN.unpack_from(request)
            if code in (_FORGET, _BATCH_FORGET) or self._is_hung(code, pid):
                continue
            answer, error = self._answer(code, node, request[_IN.size :])
            head = _OUT.pack(_OUT.size + len(answer), -error, unique)
            try:
                os.write(self._fd, head + answer)
            except OSError:
                # The process that asked has been killed.
                continue

    def _is_hung(self, code: int, pid: int) -> bool:
        if self._hangs == OPENING or code == _INIT:
            return code in (_OPEN, _READ, _OPENDIR)
        try:
            return b"linked.run()" in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False

    def _answer(self, code: int, node: int, rest: bytes) -> tuple[bytes, int]:
        # For no time: the kernel asks again at each look.
        if code == _INIT:
            return struct.pack("IIIIHHII9I", 7, 31, 1 << 16, 0, 16, 12, 1 << 16, 1, *[0] * 9), 0
        if code == _GETATTR:
            return struct.pack("QII", 0, 0, 0) + self._attributes(node), 0
        if code == _LOOKUP:
            if rest.rstrip(b"\0").decode() != self._name:
                return b"", _ENOENT
            return struct.pack("QQQQII", _INSIDE, 0, 0, 0, 0, 0) + self._attributes(_INSIDE), 0
        return b"", _ENOSYS

    def _attributes(self, node: int) -> bytes:
        times = [int(time.time())] * 3
        numbers = (0, 0, 0, self._modes[node], 1, 0, 0, 0, 4096, 0)
        return struct.pack("QQQQQQIIIIIIIIII", node, _SIZE, 8, *times, *numbers)
