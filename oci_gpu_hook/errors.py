# SPDX-License-Identifier: Apache-2.0
"""One tree of errors, ordered by who must act; each class has its documented exit code.

A message is one sentence, lower case, without a full stop: what failed and why.  ``hint`` says who can mend it and
how.  Text that comes from an image or a container passes through `quoted` first.

Must not do I/O and must not import anything.
"""

from __future__ import annotations

DONE = 0
OUR_BUG = 1
USAGE = 2

_QUOTED_LENGTH = 200


class HookError(Exception):
    """Something that stops the container start, told in one sentence."""

    exit_code = OUR_BUG

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UsageError(HookError):
    """The command line is wrong: whoever wrote it must act."""

    exit_code = USAGE


class BundleError(HookError):
    """The engine gave us a bad state or bundle: the engine or runtime must act."""

    exit_code = 3


class ConfigError(HookError):
    """The administrator's file is wrong: the administrator must act."""

    exit_code = 4


class RequestError(HookError):
    """The container asks for what is not there or not allowed: its author must act."""

    exit_code = 5


class DriverError(HookError):
    """The host's driver is absent, mismatched or half installed: whoever installs the driver must act."""

    exit_code = 6


class ApplyError(HookError):
    """A step failed while the plan was carried out; everything done before it has been undone."""

    exit_code = 7


def quoted(text: object) -> str:
    """Untrusted text for a message: printable ASCII only, in quotes, at most 200 characters."""
    shown = ascii(text)
    return shown if len(shown) <= _QUOTED_LENGTH else shown[: _QUOTED_LENGTH - 4] + "...'"
