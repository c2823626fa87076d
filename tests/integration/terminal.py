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
_LONGEST = 600.0
# What the shells answer to a key of ours, once they have done with those before it.
_ANSWER = "<done>"
_ASK = "\x14"
ANSWER_BY_BASH = """bind -x '"\\C-t": printf "<do""ne>"'"""
ANSWER_BY_ZSH = "answer() { zle -R; print -rn -- '<do''ne>' }; zle -N answer; bindkey '^T' answer"
_KILL_LINE = "\x15"
# So wide that nothing is cut, so high that nothing waits for a key.
_SIZE = struct.pack("HHHH", 200, 300, 0, 0)


class Shell:
    """A shell that is started in `folder` and given the lines `setup`, one of ANSWER_BY_ among them."""

    def __init__(self, command: list[str], setup: list[str], folder: Path) -> None:
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "TERM": "xterm"}
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            # The child is a copy of the test run: without a shell it must end here, not go on with the tests.
            try:
                os.chdir(folder)
                os.execvpe(command[0], command, environment)
            except OSError as error:
                os.write(2, f"cannot start {command[0]}: {error.strerror}".encode())
            finally:
                os._exit(127)
        try:
            ioctl(self._fd, TIOCSWINSZ, _SIZE)
            # The prompt is put together by the shell: the echo of this line is not taken for it.
            for line in (*setup, "PS1='<ready'; PS1+='> '"):
                os.write(self._fd, f"{line}\n".encode())
            self._read_to(_PROMPT)
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        os.close(self._fd)
        os.waitpid(self._pid, 0)

    def __enter__(self) -> Shell:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def offers(self, typed: str) -> str:
        """All that appears at the Tab key behind `typed`: the line as completed, or the list.

        Behind a word that is not begun Tab is pressed three times: the first may add what all have in common, bash
        waits for a second, and then lists.
        """
        tabs = 3 if typed[-1] in " -=" else 1
        shown = self._shown(typed + "\t" * tabs)
        # The line is drawn again: that is none of what comes next.
        self._shown(_KILL_LINE)
        return shown

    def _shown(self, keys: str) -> str:
        os.write(self._fd, (keys + _ASK).encode())
        return self._read_to(_ANSWER)

    def _read_to(self, end: str) -> str:
        found = b""
        until = time.monotonic() + _LONGEST
        while True:
            text = _ESCAPES.sub("", _MOVES.sub(" ", found.decode(errors="replace")))
            if end in text:
                return text.partition(end)[0]
            if not select.select([self._fd], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError(f"no {end!r} in {text!r}")
            try:
                found += os.read(self._fd, 65536)
            except OSError as error:
                # So Linux answers once no process has the terminal open any more.
                raise EOFError(f"the shell has ended: {text!r}") from error
