# SPDX-License-Identifier: Apache-2.0
"""The container's device cgroup, opened for exactly the requested devices."""

from __future__ import annotations

from oci_gpu_hook.changes import devicerules
from oci_gpu_hook.container.devicecgroup import levels
from oci_gpu_hook.formats.devicerule import DeviceRule
from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.changes.tree import Tree
    from oci_gpu_hook.changes.undo import Undo
    from oci_gpu_hook.host.root import HostRoot


class OpenCgroup(NamedTuple):
    """A device cgroup, `rules` added to what it allows; never the ``m`` (mknod) access.

    version: ``v1`` or ``v2``; path, top: see `container.devicecgroup.DeviceCgroup`, "" before the container exists;
    fallback: linux.resources.devices of config.json, from which a v2 program is made if the kernel does not show its
    instructions.
    """

    version: str
    path: str
    top: str
    rules: tuple[DeviceRule, ...]
    fallback: tuple[DeviceRule, ...]
    required: bool
    reason: str

    def describe(self) -> str:
        """See `Operation`, for this and the rest."""
        return f"open the device cgroup ({self.version})"

    def prepare(self, host: HostRoot, undo: Undo) -> int | None:
        devicerules.load(self.version)
        return None

    def perform(self, tree: Tree, prepared: int | None) -> str:
        directories = levels(self.path, self.top)
        skipped = devicerules.allow(self.version, directories, self.rules, self.fallback, tree.undo)
        return f"the device cgroup is left alone: {skipped}" if skipped else ""
