# SPDX-License-Identifier: Apache-2.0
"""All containers that run, with the device nodes in each and what its device cgroup lets it open.

From /proc, mounts and cgroups: no engine is asked and nothing is remembered, so it is true after a restart of
everything.  A container is what has another root and another mount namespace than we.  Reads only: no device is opened,
no cgroup is entered.  What a container could make endless is bounded, and a container that was not looked at whole says
so.
"""

from __future__ import annotations

import posix
from contextlib import suppress
from typing import TYPE_CHECKING

from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel import bpf, syscalls
from oci_gpu_hook.node.engines import containers, deviceverdict, heldnodes
from oci_gpu_hook.node.engines.heldnodes import HostsNodes, Wanted
from oci_gpu_hook.node.machine import closing, mounts, processes, text, untrusted
from oci_gpu_hook.node.machine.untrusted import Budget
from oci_gpu_hook.record import NamedTuple

if TYPE_CHECKING:
    from oci_gpu_hook.node.engines.containers import Running
    from oci_gpu_hook.node.engines.heldnodes import Number
    from oci_gpu_hook.node.machine.mounts import Mounts

_OURS = "/proc/self/ns/mnt"
_DIRECTORY = posix.O_RDONLY | posix.O_DIRECTORY | posix.O_CLOEXEC
# Of all containers.
_SECONDS = 3.0
# No driver has this number: a cgroup that lets it be opened lets all be.
_UNUSED_NUMBER = (4095, (1 << 20) - 1)


class Node(NamedTuple):
    """A device node of a container; allowed: what its device cgroup says, None if that cannot be read."""

    path: str
    major: int
    minor: int
    allowed: bool | None


class ContainerDevices(NamedTuple):
    """A container.

    since: when its first process began, in seconds since 1970; allowed: of the numbers that were asked for, those that
    its device cgroup lets it open; is_open: whether that lets it open every device; makes_nodes: whether it can make
    device nodes, which needs CAP_MKNOD in our user namespace; is_whole: whether all of its nodes were looked at.
    """

    running: Running
    since: int
    nodes: tuple[Node, ...]
    allowed: frozenset[Number] = frozenset()
    is_open: bool = False
    makes_nodes: bool = False
    is_whole: bool = True


class Found(NamedTuple):
    """All containers, by the time of their start.

    unseen: how many processes we may not look into; unlooked: how many containers there was no time for; all_named:
    whether there was time for all files in which users' engines have names.
    """

    containers: tuple[ContainerDevices, ...]
    unseen: int
    unlooked: int = 0
    all_named: bool = True


def look(root: HostRoot, wanted: Wanted) -> Found:
    """The containers of this host."""
    known = containers.Known(root)
    ours = HostsNodes(root, known.mounts, wanted)
    firsts, unseen = _first_processes(root, known.mounts)
    budget = Budget(_SECONDS)
    found: list[tuple[int, ContainerDevices]] = []
    # Root's first: a user can have many.
    owned = [(processes.maker(root, pid) or 0, began, pid) for began, pid in firsts]
    for _, began, pid in sorted(owned, key=lambda item: (item[0] != 0, item[1])):
        if budget.is_spent():
            break
        found.append((began, _container(root, known, pid, began, ours, wanted)))
    in_order = [item for _, item in sorted(found, key=lambda pair: pair[0])]
    return Found(tuple(in_order), unseen, len(firsts) - len(found), known.is_whole)


def _first_processes(root: HostRoot, hosts: Mounts) -> tuple[list[tuple[int, int]], int]:
    """The clock tick of each container's start with its first process; and how many processes are unseen."""
    firsts: dict[int, tuple[int, int]] = {}
    judged: dict[tuple[int, str | None], bool] = {}
    unseen = 0
    ours, top = root.stat(_OURS), hosts.shown(root.path)
    for first in processes.numbers(root):
        pid, namespace = first, root.stat(f"/proc/{first}/ns/mnt")
        if namespace is None:
            pid = processes.other_thread(root, first)
            namespace = root.stat(f"/proc/{pid}/ns/mnt") if pid != first else None
        if namespace is not None and processes.is_same(namespace, ours):
            continue
        began = processes.started(root, pid)
        if began is None or processes.is_kernels(root, pid):
            continue
        if namespace is None:
            unseen += 1
            continue
        # Its root is looked up in mountinfo: to ask its filesystem may take for ever.
        key = namespace.st_ino, root.link(f"/proc/{pid}/root")
        if key not in judged:
            said = untrusted.mountinfo(root, pid)
            if not said:
                continue  # it has ended
            judged[key] = mounts.root_of(said) != top
        if judged[key]:
            firsts[namespace.st_ino] = min(firsts.get(namespace.st_ino, (began, pid)), (began, pid))
    return list(firsts.values()), unseen


def _container(
    root: HostRoot, known: containers.Known, pid: int, began: int, ours: HostsNodes, wanted: Wanted
) -> ContainerDevices:
    rules = _rules(root, processes.device_cgroup(root, pid, known.version), known.version)
    nodes, is_whole = heldnodes.look(root, pid, ours, wanted)
    return ContainerDevices(
        known.of_process(pid),
        since(root, began),
        tuple([Node(path, *at, _verdict(rules, *at)) for at, path in sorted(nodes.items())]),
        frozenset([at for at in wanted.numbers if _verdict(rules, *at)]),
        bool(_verdict(rules, *_UNUSED_NUMBER)),
        processes.is_in_our_users(root, pid) and processes.makes_nodes(root, pid),
        is_whole,
    )


def _rules(root: HostRoot, cgroup: str, version: str) -> str | list[bytes | None] | None:
    """The text of v1's rules, or the programs of v2 that are in effect; None if they cannot be read."""
    if version == "v1" and cgroup:
        data = root.read(f"{cgroup}/devices.list")
        return None if data is None else data.decode("ascii", "replace")
    if version == "v2" and cgroup and root.path == "/":
        with suppress(OSError), closing(posix.open(cgroup, _DIRECTORY)) as fd:
            ids = bpf.prog_query(fd, query_flags=bpf.BPF_F_QUERY_EFFECTIVE)[1]
            return [_program(id) for id in ids]
    return None


def _program(id: int) -> bytes | None:
    try:
        fd = bpf.prog_get_fd_by_id(id)
    except syscalls.SyscallError:
        return None
    with closing(fd):
        return bpf.prog_insns(fd)


def _verdict(rules: str | list[bytes | None] | None, major: int, minor: int) -> bool | None:
    if isinstance(rules, str):
        return deviceverdict.by_rules(rules, major, minor)
    return None if rules is None else deviceverdict.by_programs(rules, major, minor)


def since(root: HostRoot, began: int) -> int:
    """`processes.started` in seconds since 1970."""
    lines = text(root, "/proc/stat").splitlines()
    booted = next((int(line[6:]) for line in lines if line.startswith("btime ")), 0)
    return booted + began // posix.sysconf("SC_CLK_TCK")
