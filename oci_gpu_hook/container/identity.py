# SPDX-License-Identifier: Apache-2.0
"""Which container it is: what no other container shares with it."""

from __future__ import annotations

from oci_gpu_hook.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.container.devicecgroup import DeviceCgroup
    from oci_gpu_hook.formats.scopeunit import ScopeUnit


class Container(NamedTuple):
    """One container.

    rootfs: its root's path, as config.json has it; device_cgroup: where that is, or why none can be changed; scope: the
    systemd unit that it is in, None if systemd does not restrict its devices; own_mounts: the ids of the mounts in
    which things may be made.
    """

    id: str
    bundle: str
    rootfs: str
    device_cgroup: DeviceCgroup
    scope: ScopeUnit | None = None
    own_mounts: tuple[int, ...] = ()
