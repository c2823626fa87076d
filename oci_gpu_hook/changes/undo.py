# SPDX-License-Identifier: Apache-2.0
"""What takes back the changes of a start, the last one first."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable


class Undo:
    """The steps that take back what has been done so far.

    Descriptors that a step needs stay open until the process ends, which is soon.
    """

    def __init__(self) -> None:
        self._steps: list[tuple[Callable[..., object], tuple[object, ...], dict[str, object]]] = []

    def remember(self, function: Callable[..., object], *arguments: object, **named: object) -> None:
        """Have `function` called to take back a change that has been made."""
        self._steps.append((function, arguments, named))

    def mark(self) -> int:
        """This moment, for `take_back`."""
        return len(self._steps)

    def take_back(self, mark: int = 0) -> None:
        """Take back every change since `mark`.

        What the kernel refuses to take back goes with the container: its mounts with their namespace, its rules with
        the cgroup.
        """
        while len(self._steps) > mark:
            function, arguments, named = self._steps.pop()
            try:
                function(*arguments, **named)
            except OSError:
                pass
