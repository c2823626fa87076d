# SPDX-License-Identifier: Apache-2.0
"""The time that a hook stage may take: alarm(2), as no registration of ours asks the runtime for a limit.

A start that waits for standard input says so.  What hangs later is the kernel: no function of ours would run then, and
what undoes a change would hang too.  SIGALRM ends the process, and the runtime the container with its mounts and rules.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    try:
        # The C module behind `signal`, which takes as long to load as the interpreter takes to start.
        import _signal as signal

        signal.pthread_sigmask  # noqa: B018  a private module's names may go
    except (ImportError, AttributeError):
        import signal

SECONDS = 30


def begin(error: Exception | None = None) -> None:
    """Have the signal end the process in `SECONDS`, or raise `error`, unless `end_by_signal` comes first."""

    def late(number: int, frame: object) -> None:
        end_by_signal()
        signal.alarm(SECONDS)
        assert error is not None
        raise error

    signal.signal(signal.SIGALRM, signal.SIG_DFL if error is None else late)
    # What starts a hook may have it blocked.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGALRM,))
    signal.alarm(SECONDS)


def end_by_signal() -> None:
    """Let the signal end the process from here on, at the time that was set."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
