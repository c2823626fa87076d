# SPDX-License-Identifier: Apache-2.0
"""The errors of the hook, by who must act; each class has its documented exit code.

A message says what failed and why, ``hint`` who can fix it and how.  Text from an image or a container must pass
through `quoted` first; the rest is made `plain` here.
"""

from __future__ import annotations

DONE, OUR_BUG = 0, 1
_QUOTED_LENGTH = 200
_LONGEST_WORD = 300
# A sentence that lists things says so, and may be longer.
LONGEST, LONGEST_LIST = 1_000, 10_000


class HookError(Exception):
    """An error that stops the container's start."""

    exit_code = OUR_BUG
    hint = ""

    def __init__(self, message: str, hint: str = "", *, most: int = LONGEST) -> None:
        self.message = plain(message, most)
        super().__init__(self.message)
        self.hint = hint or self.hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UsageError(HookError):
    """The command line is wrong: its author must act."""

    exit_code = 2


class BundleError(HookError):
    """The state or bundle is wrong: the engine or runtime must act."""

    exit_code = 3
    hint = "the container engine or runtime must fix it"


class ConfigError(HookError):
    """The administrator's settings are wrong: the administrator must act."""

    exit_code = 4


class RequestError(HookError):
    """The container asks for something that does not exist or is not allowed: its author must act."""

    exit_code = 5


class DriverError(HookError):
    """The host's driver is absent, mismatched or half installed: the administrator must act."""

    exit_code = 6


class ApplyError(HookError):
    """A step of the plan failed; everything that was done before it has been undone."""

    exit_code = 7


def quoted(text: object) -> str:
    """Untrusted text for a message: printable ASCII only, in quotes, at most 200 characters."""
    # Each character may become ten.
    shown = ascii(text[:_QUOTED_LENGTH] if isinstance(text, str) else text)
    return shown if len(shown) <= _QUOTED_LENGTH else shown[: _QUOTED_LENGTH - 4] + "...'"


def plain(sentence: str, most: int = LONGEST) -> str:
    """Escapes control characters, shortens the middle.  A long word, which may be an image's or an engine's, is
    shortened by itself, so that the rest of the sentence stays.
    """
    if len(sentence) > _LONGEST_WORD:
        # Of millions of words, only those that can stay are split.
        words = _cut(sentence, 100 * LONGEST_LIST).split(" ")
        sentence = _cut(" ".join([_cut(word, _LONGEST_WORD) for word in words]), most)
    if sentence.isprintable():
        return sentence
    return "".join([letter if letter.isprintable() else ascii(letter)[1:-1] for letter in sentence])


def reason(error: OSError) -> str:
    """Without Python's number of it, ``[Errno 28]``."""
    said = str(error)
    return said.partition("] ")[2] if said.startswith("[Errno") else said


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    end = most // 3
    return f"{text[: most - end - 3]}...{text[-end:]}"
