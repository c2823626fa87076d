# SPDX-License-Identifier: Apache-2.0
"""All containers that run, with the device nodes in each and what its device cgroup lets it open.

From /proc, mounts and cgroups: no engine is asked, nothing is remembered, no device is opened and no cgroup is entered.
A container is what has another root and another mount namespace than we.  What a container could make endless is
bounded, and a container that was not looked at whole says so.  A device cgroup answers by its rules (v1), or by
its eBPF programs (v2), which are run here: what is not a comparison or a calculation on the request has no answer
(Documentation/bpf/standardization/instruction-set.rst).

Nodes are found by mounts, and by folders if root alone can mount anything there.  In a user namespace a user can mount
an overlay of a FUSE filesystem that never answers; what it can use there are the host's own nodes, as mounts.
"""

from __future__ import annotations

import operator
import posix
import re
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import PurePosixPath
from time import monotonic

from oci_gpu_hook.container.devicecgroup import is_named_after
from oci_gpu_hook.container.memoryregion import NO_LIMIT, amounts, by_device
from oci_gpu_hook.errors import UsageError
from oci_gpu_hook.formats.devicefilter import TYPES
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel import bpf, syscalls
from oci_gpu_hook.kernel.descriptors import closing
from oci_gpu_hook.kernel.filetypes import is_character_device, is_same
from oci_gpu_hook.node.engines.containers import KnownContainers, Running
from oci_gpu_hook.node.machine import foreignfile, processes
from oci_gpu_hook.node.machine.foreignfile import ContainerRoot, Mounts, Number
from oci_gpu_hook.record import NamedTuple

# With whether these are all.
Nodes = tuple[dict[Number, str], bool]

# Of all containers; and of the folders of one.
_SECONDS, _SECONDS_INSIDE = 3.0, 0.25
_FOLDERS = ("/dev", "/dev/nvidia-caps")
# Where Incus and LXD have a folder for each instance, with copies of the nodes that they give it, beside its volumes.
_COPIES = ("/var/lib/incus/devices", "/var/lib/lxd/devices")
_MAX_BOUND = 256
_MAX_FOLDERS = 64
# Far more than the devices of a host; each is asked of the device cgroup.
_MAX_NODES = 256
# No driver has this number: a cgroup that lets it be opened lets all be.
_UNUSED_NUMBER = (4095, (1 << 20) - 1)


class Wanted(NamedTuple):
    """The devices that count: majors, and paths of the host and numbers of further nodes, whose nodes are listed;
    numbers: those that device cgroups are asked for.
    """

    majors: tuple[int, ...]
    nodes: tuple[tuple[str, int, int], ...]
    numbers: tuple[Number, ...]

    @property
    def folders(self) -> tuple[str, ...]:
        """Where the host has them, and where a container has them as a rule."""
        return tuple(dict.fromkeys([*_FOLDERS, *[path.rpartition("/")[0] for path, _, _ in self.nodes]]))


class ContainerNode(NamedTuple):
    """A device node of a container; allowed: what its device cgroup says, None if that cannot be read."""

    path: str
    major: int
    minor: int
    allowed: bool | None


class MemoryUse(NamedTuple):
    """Of the device at a PCI address, in bytes; limit: 0 for none; peak: 0 if the kernel does not tell."""

    address: str
    used: int
    limit: int
    peak: int


class ContainerDevices(NamedTuple):
    """since: its start, in seconds since 1970; allowed: of the numbers that were asked for, those that its cgroup lets
    it open; is_open: whether that is every device; makes_nodes: whether it has CAP_MKNOD in our user namespace;
    is_whole: whether all of its nodes were looked at; memory: what it has of devices' memory, where the kernel tells;
    cgroup: its own, if its id is in the name, else "".
    """

    running: Running
    since: int
    nodes: tuple[ContainerNode, ...]
    allowed: frozenset[Number] = frozenset()
    is_open: bool = False
    makes_nodes: bool = False
    is_whole: bool = True
    memory: tuple[MemoryUse, ...] = ()
    cgroup: str = ""


class AllContainers(NamedTuple):
    """By their start; unseen: how many processes we may not look into; unlooked: how many containers took too long."""

    containers: tuple[ContainerDevices, ...]
    unseen: int
    unlooked: int = 0


