# SPDX-License-Identifier: Apache-2.0
"""The outcome in one sentence on stderr: an engine shows its user nothing else of a failed hook.  Never fails."""

from __future__ import annotations

import posix

from oci_gpu_hook.errors import LONGEST_LIST, OUR_BUG, HookError, plain

_STDERR = 2
_LONGEST = 10 * LONGEST_LIST


def failure(error: BaseException) -> int:
    if isinstance(error, HookError):
        say(str(error))
        return error.exit_code
    # Never a traceback: engines quote the hook's output inside their own error, and the last line would be lost there.
    say(f"internal error, please report it: {type(error).__name__}: {error}{_place(error)}")
    return OUR_BUG


def say(sentence: str) -> None:
    write(line(sentence))


def write(line: str) -> None:
    try:
        posix.write(_STDERR, f"oci-gpu-hook: {line}\n".encode("utf-8", "backslashreplace"))
    except OSError:
        pass


def line(sentence: str) -> str:
    """A sentence as it may leave: a longer one is cut, whatever is in it, and control characters are escaped."""
    return plain(" ".join(sentence[:_LONGEST].split()), LONGEST_LIST)


def _place(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f" ({trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno})" if trace else ""
