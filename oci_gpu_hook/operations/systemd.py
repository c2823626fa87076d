# SPDX-License-Identifier: Apache-2.0
"""The requested devices added to DeviceAllow= of the container's scope, if systemd restricts its devices.

It puts its own rules in force again and again: without this the container would lose its GPUs at the next
daemon-reload.
"""

from __future__ import annotations

from oci_gpu_hook.formats.devicerule import DeviceRule
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.changes.tree import Tree
    from oci_gpu_hook.changes.undo import Undo
    from oci_gpu_hook.formats.scopeunit import Entry
    from oci_gpu_hook.host.root import HostRoot


class TellSystemd(NamedTuple):
    """`rules` added to DeviceAllow= of the scope `unit`; `before` is what that has, path and access."""

    unit: str
    rules: tuple[DeviceRule, ...]
    before: tuple[Entry, ...]
    required: bool
    reason: str

    def describe(self) -> str:
        """See `Operation`, for this and the rest."""
        return f"add the devices to DeviceAllow= of {self.unit}"

    def prepare(self, host: HostRoot, undo: Undo) -> int | None:
        # Its socket is the host's, and it works while the hook does.
        from oci_gpu_hook.changes import scope

        connection = scope.tell(self.unit, self.rules)
        undo.remember(scope.withdraw, connection, self.unit, self.before)
        return connection

    def perform(self, tree: Tree, prepared: int | None) -> str:
        from oci_gpu_hook.changes import scope

        assert prepared is not None
        scope.wait(prepared)
        return ""
