# SPDX-License-Identifier: Apache-2.0
"""A command's time limit: a filesystem or a device that does not answer must not hold up who runs the command.

What hangs is the kernel, and no function of the process that hangs runs then.  So the command runs in a child process:
this one waits for it, passes signals on, and if the time is over it ends it, and says so.  Must not know what a command
does: one that may take longer says so itself.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from oci_gpu_hook.errors import ApplyError

# Many times what any command takes on a large node.
SECONDS = 60.0

_WATCHED = (signal.SIGCHLD, signal.SIGCONT, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# Both processes have it: when the command must have ended, by the clock that does not jump.
_MOMENT = memoryview(mmap.mmap(-1, 8)).cast("d")


def allow(seconds: float) -> None:
    """Let the command take so many seconds from now on, and `SECONDS` beyond."""
    _MOMENT[0] = time.monotonic() + seconds + SECONDS


def leave_at(numbers: Sequence[signal.Signals], code: Callable[[int], int]) -> None:
    """End the command with this code at any of these signals: what was made goes on the way out, which no second one
    breaks off, such as that of a service's manager who asks both processes.
    """

    def leave(number: int, frame: object) -> None:
        for other in numbers:
            signal.signal(other, signal.SIG_IGN)
        raise SystemExit(code(number))

    for number in numbers:
        signal.signal(number, leave)


def _left() -> float:
    return _MOMENT[0] - time.monotonic()


def run(command: Callable[[], int]) -> int:
    """What `command` gives, run in a child process; there it is the whole program, which ends with what is given."""
    allow(0)
    began = time.monotonic()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return command()
    while True:
        # The time may have run out while both were stopped: what has been sent since counts first.
        told = _told(max(_left(), 0)) or _told(0)
        if told and told.si_signo == signal.SIGCONT:
            # Both were stopped, and the clock went on.
            allow(max(_left() - SECONDS, 0))
        # What a terminal sends, all of its foreground processes get.
        elif told and told.si_signo != signal.SIGCHLD and told.si_code <= 0:
            os.kill(child, told.si_signo)
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return _ended(status)
        if told is None and _left() <= 0:
            return _late(child, time.monotonic() - began)


def _told(seconds: float) -> signal.struct_siginfo | None:
    told = signal.sigtimedwait(_WATCHED, seconds)
    # If the time was over when a stopped process went on, CPython gives a struct that is not filled in.
    return told if told and told.si_signo in _WATCHED else None


def _ended(status: int) -> int:
    """The command's exit code; where a signal has ended it, that ends this process too."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        with suppress(OSError):  # of SIGKILL
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (-code,))
        os.kill(os.getpid(), -code)
    return code


def _late(child: int, seconds: float) -> int:
    """End the command; one that hangs in the kernel ends once that goes on, and no process waits for it until then."""
    where = ""
    with suppress(OSError), open(f"/proc/{child}/wchan", encoding="ascii", errors="replace") as file:
        where = file.read(64).strip("0")
    os.kill(child, signal.SIGKILL)
    why = f"the command has not ended within {seconds:.0f} seconds"
    waits = f": process {child} waits in the kernel ({where})" if where else ""
    hint = "look for a filesystem or a device of this host that does not answer"
    print(f"oci-gpu-hook: {why}{waits} ({hint})", file=sys.stderr, flush=True)
    return ApplyError.exit_code
