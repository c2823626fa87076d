# SPDX-License-Identifier: Apache-2.0
"""A device cgroup of version 1: the files devices.allow and devices.deny (cgroup-v1/devices.rst)."""

from __future__ import annotations

import posix

from oci_gpu_hook.changes.tree import Undo
from oci_gpu_hook.container.devicecgroup import lines
from oci_gpu_hook.formats import devicerule
from oci_gpu_hook.kernel import procfile, syscalls
from oci_gpu_hook.kernel.descriptors import closing


def allow(levels: list[str], rules: tuple[devicerule.DeviceRule, ...], undo: Undo) -> None:
    """Open the cgroups `levels`, the highest first, for `rules`; OSError if a step fails."""
    for directory in levels:
        words = [line.rpartition(" ") for line in lines(procfile.read_whole(f"{directory}/devices.list"))]
        # Each line as its device, ``TYPE MAJOR:MINOR``, and its access.
        listed = [(device, access) for device, _, access in words]
        for rule in rules:
            wide = [(kind, major) for kind in ("a", rule.type) for major in ("*", rule.major)]
            covering = {f"{kind} {major}:{minor}" for kind, major in wide for minor in ("*", rule.minor)}
            # One entry must allow all of the rule: the kernel does not add up different entries.
            if any([device in covering and {*rule.access} <= {*access} for device, access in listed]):
                continue
            # The kernel takes one rule a write.
            _write(f"{directory}/devices.allow", devicerule.text_of(rule))
            # The kernel adds to an entry for the same numbers: only what that entry lacked is to be taken back.
            device = devicerule.text_of(rule).rpartition(" ")[0]
            before = "".join([access for other, access in listed if other == device])
            added = "".join([letter for letter in rule.access if letter not in before])
            undo.remember(_write, f"{directory}/devices.deny", f"{device} {added}")


def _write(path: str, line: str) -> None:
    with closing(posix.open(path, posix.O_WRONLY | posix.O_CLOEXEC)) as fd:
        try:
            posix.write(fd, line.encode())
        except OSError as err:
            raise syscalls.SyscallError(err.errno or 0, "write", f"'{line}' to {path}") from err
