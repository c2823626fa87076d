# SPDX-License-Identifier: Apache-2.0
"""What somebody who has taken over the hook, or the runtime, tries in its place: in its domain, with its powers.

`tree` makes a copy of our package that runs this where the hook and the runtime would begin.  What is tried stands in
the environment, as words KIND:PATH; each is told as WORD=ok, or WORD= and the error's name.
Must not be imported: it ends the process.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Callable

_RELABELLED = b"system_u:object_r:container_file_t:s0\0"


def _relabel(path: str) -> None:
    os.setxattr(path, "security.selinux", _RELABELLED)


def _start(path: str) -> None:
    child = os.fork()
    if not child:
        try:
            os.execv(path, [path])
        except OSError as error:
            os._exit(error.errno or 0)
    if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise OSError(code, path)


def _node(path: str) -> None:
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))


_KINDS: dict[str, Callable[[str], object]] = {
    "read": lambda path: os.open(path, os.O_RDONLY),
    "write": lambda path: os.open(path, os.O_WRONLY),
    "make": lambda path: os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644),
    "rename": lambda path: os.rename(path, f"{path}.aside"),
    "relabel": _relabel,
    "start": _start,
    "node": _node,
    "network": lambda family: socket.socket(getattr(socket, family)),
}

for word in os.environ["E2E_ATTEMPTS"].split():
    kind, _, what = word.partition(":")
    try:
        _KINDS[kind](what)
    except OSError as error:
        print(f"{word}={errno.errorcode.get(error.errno or 0, error.errno)}", flush=True)
    else:
        print(f"{word}=ok", flush=True)
os._exit(7)
