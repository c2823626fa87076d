# SPDX-License-Identifier: Apache-2.0
"""A shell on a terminal of its own, for what only happens there: completion at the Tab key."""

from __future__ import annotations

import os
import pty
import re
import select
import struct
import time
from fcntl import ioctl
from termios import TIOCSWINSZ
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

_PROMPT = "<ready>"
# What moves the cursor parts words, what colours them does not.
_MOVES = re.compile(r"\x1b\[[0-9;?]*[A-KP-X@]|\r")
_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|[=>]|\][^\x07]*\x07)|\x07")
_LONGEST = 60.0
_QUIET = 0.4
# So wide that nothing is cut, so high that nothing waits for a key.
_SIZE = struct.pack("HHHH", 200, 300, 0, 0)


class Shell:
    """`command` is started in `folder`, told `setup`, and then asked what it offers."""

    def __init__(self, command: list[str], setup: list[str], folder: Path) -> None:
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "TERM": "xterm"}
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            os.chdir(folder)
            os.execvpe(command[0], command, environment)
        ioctl(self._fd, TIOCSWINSZ, _SIZE)
        # The prompt is put together by the shell: the echo of this line is not taken for it.
        for line in (*setup, "PS1='<ready'; PS1+='> '"):
            os.write(self._fd, f"{line}\n".encode())
        self._read_to(_PROMPT)

    def __enter__(self) -> Shell:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._fd)
        os.waitpid(self._pid, 0)

    def offers(self, typed: str) -> str:
        """All that appears at the Tab key behind `typed`: the line as completed, or the list.

        Behind a word that is not begun Tab is pressed three times: the first may add what all have in common, bash
        waits for a second, and then lists.
        """
        tabs = 3 if typed[-1] in " -=" else 1
        os.write(self._fd, typed.encode() + b"\t" * tabs)
        # zsh shows no list to one who types on.
        shown = self._read_to("")
        # To the line's beginning, a comment sign, Enter: nothing runs, and the next prompt says that all was told.
        os.write(self._fd, b"\x01#\n")
        return shown + self._read_to(_PROMPT)

    def _read_to(self, end: str) -> str:
        found = b""
        until = time.monotonic() + _LONGEST
        while True:
            text = _ESCAPES.sub("", _MOVES.sub(" ", found.decode(errors="replace")))
            if (
                text
                and text.rstrip().endswith(end)
                and not select.select([self._fd], [], [], _QUIET)[0]
            ):
                return text
            if not select.select([self._fd], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError(f"no {end!r} in {text!r}")
            found += os.read(self._fd, 65536)
