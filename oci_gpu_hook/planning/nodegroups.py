# SPDX-License-Identifier: Apache-2.0
"""Device nodes that the container's user could not open, by the mode that they have on the host.  Pure.

A container's user is seldom in a node's group on the host.  The device cgroup says which devices the container has; so
the node in its /dev gets the group of its process, and no wider mode.  In a user namespace the host's own is bound.
"""

from __future__ import annotations

from oci_gpu_hook.operations import Device
from oci_gpu_hook.planning.plan import Provision, some
from oci_gpu_hook.request.bundle import Bundle

_READ_WRITE = 0o6
_KEEPS_GROUPS = "run.oci.keep_original_groups"  # podman run --group-add keep-groups, for crun (podman-run(1))


def opened(provision: Provision, bundle: Bundle, *, may_change: bool) -> Provision:
    """With nodes that the container's user can open, as far as `may_change` lets their group change."""
    (uid, gid, groups), keeps_groups = bundle.user(), bool(bundle.annotations().get(_KEEPS_GROUPS))
    found, shut = list(provision.operations), []
    for place, node in enumerate(found):
        if not isinstance(node, Device) or _opens(node, uid, (gid, *groups)):
            continue
        if not node.source and may_change and node.mode >> 3 & _READ_WRITE == _READ_WRITE:
            found[place] = node._replace(gid=gid)
        # A rootless engine's nodes are open by the groups of its user.
        elif not (node.source and keeps_groups):
            shut.append(node)
    notes = provision.notes
    if shut:
        first, paths = shut[0], some([node.path for node in shut])
        rootless = "; rootless podman: --group-add keep-groups" if first.source else ""
        why = f"{paths} of mode {first.mode:04o} and group {first.gid}: user {uid} of the container cannot open it"
        notes += (f"{why}; start it with --group-add {first.gid}{rootless}",)
    return provision._replace(operations=tuple(found), notes=notes)


def _opens(node: Device, uid: int, groups: tuple[int, ...]) -> bool:
    """Whether the user may open the node; in a user namespace the ids of the host's node are not the user's."""
    # Root has the node by its owner, or by CAP_DAC_OVERRIDE.
    if not node.source and uid in (0, node.uid):
        return True
    if not node.source and node.gid in groups:
        return not node._replace(mode=node.mode >> 3).is_closed()
    return not node.is_closed()