def find_devices(host: HostRoot, wanted: Wanted) -> AllContainers:
    known = KnownContainers(host)
    ours = HostsNodes(host, known.mounts, wanted)
    firsts, unseen = _first_processes(host, known.mounts)
    until = monotonic() + _SECONDS
    found = []
    # Root's first: a user can have many.
    for _, began, pid in sorted([(bool(processes.maker(host, pid)), began, pid) for began, pid in firsts]):
        if monotonic() > until:
            break
        found.append(_container(host, known, pid, began, ours, wanted))
    return AllContainers(_joined(sorted(found, key=lambda it: it.since)), unseen, len(firsts) - len(found))


def _joined(found: list[ContainerDevices]) -> tuple[ContainerDevices, ...]:
    """One for each container: some unshare their mounts many times, as services do, and two may have one id."""
    joined: dict[tuple[int, str, str], ContainerDevices] = {}
    for it in found:
        key = it.running.owner, it.running.id or str(it.running.pid), it.cgroup
        first = joined.setdefault(key, it)
        known = {(node.major, node.minor) for node in first.nodes}
        more = [node for node in it.nodes if (node.major, node.minor) not in known]
        nodes, is_whole = (*first.nodes, *more)[:_MAX_NODES], first.is_whole and it.is_whole
        joined[key] = first._replace(nodes=nodes, is_whole=is_whole)
    return tuple(joined.values())


def _first_processes(host: HostRoot, hosts: Mounts) -> tuple[list[tuple[int, int]], int]:
    """The clock tick of each container's start with its first process; and how many processes are unseen."""
    firsts: dict[int, tuple[int, int]] = {}
    judged: dict[tuple[int, str | None], bool] = {}
    unseen = 0
    ours, top = host.stat("/proc/self/ns/mnt"), hosts.shown(host.path)
    for first in processes.numbers(host):
        pid, namespace = first, host.stat(f"/proc/{first}/ns/mnt")
        if namespace is None:
            pid = processes.other_thread(host, first)
            namespace = host.stat(f"/proc/{pid}/ns/mnt") if pid != first else None
        if namespace and ours and is_same(namespace, ours):
            continue
        began = processes.started(host, pid)
        if began is None or processes.is_kernels(host, pid):
            continue
        if namespace is None:
            unseen += 1
            continue
        # Its root is looked up in mountinfo: to ask its filesystem may take for ever.
        key = namespace.st_ino, host.link(f"/proc/{pid}/root")
        if key not in judged:
            said = foreignfile.mountinfo(host, pid)
            if not said:
                continue  # it has ended
            judged[key] = foreignfile.root_of(said) != top
        if judged[key]:
            firsts[namespace.st_ino] = min(firsts.get(namespace.st_ino, (began, pid)), (began, pid))
    return list(firsts.values()), unseen


def _container(
    host: HostRoot, known: KnownContainers, pid: int, began: int, ours: HostsNodes, wanted: Wanted
) -> ContainerDevices:
    cgroup = processes.device_cgroup(host, pid, known.version)
    allows = _verdict(host, cgroup, known.version)
    nodes, is_whole = held_nodes(host, pid, ours, wanted)
    running = known.of_process(pid)
    there = [ContainerNode(path, *at, allows(*at)) for at, path in sorted(nodes.items())]
    # With the host's root, as monitoring pods have it at /host, come all of the host's nodes, and nothing is wrong.
    held = tuple([node for node in there if node.allowed is not False or node.path.startswith("/dev/")])
    allowed, is_open = frozenset([at for at in wanted.numbers if allows(*at)]), bool(allows(*_UNUSED_NUMBER))
    makes_nodes = processes.is_in_our_users(host, pid) and processes.makes_nodes(host, pid)
    own = own_cgroup(cgroup, running.id)
    memory = memory_uses(host, own) if own else ()
    named = own if is_named_after(own.rpartition("/")[2], running.id) else ""
    return ContainerDevices(running, since(host, began), held, allowed, is_open, makes_nodes, is_whole, memory, named)


def _verdict(host: HostRoot, cgroup: str, version: str) -> Callable[[int, int], bool | None]:
    """What v1's rules, or those programs of v2 that are in effect, answer; None if they cannot be read."""
    if version == "v1" and cgroup and (data := host.read(f"{cgroup}/devices.list")) is not None:
        return partial(by_rules, data.decode("ascii", "replace"))
    if version == "v2" and cgroup and host.path == "/":
        with suppress(OSError), closing(host.open(cgroup, posix.O_RDONLY | posix.O_DIRECTORY)) as fd:
            ids = bpf.prog_query(fd, query_flags=bpf.BPF_F_QUERY_EFFECTIVE)[1]
            return partial(by_programs, [_program(id) for id in ids])
    return lambda _major, _minor: None


