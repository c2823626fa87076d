# SPDX-License-Identifier: Apache-2.0
"""A device cgroup of version 2: eBPF programs that are attached to the cgroup.

Each program of the container's own cgroups is replaced by itself with our rules in front, in one step, so there is no
moment without a filter.  What crun has pinned of them is replaced too, or systemd would attach it again.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.changes.tree import Undo
from oci_gpu_hook.formats import devicefilter
from oci_gpu_hook.formats.devicerule import DeviceRule
from oci_gpu_hook.host.source import open_source
from oci_gpu_hook.kernel import bpf, syscalls
from oci_gpu_hook.kernel.filetypes import is_regular
from oci_gpu_hook.record import NamedTuple

Rules = tuple[DeviceRule, ...]
# By the id of each program of ours the id of the one that it has replaced, and descriptors of that one and of ours.
Replaced = dict[int, tuple[int, int, int]]

# systemd may replace a program of its own at the same time (daemon-reload); then we look again.
_ROUNDS = 16


class Pin(NamedTuple):
    """A pinned program: its folder's descriptor, its name there and its id; or the reason why it is left as it is."""

    folder: int
    name: str
    id: int
    reason: str = ""

    def put(self, prog_fd: int) -> None:
        new = f"{self.name}-oci-gpu-hook"
        try:
            # What a start that was killed has left.
            posix.unlink(new, dir_fd=self.folder)
        except FileNotFoundError:
            pass
        bpf.obj_pin(prog_fd, _named(self.folder, new))
        posix.rename(new, self.name, src_dir_fd=self.folder, dst_dir_fd=self.folder)


def pin_at(root_fd: int, path: str) -> Pin:
    """What is pinned at `path` of the host, in folders where root alone can pin it."""
    folder, _, name = path.rpartition("/")
    try:
        # Which looks at who may write to the folder, too.
        posix.close(open_source(root_fd, path))
        fd = open_source(root_fd, folder)
        # Not what a link leads to.
        if not is_regular(posix.stat(name, dir_fd=fd, follow_symlinks=False)):
            return Pin(-1, name, 0, "it is not a program")
        return Pin(fd, name, bpf.prog_id(bpf.obj_get(_named(fd, name))))
    except OSError as err:
        return Pin(-1, name, 0, str(err))


def _named(folder: int, name: str) -> str:
    """A path that leads there from any mount namespace."""
    return f"/proc/self/fd/{folder}/{name}"


def allow(levels: list[str], rules: Rules, fallback: Rules, undo: Undo, pin: Pin | None = None) -> str:
    """Gives "", or a sentence about what was left.  levels: the highest first; fallback: see `OpenCgroup`; pin: what
    crun has pinned of the highest.
    """
    prefix = devicefilter.prefix(rules)
    replaced: Replaced = {}
    # crun with systemd has one program on the scope and one on its sub-cgroup (crun issue 1738).
    for directory in levels:
        _replace_all(directory, prefix, fallback, replaced, undo)
    if not replaced:
        return "the device cgroup is left alone: no device program restricts the container's cgroup"
    return _pin_ours(pin, replaced, undo) if pin else ""


def _pin_ours(pin: Pin, replaced: Replaced, undo: Undo) -> str:
    """Gives "", or a sentence that says why ours is not pinned in the place of the one that it has replaced."""
    why = pin.reason or "it is none of the container's cgroup"
    for old_id, old_fd, new_fd in replaced.values():
        if old_id == pin.id:
            try:
                pin.put(new_fd)
                undo.remember(pin.put, old_fd)
                return ""
            except OSError as err:
                why = str(err)
    return f"systemd may take the GPU away later: the program {pin.name} that crun has pinned is left as it is: {why}"


def _replace_all(directory: str, prefix: bytes, fallback: Rules, replaced: Replaced, undo: Undo) -> None:
    """Replace each of the cgroup's programs by one with `prefix` in front, until it has ours only."""
    cgroup_fd = posix.open(directory, posix.O_RDONLY | posix.O_DIRECTORY | posix.O_CLOEXEC)
    for _ in range(_ROUNDS):
        attach_flags, ids = bpf.prog_query(cgroup_fd)
        others = [id for id in ids if id not in replaced]
        if not others:
            return
        for prog_id in others:
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
            replaced[bpf.prog_id(new_fd)] = (prog_id, old_fd, new_fd)
    raise syscalls.SyscallError(syscalls.EBUSY, "bpf", f"BPF_PROG_ATTACH: others change {directory} too")


def _put(cgroup_fd: int, attach_flags: int, new_fd: int, old_fd: int) -> None:
    if attach_flags & bpf.BPF_F_ALLOW_MULTI:
        bpf.prog_attach(cgroup_fd, new_fd, attach_flags=attach_flags | bpf.BPF_F_REPLACE, replace_fd=old_fd)
    else:
        # The cgroup holds one program, which another one replaces.
        bpf.prog_attach(cgroup_fd, new_fd, attach_flags=attach_flags)
