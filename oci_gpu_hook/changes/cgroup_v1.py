# SPDX-License-Identifier: Apache-2.0
"""A device cgroup of version 1: the files devices.allow and devices.deny (cgroup-v1/devices.rst)."""

from __future__ import annotations

from oci_gpu_hook.changes.cgroupfiles import CgroupFiles
from oci_gpu_hook.changes.tree import Undo
from oci_gpu_hook.formats import devicerule


def allow(levels: list[str], rules: tuple[devicerule.DeviceRule, ...], undo: Undo) -> None:
    """Open the cgroups `levels`, the highest first, for `rules`; OSError if a step fails."""
    for cgroup in map(CgroupFiles, levels):
        words = [line.rpartition(" ") for line in cgroup.read("devices.list").split("\n")]
        # Each line as its device, ``TYPE MAJOR:MINOR``, and its access.
        listed = [(device, access) for device, _, access in words]
        for rule in rules:
            wide = [(kind, major) for kind in ("a", rule.type) for major in ("*", rule.major)]
            covering = {f"{kind} {major}:{minor}" for kind, major in wide for minor in ("*", rule.minor)}
            # One entry must allow all of the rule: the kernel does not add up different entries.
            if any([device in covering and {*rule.access} <= {*access} for device, access in listed]):
                continue
            # The kernel takes one rule a write.
            cgroup.write("devices.allow", devicerule.text_of(rule))
            # The kernel adds to an entry for the same numbers: only what that entry lacked is to be taken back.
            device = devicerule.text_of(rule).rpartition(" ")[0]
            before = "".join([access for other, access in listed if other == device])
            added = "".join([letter for letter in rule.access if letter not in before])
            undo.remember(cgroup.write, "devices.deny", f"{device} {added}")
