# SPDX-License-Identifier: Apache-2.0
"""The outcome in one sentence on stderr: all that an engine shows its user of a failed hook.

Must not decide anything, and must not fail: a start is never stopped because it could not be told about.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.errors import OUR_BUG, HookError

_STDERR = 2


def failure(error: BaseException) -> int:
    """Say why the start is stopped; gives the exit code."""
    if isinstance(error, HookError):
        say(str(error))
        return error.exit_code
    # Never a traceback: an engine would bury its last line, the only one that matters, in its own nesting of quotes.
    say(f"internal error, please report it: {type(error).__name__}: {error}{_place(error)}")
    return OUR_BUG


def say(sentence: str) -> None:
    """One line on stderr."""
    line = " ".join(f"oci-gpu-hook: {sentence}".split())
    try:
        posix.write(_STDERR, line.encode("utf-8", "backslashreplace") + b"\n")
    except OSError:
        pass


def _place(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    return f" ({trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno})"