def _program(id: int) -> bytes | None:
    with suppress(syscalls.SyscallError), closing(bpf.prog_get_fd_by_id(id)) as fd:
        return bpf.prog_insns(fd)
    return None


def since(host: HostRoot, began: int) -> int:
    """`processes.started` in seconds since 1970."""
    booted = host.text("/proc/stat").partition("\nbtime ")[2].partition("\n")[0]
    return int(booted or 0) + began // posix.sysconf("SC_CLK_TCK")


class HostsNodes:
    """The host's nodes in the folders that count, by their filesystem's device and their place in it."""

    def __init__(self, host: HostRoot, hosts: Mounts, wanted: Wanted) -> None:
        self._numbers: dict[tuple[str, str], Number] = {}
        folders = [(folder, "") for folder in wanted.folders]
        folders += [(f"{top}/{name}", "unix.") for top in _COPIES for name in host.names(top)]
        for folder, beginning in folders:
            for path in [f"{folder}/{name}" for name in host.names(folder) if name.startswith(beginning)]:
                status, place = host.stat(path), hosts.shown(host.path.rstrip("/") + path)
                if status is not None and place is not None and is_character_device(status):
                    self._numbers.setdefault(place, foreignfile.number(status))
        self._above = {(device, str(it)) for device, path in self._numbers for it in PurePosixPath(path).parents}

    def shown_by(self, mounts: Mounts) -> Nodes:
        """Those that these mounts show, wherever a container has put them."""
        found: dict[Number, str] = {}
        folders = []
        for point, mount in mounts.points.items():
            number = self._numbers.get((mount.device, mount.root))
            if number is not None:
                found.setdefault(number, point)
            elif (mount.device, mount.root) in self._above:
                folders.append((point, mount.device, mount.root.rstrip("/") + "/"))
        for point, device, top in folders[:_MAX_FOLDERS]:
            for (its, path), number in self._numbers.items():
                if its == device and path.startswith(top):
                    place = f"{point.rstrip('/')}/{path[len(top) :]}"
                    # Another mount may lie over it.
                    if mounts.way(place)[-1] == point:
                        found.setdefault(number, place)
        return found, len(folders) <= _MAX_FOLDERS


def held_nodes(host: HostRoot, pid: int, ours: HostsNodes, wanted: Wanted) -> Nodes:
    mounts = foreignfile.mounts_of(host, pid)
    if mounts is None:
        return {}, processes.started(host, pid) is None
    found, is_whole = ours.shown_by(mounts)
    if processes.is_in_our_users(host, pid):
        others, was_whole = _inside(host, pid, mounts, wanted)
        found, is_whole = {**found, **others}, is_whole and was_whole
    numbers = {(major, minor) for _, major, minor in wanted.nodes}
    count = [at for at in found if at[0] in wanted.majors or at in numbers]
    # First those that there are on this host: a container that may make nodes can have thousands.
    count.sort(key=lambda at: (at not in wanted.numbers, at))
    return {at: found[at] for at in count[:_MAX_NODES]}, is_whole and len(count) <= _MAX_NODES


def _inside(host: HostRoot, pid: int, mounts: Mounts, wanted: Wanted) -> Nodes:
    """What a look into the container finds, where root alone can have mounted anything."""
    if not mounts.is_local("/"):
        return {}, False
    try:
        inside = ContainerRoot(host, pid)
    except UsageError:
        return {}, True  # it has ended
    found: dict[Number, str] = {}
    until, is_whole = monotonic() + _SECONDS_INSIDE, True
    with closing(inside.fd):
        for folder in wanted.folders:
            nodes, was_whole = inside.nodes(folder, until) if mounts.is_local(folder) else ([], False)
            is_whole = is_whole and was_whole
            for name, at in nodes:
                found.setdefault(at, f"{folder}/{name}")
        for point in _bound(mounts, wanted):
            status = inside.status(point, with_links=False) if mounts.is_local(point) else None
            if status is not None and is_character_device(status):
                found.setdefault(foreignfile.number(status), point)
    return found, is_whole


def _bound(mounts: Mounts, wanted: Wanted) -> list[str]:
    """Where mounts can be of a node of another folder of the host's, as a driver container has one."""
    names = {path.rpartition("/")[2] for path, _, _ in wanted.nodes}
    places = [(point, mount.root) for point, mount in mounts.points.items()]
    return [point for point, it in places if "/nvidia" in it or it.rpartition("/")[2] in names][:_MAX_BOUND]


# What a device cgroup answers.

