# SPDX-License-Identifier: Apache-2.0
"""Python in a process of its own, under a time limit: for libraries of the driver.

They open every GPU, which takes seconds without persistence mode, and never ends where a GPU hangs in the kernel; and
they may crash.  For commands that prepare or look.  Must not be used by the hook.
"""

from __future__ import annotations

import os
import select
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from oci_gpu_hook.node.machine import apart

if TYPE_CHECKING:
    from collections.abc import Sequence

_LARGEST_ANSWER = 1 << 20


class Said(NamedTuple):
    """What the child wrote to standard output, and how it came to an end.

    status: the exit status, or minus the signal's number; None if it was killed at the end of its time.
    """

    output: bytes
    status: int | None


def ask(program: str, seconds: float, preload: str = "", environment: dict[str, str] | None = None) -> Said:
    """Run the Python source `program`, which finds this package; OSError if no process can be started.

    preload: a library, "" for none.  A later dlopen finds it in memory by its SONAME, and needs no link of that name:
    Debian's link lies in another folder, and a link below a driver root may lead out of that root.
    environment: all variables that the child has, beside PATH.
    """
    [said] = ask_all(program, seconds, preload, [environment or {}])
    return said


def ask_all(program: str, seconds: float, preload: str, environments: Sequence[dict[str, str]]) -> list[Said]:
    """Run it at the same time in a process for each environment; gives what each has said."""
    deadline = time.monotonic() + seconds
    children: list[tuple[int, int]] = []
    said: list[Said] = []
    try:
        for environment in environments:
            children.append(_start(program, preload, environment))
        # While one is read the others go on: their pipes hold what they say.
        for child, read_end in children:
            output, ended = _read(read_end, deadline)
            status = apart.status(child) if ended else None
            if status is None:
                apart.end(child)
            said.append(Said(output, status))
    finally:
        for child, _ in children[len(said) :]:
            apart.end(child)
        for _, read_end in children:
            os.close(read_end)
    return said


def _start(program: str, preload: str, environment: dict[str, str]) -> tuple[int, int]:
    """A child, and the end of its pipe to read from."""
    arguments = [sys.executable, "-I", "-c", f"import sys; sys.path[:] = {sys.path!r}\n{program}"]
    variables = {"PATH": os.defpath, **environment}
    if preload:
        variables["LD_PRELOAD"] = preload
    read_end, write_end = os.pipe()
    silent = (os.POSIX_SPAWN_OPEN, 2, "/dev/null", os.O_WRONLY, 0)
    to_us = (os.POSIX_SPAWN_DUP2, write_end, 1)
    try:
        child = os.posix_spawn(sys.executable, arguments, variables, file_actions=[to_us, silent])
    except OSError:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
    return child, read_end


def _read(fd: int, deadline: float) -> tuple[bytes, bool]:
    """All bytes until the other end closes or the deadline comes, and whether it has closed."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    output = b""
    while len(output) <= _LARGEST_ANSWER:
        # What has been said in time is read after the deadline too.
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            return output, False
        piece = os.read(fd, 1 << 16)
        if not piece:
            return output, True
        output += piece
    return output, False
