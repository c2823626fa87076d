# SPDX-License-Identifier: Apache-2.0
"""The container's device cgroup, opened for given devices.

Must not touch a cgroup that is not the container's alone, and must not decide which devices.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from oci_gpu_hook.changes.undo import Undo
    from oci_gpu_hook.formats.devicerule import DeviceRule


def load(version: str) -> None:
    """Import what `allow` needs: it runs where the package may be out of reach."""
    if version == "v1":
        from oci_gpu_hook.changes import cgroup_v1  # noqa: F401
    else:
        from oci_gpu_hook.changes import cgroup_v2  # noqa: F401


def allow(
    version: str, levels: list[str], rules: Sequence[DeviceRule], fallback: Sequence[DeviceRule], undo: Undo
) -> str:
    """Open a device cgroup for exactly `rules`; gives "", or why nothing was done.

    version: ``v1`` or ``v2``; levels: the container's own directories, the highest first; fallback:
    linux.resources.devices of config.json, for a v2 program whose instructions the kernel does not show.  OSError where
    a step fails.
    """
    if version == "v1":
        from oci_gpu_hook.changes import cgroup_v1

        for directory in levels:
            cgroup_v1.allow(directory, rules, undo)
        return ""
    from oci_gpu_hook.changes import cgroup_v2

    return cgroup_v2.allow(levels, rules, fallback, undo)
