# SPDX-License-Identifier: Apache-2.0
"""Do something in a child process under a time limit: what may hang in the kernel, as a GPU or a server's volume does.

The child is a copy of this process, and its answer is JSON.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from typing import TYPE_CHECKING

from oci_gpu_hook import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

_STEP = b"\n"
_LARGEST_ANSWER = 4 << 20
_MOMENTS = 20


class Ended(Exception):
    """The child has ended before its answer: somebody has killed it, as the container's user or its limit of memory."""


def ask(work: Callable[[Callable[[], None]], Any], seconds: Sequence[float]) -> Any:
    """What `work` gives, run in a child.

    work: gets a function to call at the end of each step but the last; seconds: how long each step may take.
    TimeoutError if one takes longer; HookError as `work`; `Ended` without an answer; RuntimeError if `work` fails.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _answer(work, writer)
    os.close(writer)
    try:
        said = _said(reader, seconds)
    finally:
        os.close(reader)
        end(child)
    try:
        document = json.loads(said)
    except ValueError as err:
        raise Ended from err
    if "refused" in document:
        name, message, hint = document["refused"]
        raise getattr(errors, name)(message, hint)
    if "failed" in document:
        raise RuntimeError(document["failed"])
    return document["found"]


def _answer(work: Callable[[Callable[[], None]], Any], writer: int) -> None:
    """In the child: say what `work` gives, and end."""
    try:
        document = {"found": work(lambda: _write(writer, _STEP))}
    except errors.HookError as err:
        document = {"refused": [type(err).__name__, err.message, err.hint]}
    except BaseException as err:
        document = {"failed": f"{type(err).__name__}: {err}"}
    try:
        _write(writer, json.dumps(document).encode())
    finally:
        # Nothing of the parent's is flushed or closed twice.
        os._exit(0)


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _said(fd: int, seconds: Sequence[float]) -> bytes:
    """What the child has said after its last step; JSON in one line has no newline of its own."""
    said, limits = b"", list(seconds)
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    until = time.monotonic() + limits.pop(0)
    while len(said) <= _LARGEST_ANSWER:
        if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
            raise TimeoutError
        piece = os.read(fd, 1 << 16)
        if not piece:
            break
        said += piece
        while said.startswith(_STEP):
            said = said[len(_STEP) :]
            until = time.monotonic() + limits.pop(0)
    return said


def end(child: int) -> None:
    """Kill a child.  One that hangs in the kernel cannot be waited for: it is left to init."""
    os.kill(child, signal.SIGKILL)
    status(child)


def status(child: int) -> int | None:
    """The exit status of a child that ends now, or minus the signal's number; None if it goes on."""
    for _ in range(_MOMENTS):
        pid, found = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(found)
        time.sleep(0.05)
    return None
