# SPDX-License-Identifier: Apache-2.0
"""What every kind of operation says of itself."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    from oci_gpu_hook.changes.tree import Tree
    from oci_gpu_hook.changes.undo import Undo
    from oci_gpu_hook.host.root import HostRoot

    # A list of a CDI spec's containerEdits (deviceNodes, mounts), and one item of it.
    Edit = tuple[str, dict[str, object]]
    # Cells of one line, for people.
    Row = tuple[str, ...]

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
            """What must be done in the host's mount namespace: a descriptor for `perform`.  OSError where it fails.

            What `perform` imports is imported here: in the container's namespace the package may be out of reach.
            """

        def perform(self, tree: Tree, prepared: int | None) -> str:
            """Do it, in the container's mount namespace; gives "", or why nothing was done.  OSError where it fails."""

        def cdi_edits(self) -> list[Edit] | None:
            """What a CDI spec says of it; None where a spec cannot, and the hook that the spec starts must do it."""

        def rows(self) -> tuple[str, list[Row]]:
            """Its group's title, and its lines there."""

        def document(self) -> dict[str, Any]:
            """Its fields as JSON has them."""
