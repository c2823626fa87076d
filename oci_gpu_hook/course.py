# SPDX-License-Identifier: Apache-2.0
"""How far one start has come: what `hook` writes down on its way, so that whoever tells of it need not have been there.

Must not tell of it anywhere but on stderr, and must not import what only a container with a request needs.
"""

from __future__ import annotations

from time import monotonic_ns

from oci_gpu_hook import report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from oci_gpu_hook.config import Config
    from oci_gpu_hook.oci import State
    from oci_gpu_hook.plan import Plan
    from oci_gpu_hook.request import Request


class Course:
    """One start.

    ends: when each step that has ended did so, from the beginning on; annotations: the state's, then the bundle's too.
    """

    def __init__(self, state: State | None = None) -> None:
        self.ends = [monotonic_ns()]
        self.state = state
        self.annotations = state.annotations if state else {}
        self.settings: Config | None = None
        self.request: Request | None = None
        self.plan: Plan | None = None
        self.notes: list[str] = []

    def end_step(self) -> None:
        """The next one begins."""
        self.ends.append(monotonic_ns())

    def say(self, notes: Iterable[str]) -> None:
        """A sentence each on stderr."""
        for note in notes:
            report.say(note)
            self.notes.append(note)
