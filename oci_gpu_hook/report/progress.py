# SPDX-License-Identifier: Apache-2.0
"""The progress of one start, for its record.  Must not write anything but its notes, to stderr."""

from __future__ import annotations

from time import monotonic_ns, process_time_ns

from oci_gpu_hook.report import sentence
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.request.state import State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from oci_gpu_hook.planning.plan import Plan
    from oci_gpu_hook.request.selectors import Request

# A plan of a hundred steps that may all fail has as many.
_MAX_NOTES = 128


class Progress:
    """began: the processor time that the process had taken before; ends: the times of its beginning, and of the end of
    each step; both in ns; stderr: see `crun.tell`.
    """

    def __init__(self) -> None:
        self.began = process_time_ns()
        self.ends = [monotonic_ns()]
        self.state = State()
        self.settings: Settings | None = None
        self.request: Request | None = None
        self.plan: Plan | None = None
        self.notes: list[str] = []
        self.stderr = -1

    def end_step(self) -> None:
        self.ends.append(monotonic_ns())

    def keep(self, notes: Iterable[str]) -> None:
        self.notes += [sentence.line(note) for _, note in zip(range(_MAX_NOTES + 1), notes)]
        if len(self.notes) > _MAX_NOTES:
            self.notes[_MAX_NOTES:] = ["more is left out than is listed here"]

    def say(self) -> None:
        """Write each note to stderr: of a start that fails, its one sentence alone is said."""
        for note in self.notes:
            sentence.write(note)