_READ, _WRITE = 2, 4  # BPF_DEVCG_ACC_READ and _WRITE
_EXIT, _JUMP, _LDDW = 0x95, 0x05, 0x18
# These read no register that they write.
_MOVES = (0xB4, 0xB7)
# struct bpf_insn: opcode, both registers, offset, immediate.
_INSTRUCTION = struct.Struct("<BBhi")
# Of 4, 2 and 1 bytes of the request.
_LOADS = {0x61: 4, 0x69: 2, 0x71: 1}
_CALCULATIONS: dict[int, Callable[[int, int], int]] = {
    0x00: operator.add,
    0x10: operator.sub,
    0x40: operator.or_,
    0x50: operator.and_,
    0x60: operator.lshift,
    0x70: operator.rshift,
    0xA0: operator.xor,
    0xB0: lambda left, right: right,
}
_COMPARISONS: dict[int, Callable[[int, int], object]] = {
    0x10: operator.eq,
    0x20: operator.gt,
    0x30: operator.ge,
    0x40: operator.and_,
    0x50: operator.ne,
    0xA0: operator.lt,
    0xB0: operator.le,
}
# The verifier lets no program run for longer.
_MAX_STEPS = 1_000_000


def by_rules(text: str, major: int, minor: int) -> bool:
    """Whether ``devices.list`` of v1 lets a character device be opened for reading and writing."""
    # The kernel writes "rwm" in this order.
    return bool(re.search(rf"^(a \*:\*|c (\*|{major}):(\*|{minor}) rw)", text, re.MULTILINE))


def by_programs(programs: list[bytes | None], major: int, minor: int) -> bool | None:
    """Whether all programs that are in effect let it be opened; None if one is hidden or not understood."""
    request = struct.pack("<III", TYPES["c"] | (_READ | _WRITE) << 16, major, minor)
    answers = [None if code is None else _answer(code, request) for code in programs]
    return next((it for it in (False, None) if it in answers), True)


def _answer(code: bytes, request: bytes) -> bool | None:
    try:
        return _run(code, request) != 0
    except (KeyError, ValueError, struct.error):
        return None


def _run(code: bytes, context: bytes) -> int:
    """The value that a program returns; R1 points to the request, and is the only register that no number is in."""
    registers: dict[int, int] = {}
    at = 0
    for _ in range(_MAX_STEPS):
        opcode, both, offset, immediate = _INSTRUCTION.unpack_from(code, 8 * at)
        dst, src = both & 15, both >> 4
        at += 1
        size = _LOADS.get(opcode, 0)
        if opcode == _EXIT:
            return registers[0]
        if size and src not in registers and 0 <= offset <= len(context) - size:
            registers[dst] = int.from_bytes(context[offset : offset + size], "little")
        elif opcode == _LDDW:
            registers[dst] = immediate & 0xFFFFFFFF | (_INSTRUCTION.unpack_from(code, 8 * at)[3] & 0xFFFFFFFF) << 32
            at += 1
        elif opcode == _JUMP:
            at += offset
        elif opcode & 7 in (4, 5, 6, 7):
            mask = 0xFFFFFFFF if opcode & 7 in (4, 6) else 0xFFFFFFFFFFFFFFFF
            right = (registers[src] if opcode & 8 else immediate) & mask
            left = 0 if opcode & 0xF7 in _MOVES else registers[dst] & mask
            if opcode & 7 in (4, 7):
                registers[dst] = _CALCULATIONS[opcode & 0xF0](left, right) & mask
            elif _COMPARISONS[opcode & 0xF0](left, right):
                at += offset
        else:
            raise ValueError("device programs have no such instruction")
    raise ValueError("it does not end")


def own_cgroup(cgroup: str, id: str) -> str:
    """The container's own cgroup, of that of a process in it: systemd in a container makes others below."""
    parts = cgroup.split("/")
    named = [at for at, name in enumerate(parts) if is_named_after(name, id)]
    return "/".join(parts[: named[-1] + 1]) if named else cgroup


def memory_uses(host: HostRoot, cgroup: str) -> tuple[MemoryUse, ...]:
    """Of each device of which something is in use, or limited; of all its regions together."""
    texts = [host.text(f"{cgroup}/dmem.{name}") for name in ("current", "max", "peak")]
    used, most, peak = [by_device(amounts(text)) for text in texts]
    found = []
    for address, regions in used.items():
        now, highest = sum(regions.values()), sum(peak.get(address, {}).values())
        limits = most.get(address, {}).values()
        # In one of several regions without a limit it can take all.
        limit = 0 if NO_LIMIT in limits else sum(limits)
        found += [MemoryUse(address, now, limit, highest)] if now or limit else []
    return tuple(found)
