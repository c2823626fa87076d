# SPDX-License-Identifier: Apache-2.0
"""Do something in a child process under a time limit: what may hang in the kernel, as a GPU or a server's volume does.

`ask` has a copy of this process, whose answer is JSON; `python` a new interpreter, for libraries of the driver, which
may take seconds and crash; `program` another program.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from oci_gpu_hook import errors
from oci_gpu_hook.kernel.descriptors import write

_STEP = b"\n"
_LARGEST_ANSWER, _LARGEST_OUTPUT = 4 << 20, 1 << 20
# To end in, once a child is killed or has closed its pipe.
_END_SECONDS = 1


class Ended(Exception):
    """The child has ended before its answer: somebody has killed it, as the container's user or its limit of memory."""


class PythonOutput(NamedTuple):
    """status: the exit status, or minus the signal's number; None if it was killed at the end of its time."""

    output: bytes
    status: int | None


def ask(work: Callable[[Callable[[], None]], Any], seconds: Sequence[float]) -> Any:
    """work: gets a function to call at the end of each step but the last; seconds: how long each step may take.
    TimeoutError if one takes longer; HookError as `work`; `Ended` without an answer; RuntimeError if `work` fails.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _answer(work, writer)
    os.close(writer)
    try:
        document = json.loads(_said(reader, seconds))
    except ValueError as err:
        raise Ended from err
    finally:
        os.close(reader)
        os.kill(child, signal.SIGKILL)
        until = time.monotonic() + _END_SECONDS
        while not os.waitpid(child, os.WNOHANG)[0] and time.monotonic() < until:
            time.sleep(0.01)
    if "refused" in document:
        name, message, hint = document["refused"]
        raise getattr(errors, name)(message, hint)
    if "failed" in document:
        raise RuntimeError(document["failed"])
    return document["found"]


def _answer(work: Callable[[Callable[[], None]], Any], writer: int) -> None:
    try:
        document = {"found": work(lambda: write(writer, _STEP))}
    except errors.HookError as err:
        document = {"refused": [type(err).__name__, err.message, err.hint]}
    except BaseException as err:
        document = {"failed": f"{type(err).__name__}: {err}"}
    try:
        write(writer, json.dumps(document).encode())
    finally:
        # Nothing of the parent's is flushed or closed twice.
        os._exit(0)


def _said(fd: int, seconds: Sequence[float]) -> bytes:
    """What the child has said after its last step; JSON in one line has no newline of its own."""
    said, limits = b"", list(seconds)
    until = time.monotonic() + limits.pop(0)
    while len(said) <= _LARGEST_ANSWER and (piece := _next(fd, until)):
        said += piece
        while said.startswith(_STEP):
            said = said[len(_STEP) :]
            until = time.monotonic() + limits.pop(0)
    return said


def _next(fd: int, until: float) -> bytes:
    """What comes next from a pipe, nothing at its end; TimeoutError if nothing has come by then."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
        raise TimeoutError
    return os.read(fd, 1 << 16)


def python(
    program: str, seconds: float, preload: str = "", environments: Sequence[dict[str, str]] = ({},)
) -> list[PythonOutput]:
    """Run Python source that finds this package, at the same time in a process for each environment.  preload: a
    library, "" for none.  A later dlopen finds it by its SONAME, and needs no link of that name: Debian's lies in
    another folder, and one below a driver root may lead out of that.  environments: all variables that each has, beside
    PATH.  OSError if no process can be started.
    """
    until = time.monotonic() + seconds
    words = [sys.executable, "-I", "-c", f"import sys; sys.path[:] = {sys.path!r}\n{program}"]
    loaded = {"LD_PRELOAD": preload} if preload else {}
    children: list[subprocess.Popen[bytes]] = []
    try:
        for environment in environments:
            variables, out, err = {"PATH": os.defpath, **environment, **loaded}, subprocess.PIPE, subprocess.DEVNULL
            children.append(subprocess.Popen(words, bufsize=0, stdout=out, stderr=err, env=variables))
        # While one is read the others go on: their pipes hold what they say.
        return [_outcome(child, until) for child in children]
    finally:
        for child in children:
            end(child)


def _outcome(child: subprocess.Popen[bytes], until: float) -> PythonOutput:
    """What it says until it ends; what was said in time is read after the end of the time too."""
    assert child.stdout
    output = b""
    with suppress(TimeoutError, subprocess.TimeoutExpired):
        while piece := _next(child.stdout.fileno(), until):
            output += piece
            if len(output) > _LARGEST_OUTPUT:
                return PythonOutput(output, None)
        return PythonOutput(output, child.wait(_END_SECONDS))
    return PythonOutput(output, None)


def program(
    words: Sequence[str], seconds: float | None = None, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run another program, without input; OSError if it cannot be started, TimeoutError if it does not end in time.
    Not subprocess.run: that waits for ever for one that hangs in the kernel.
    """
    none, pipe = subprocess.DEVNULL, subprocess.PIPE
    child = subprocess.Popen(words, stdin=none, stdout=pipe, stderr=pipe, env=environment, text=True, errors="replace")
    try:
        out, err = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"it did not end within {seconds:g} seconds") from None
    finally:
        end(child)
    return subprocess.CompletedProcess(words, child.returncode, out, err)


def end(child: subprocess.Popen[Any]) -> None:
    """Kill a child, if it has not ended, and close its pipes.  One that hangs in the kernel is left to init."""
    child.kill()
    with suppress(subprocess.TimeoutExpired):
        child.wait(_END_SECONDS)
    for pipe in (child.stdout, child.stderr):
        if pipe:
            pipe.close()
