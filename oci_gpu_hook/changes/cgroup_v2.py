# SPDX-License-Identifier: Apache-2.0
"""A device cgroup of version 2: eBPF programs that are attached to the cgroup.

Each program is replaced by itself with our rules in front, in one step, so there is no moment without a filter.  A
request must pass every program from the container's cgroup up to the root; those of the container's own cgroups are
replaced.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.changes.tree import Undo
from oci_gpu_hook.formats import devicefilter
from oci_gpu_hook.formats.devicerule import DeviceRule
from oci_gpu_hook.kernel import bpf, syscalls

_DIRECTORY = posix.O_RDONLY | posix.O_DIRECTORY | posix.O_CLOEXEC

# systemd may replace a program of its own at the same time (daemon-reload); then we look again.
_ROUNDS = 16


def allow(levels: list[str], rules: tuple[DeviceRule, ...], fallback: tuple[DeviceRule, ...], undo: Undo) -> str:
    """Open the cgroups `levels`, the highest first, for `rules`; gives "", or a sentence if none was open to it.

    fallback: linux.resources.devices of config.json, for a program whose instructions the kernel does not show.
    """
    prefix = devicefilter.prefix(rules)
    ours: set[int] = set()
    # crun with systemd has one program on the scope and one on its sub-cgroup (crun issue 1738).
    for directory in levels:
        cgroup_fd = posix.open(directory, _DIRECTORY)
        _replace_all(cgroup_fd, directory, prefix, fallback, ours, undo)
    if ours:
        return ""
    reason = "the device cgroup is left alone: no device program restricts the container's cgroup"
    # The last one opened is the container's.
    if effective := bpf.prog_query(cgroup_fd, query_flags=bpf.BPF_F_QUERY_EFFECTIVE)[1]:
        reason += f", only {len(effective)} of the cgroups above, which are not its own"
    return reason


def _replace_all(
    cgroup_fd: int, directory: str, prefix: bytes, fallback: tuple[DeviceRule, ...], ours: set[int], undo: Undo
) -> None:
    """Replace each of the cgroup's programs by one with `prefix` in front, until it has `ours` only."""
    for _ in range(_ROUNDS):
        attach_flags, ids = bpf.prog_query(cgroup_fd)
        if ours.issuperset(ids):
            return
        for prog_id in [id for id in ids if id not in ours]:
            try:
                old_fd = bpf.prog_get_fd_by_id(prog_id)
                instructions = bpf.prog_insns(old_fd)
                if instructions is None or not devicefilter.is_loadable(instructions):
                    instructions = devicefilter.program((*fallback, *devicefilter.runtime_defaults()))
                new_fd = bpf.prog_load(prefix + instructions, name="oci_gpu_hook")
                _put(cgroup_fd, attach_flags, new_fd, old_fd)
            except syscalls.SyscallError as err:
                if err.errno != syscalls.ENOENT:
                    raise
                # The program went after the query; the next one shows what came.
                continue
            # If somebody has replaced ours since, or the cgroup is gone, there is nothing to put back.
            undo.remember(_put, cgroup_fd, attach_flags, old_fd, new_fd)
            ours.add(bpf.prog_id(new_fd))
    raise syscalls.SyscallError(syscalls.EBUSY, "bpf", f"BPF_PROG_ATTACH: others change {directory} too")


def _put(cgroup_fd: int, attach_flags: int, new_fd: int, old_fd: int) -> None:
    """Attach one program in the place of another, in one step; the flags are those of the old one."""
    if attach_flags & bpf.BPF_F_ALLOW_MULTI:
        bpf.prog_attach(cgroup_fd, new_fd, attach_flags=attach_flags | bpf.BPF_F_REPLACE, replace_fd=old_fd)
    else:
        # The cgroup holds one program, which another one replaces.
        bpf.prog_attach(cgroup_fd, new_fd, attach_flags=attach_flags)
