# SPDX-License-Identifier: Apache-2.0
"""What every kind of operation says of itself.

An operation is a record: a fact that needs no further decision.  Its file says what it prepares on the host and what it
does in the container.  Paths named `source` are the host's; `target` and `path` are the container's.  To add a kind,
write its file, name it in `cli.shown`, and say in `planning.carriedout` what a CDI spec can do of it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from oci_gpu_hook.changes.tree import Tree
    from oci_gpu_hook.changes.undo import Undo
    from oci_gpu_hook.host.root import HostRoot

    class Operation(Protocol):
        """One step of a plan."""

        @property
        def required(self) -> bool:
            """Whether the container is stopped where the step fails."""

        @property
        def reason(self) -> str:
            """Which request and which rule asked for it, for people."""

        def describe(self) -> str:
            """What it does, to stand behind "cannot"."""

        def prepare(self, host: HostRoot, undo: Undo) -> int | None:
            """What must be done in the host's mount namespace: a descriptor for `perform`.  OSError if it fails.

            What `perform` imports is imported here: in the container's namespace the package may be out of reach.
            """

        def perform(self, tree: Tree, prepared: int | None) -> str:
            """Do it, in the container's mount namespace; gives "", or why nothing was done.  OSError if it fails."""
