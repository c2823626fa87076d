# SPDX-License-Identifier: Apache-2.0
"""Who holds which GPU: what a device cgroup answers, what a container's nodes amount to, and what is shown of it."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from oci_gpu_hook.cli import containers as cli_containers
from oci_gpu_hook.container.devicecgroup import CGROUP_ROOT
from oci_gpu_hook.driver.inventory import DriverInventory, MigDevice
from oci_gpu_hook.driver.nodes import DeviceNode
from oci_gpu_hook.formats import devicefilter
from oci_gpu_hook.formats.devicerule import DeviceRule
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.diagnosis import holders
from oci_gpu_hook.node.engines import containerdevices
from oci_gpu_hook.node.engines.containerdevices import ContainerDevices, ContainerNode, HostsNodes, MemoryUse, Wanted
from oci_gpu_hook.node.engines.containers import Running
from oci_gpu_hook.node.machine import foreignfile, processes
from oci_gpu_hook.node.machine.foreignfile import Mounts
from oci_gpu_hook.vendors.vendorhost import VendorDevice, VendorState
from oci_gpu_hook.vendors.vendorinventory import Vendor
from tests.unit import hosts
from tests.unit.containers import stat
from tests.unit.program import Program

# --- what a device cgroup answers


def test_rules_of_v1() -> None:
    for text in ("a *:* rwm\n", "c 1:3 rwm\nc 195:3 rw\n", "c 195:* rw\n", "c *:* rwm\n"):
        assert containerdevices.by_rules(text, 195, 3)
    for text in ("c 195:3 r\n", "c *:* m\nb 195:3 rwm\n", "c 195:30 rw\n", "nonsense\n"):
        assert not containerdevices.by_rules(text, 195, 3)


def test_programs_of_others() -> None:
    """crun's and systemd's have comparisons of 64 bits, shifts and jumps over several instructions.  An immediate has a
    sign, and is as wide as what it is compared with.
    """
    insn = devicefilter.insn
    # r2 = type and access; r2 >>= 16; r3 = major; if r3 != 195 goto deny; r0 = 1; exit; deny: r0 = 0; exit
    load = insn(0x61, 2, 1, 0) + insn(0x77, 2, immediate=16) + insn(0x61, 3, 1, 4)
    body = insn(0x55, 3, 0, 2, immediate=195) + insn(0xB7, 0, immediate=1) + insn(0x95)
    program = load + body + insn(0xB7, 0) + insn(0x95)
    for access in ("r", "rw"):
        ours = devicefilter.program([DeviceRule("c", 195, 0, access, allow=True)])
        assert containerdevices.by_programs([ours], 195, 0) is (access == "rw")
    assert containerdevices.by_programs([program], 195, 0) is True
    assert containerdevices.by_programs([program], 1, 0) is False
    assert containerdevices.by_programs([], 1, 0) is True
    signed = insn(0xB4, 0, immediate=-1) + insn(0x16, 0, offset=1, immediate=-1) + insn(0xB7, 0) + insn(0x95)
    assert containerdevices.by_programs([signed], 1, 0) is True
    for other in (None, b"", insn(0x85, immediate=5), insn(0x05, offset=-1), insn(0x61, 2, 1, 12)):
        assert containerdevices.by_programs([program, other], 195, 0) is None
        assert containerdevices.by_programs([program, other], 1, 0) is False


# --- what nodes amount to


def surveyed(tmp_path: Path, **more: object) -> DriverInventory:
    """Two GPUs: GPU 0 has minor 1, GPU 1 has minor 0."""
    return hosts.surveyed(hosts.host(tmp_path))._replace(**more)  # type: ignore[arg-type]


def has(*numbers: tuple[int, int], allowed: bool | None = True, owner: int = 0) -> ContainerDevices:
    nodes = [ContainerNode("/dev/x", *each, allowed) for each in numbers]
    given = frozenset(numbers if allowed else ())
    return ContainerDevices(Running("a" * 64, 7, "", "runc", owner=owner), 0, tuple(nodes), given)


def test_a_node_that_may_not_be_opened_holds_nothing(tmp_path: Path) -> None:
    divided = holders.divisions(surveyed(tmp_path))
    (item,), free, *_ = holders.holders(divided, (has((195, 1), allowed=False),), frozenset())
    assert ([share.name for share in item.denied], item.held) == (["0"], ())
    assert [share.name for share in free] == ["0", "1"]
    (item,), free, *_ = holders.holders(divided, (has((195, 1), allowed=None),), frozenset())
    assert ([share.name for share in item.held], item.is_certain) == (["0"], False)
    assert cli_containers._name(item._replace(container=has(owner=1000))) == f"{'a' * 64} (user 1000's)"


def test_a_mig_device_needs_its_gpu_and_both_capabilities(tmp_path: Path) -> None:
    mig = [MigDevice(0, at, f"MIG-{at}", "1g.10gb", at, 0, 10 + at, 20 + at) for at in (0, 1)]
    found = surveyed(tmp_path, mig_devices=tuple(mig))
    caps = DeviceNode("/dev/nvidia-caps/nvidia-cap10", 240, 10, 0o444, 0, 0, True, "caps")
    divided = holders.divisions(found._replace(devices=(*found.devices, caps)))
    assert [share.name for share, _ in divided] == ["0:0", "0:1", "1"]
    whole, half = has((195, 1), (240, 11), (240, 21)), has((195, 1), (240, 10))
    holding, free, *_ = holders.holders(divided, (whole, half), frozenset())
    assert [[share.name for share in item.held] for item in holding] == [["0:1"]]
    assert [share.name for share in free] == ["0:0", "1"]


def amd() -> VendorState:
    """Two GPUs of one node each, one of which has a control node beside it, and a node that every request gets."""

    def node(path: str, minor: int) -> tuple[DeviceNode, str]:
        return DeviceNode(path, 226, minor, 0o666, 0, 0, True), "compute"

    devices = (
        VendorDevice(("0", "0000:23:00.0", "renderD128"), (node("/dev/dri/renderD128", 128),)),
        VendorDevice(("1", "card1"), (node("/dev/dri/card1", 1), node("/dev/acme1", 201))),
    )
    return VendorState(Vendor("/x.json", "OCI_AMD"), devices, common=(node("/dev/kfd", 7),))


def test_another_vendors_device_is_held_by_any_of_its_nodes() -> None:
    divided = holders.of_vendor(amd())
    three = (has((226, 201)), has((226, 7)), has((226, 1), (226, 128)))
    holding, free, *_ = holders.holders(divided, three, frozenset())
    assert [[share.name for share in item.held] for item in holding] == [["OCI_AMD=1"], ["OCI_AMD=0", "OCI_AMD=1"]]
    assert free == ()
    holding, free, *_ = holders.holders(divided, (has((226, 1), allowed=False),), frozenset())
    assert [share.name for share in holding[0].denied] == ["OCI_AMD=1"]
    assert [share.name for share in free] == ["OCI_AMD=0", "OCI_AMD=1"]
    # One node that may be opened is enough.
    mixed = has((226, 1))._replace(nodes=(ContainerNode("/x", 226, 1, False), ContainerNode("/y", 226, 201, True)))
    ((item,), *_) = holders.holders(divided, (mixed,), frozenset())
    assert ([share.name for share in item.held], item.denied) == (["OCI_AMD=1"], ())


def test_what_has_no_single_devices_is_held_as_a_whole() -> None:
    found = amd()
    divided = holders.of_vendor(found._replace(devices=()))
    ((item,), free, *_) = holders.holders(divided, (has((226, 7)),), frozenset())
    assert ([share.name for share in item.held], free) == (["OCI_AMD"], ())


# --- all containers


@pytest.fixture()
def runs(tmp_path: Path) -> HostRoot:
    """Two containers, one with two processes; a service with mounts of its own; and the host's own processes."""
    root = hosts.host(tmp_path)
    hosts.plant(tmp_path, "proc/stat", "cpu 1\nbtime 1000000\n")
    for pid, start, namespace in ((1, 1, "h"), (5, 2, "s"), (30, 500, "a"), (29, 900, "a"), (40, 300, "b")):
        hosts.plant(tmp_path, f"proc/{pid}/stat", stat(pid, start=start))
        (tmp_path / f"proc/{pid}/ns").mkdir()
        hosts.plant(tmp_path, f"ns/{namespace}", "")
        os.link(tmp_path / f"ns/{namespace}", tmp_path / f"proc/{pid}/ns/mnt")
        device, place = "0:999", "/"
        if namespace not in "ab":
            device, place = foreignfile.our_mounts().shown(str(tmp_path)) or ("", "")
        own = f"9 1 {device} {place} / rw - ext4 x rw\n"
        hosts.plant(tmp_path, f"proc/{pid}/mountinfo", f"{own}10 9 0:998 / / rw - tmpfs over rw\n")
    (tmp_path / "proc/self").symlink_to("1")
    hosts.plant(tmp_path, "proc/41/stat", stat(41))
    hosts.plant(tmp_path, "run/runc/first/state.json", '{"init_process_pid": 30}')
    return root


def test_users_are_ours_by_the_namespace_itself(tmp_path: Path) -> None:
    hosts.plant_program(tmp_path, 5, "/usr/bin/one")
    hosts.plant_program(tmp_path, 6, "/usr/bin/other", namespace="other")
    root = HostRoot(str(tmp_path))
    assert [processes.is_in_our_users(root, pid) for pid in (5, 6, 7)] == [True, False, False]


def test_each_container_once_by_its_first_process_and_no_service(
    runs: HostRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "device_cgroup", lambda _, pid, __: f"{CGROUP_ROOT}/{pid}/first/init.scope")
    found, unseen, *_ = containerdevices.find_devices(runs, Wanted((195,), (), ()))
    assert [item.cgroup for item in found] == ["", f"{CGROUP_ROOT}/30/first"]
    assert [(item.running.pid, item.running.id) for item in found] == [(40, ""), (30, "first")]
    ticks = os.sysconf("SC_CLK_TCK")
    assert [item.since for item in found] == [1000000 + 300 // ticks, 1000000 + 500 // ticks]
    assert unseen == 1


def test_a_container_that_unshares_its_mounts_is_one(runs: HostRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its id and its owner; what has no id is each its own."""
    of, cgroups = {40: ("", 0, (0,), True), 30: ("a", 0, (0, 1), True)}, dict[int, str]()

    def container(host: HostRoot, known: object, pid: int, *_: object) -> ContainerDevices:
        id, owner, minors, is_whole = of[pid]
        nodes = tuple([ContainerNode(f"/dev/{pid}", 195, minor, True) for minor in minors])
        running = Running(id, pid, "", "", owner=owner)
        return ContainerDevices(running, pid, nodes, is_whole=is_whole, cgroup=cgroups.get(pid, ""))

    def found() -> list[tuple[int, list[str], bool]]:
        joined = containerdevices.find_devices(runs, Wanted((195,), (), ())).containers
        return [(it.running.pid, [node.path for node in it.nodes], it.is_whole) for it in joined]

    monkeypatch.setattr(containerdevices, "_container", container)
    assert found() == [(30, ["/dev/30"] * 2, True), (40, ["/dev/40"], True)]
    of[40] = ("a", 0, (1, 2), False)
    assert found() == [(30, ["/dev/30", "/dev/30", "/dev/40"], False)]
    cgroups[40] = "/one/a"
    assert len(found()) == 2, "another container of this id"
    of[40] = ("a", 1000, (0,), True)
    assert len(found()) == 2


def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *paths: str) -> HostsNodes:
    """The host's nodes, with the numbers 195:0 and so on; plain files are taken for them."""
    for path in paths:
        hosts.plant(tmp_path, path, "")
    inodes = [(tmp_path / path[1:]).stat().st_ino for path in paths]
    monkeypatch.setattr(containerdevices, "is_character_device", lambda it: it.st_ino in inodes)
    monkeypatch.setattr(foreignfile, "number", lambda it: (195, inodes.index(it.st_ino)))
    folders = tuple([(path, 0, 0) for path in paths])
    dev = Mounts(f"9 1 0:6 / {tmp_path}/dev rw - devtmpfs none rw\n".encode())
    return HostsNodes(HostRoot(str(tmp_path)), dev, Wanted((195,), folders, ()))


def test_mounts_of_the_hosts_nodes_are_found_wherever_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Single ones, and those of a folder, unless another mount lies over them."""
    ours = at(tmp_path, monkeypatch, "/dev/nvidia0", "/dev/dri/card0", "/dev/dri/card1", "/dev/x")
    theirs = (
        b"1 2 0:6 /nvidia0 /opt/a\\040gpu rw - devtmpfs none rw\n3 2 0:7 / /data rw - ext4 x rw\n"
        b"4 2 0:6 /dri /mnt rw - devtmpfs none rw\n5 4 0:9 / /mnt/card1 rw - tmpfs x rw\n"
        b"6 2 0:7 /x /x rw - ext4 x rw\n7 2 0:6 /x//deleted /old rw - devtmpfs none rw\n"
    )
    assert ours.shown_by(Mounts(theirs)) == ({(195, 0): "/opt/a gpu", (195, 1): "/mnt/card0", (195, 3): "/old"}, True)
    whole = b"1 2 0:6 / /h rw - devtmpfs none rw\n"
    assert set(ours.shown_by(Mounts(whole))[0].values()) == {*("/h/nvidia0", "/h/dri/card0", "/h/dri/card1", "/h/x")}
    many = b"".join([b"%d 2 0:6 /dri /m%d rw - devtmpfs none rw\n" % (it, it) for it in range(99)])
    assert ours.shown_by(Mounts(many))[1] is False


def test_what_a_container_may_make_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One with CAP_MKNOD can have thousands of nodes, and each is asked of its device cgroup."""
    nodes = {(1, 3): "/dev/null", **{(195, minor): f"/dev/x{minor}" for minor in range(9_000)}}
    monkeypatch.setattr(containerdevices, "_inside", lambda *_: (nodes, True))
    monkeypatch.setattr(foreignfile, "mounts_of", lambda *_: Mounts(b""))
    monkeypatch.setattr(processes, "is_in_our_users", lambda *_: True)
    ours = at(tmp_path, monkeypatch)
    # That in /dev counts, and not another that is mounted elsewhere.
    monkeypatch.setattr(ours, "shown_by", lambda _: ({(195, 8_999): "/host/dev/x8999"}, True))
    found, is_whole = containerdevices.held_nodes(HostRoot(), 7, ours, Wanted((195,), (), ((195, 8_999),)))
    assert len(found) == 256 and found[195, 8_999] == "/dev/x8999" and (1, 3) not in found and not is_whole


def test_a_container_with_users_of_its_own_is_not_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it has mounted, a step into it would wait for."""
    monkeypatch.setattr(containerdevices, "ContainerRoot", None)
    monkeypatch.setattr(foreignfile, "mounts_of", lambda *_: Mounts(b"1 0 0:7 / / rw - overlay x rw\n"))
    monkeypatch.setattr(processes, "is_in_our_users", lambda *_: False)
    ours = at(tmp_path, monkeypatch)
    assert containerdevices.held_nodes(HostRoot(), 7, ours, Wanted((195,), (), ())) == ({}, True)


def test_what_may_open_all_devices_leaves_none_free_if_it_can_make_nodes(tmp_path: Path) -> None:
    divided = holders.divisions(surveyed(tmp_path))
    every = has()._replace(allowed=frozenset({(195, 0), (195, 1)}), is_open=True)
    found = holders.holders(divided, (every, has((195, 1))), frozenset())
    assert [share.name for share in found.free] == ["1"] and found.open == ()
    found = holders.holders(divided, (every._replace(makes_nodes=True), has((195, 1))), frozenset())
    assert (found.free, [share.name for share in found.open]) == ((), ["1"])
    assert [len(found.holding), len(found.privileged)] == [1, 1]


def test_who_can_only_watch_holds_no_gpu(tmp_path: Path) -> None:
    """As NVIDIA's device plugin, which has every GPU and no unified memory; of another vendor there is no such node."""
    found = surveyed(tmp_path)
    uvm = DeviceNode("/dev/nvidia-uvm", 511, 0, 0o666, 0, 0, True)
    card = DeviceNode("/dev/dri/renderD128", 226, 128, 0o666, 0, 0, True, "dri", 0)
    divided = (*holders.divisions(found), *holders.of_vendor(amd()))
    others = tuple([it for it in found.devices if it.path != uvm.path])
    assert holders.to_use(found._replace(devices=(*others, card))) == frozenset(), "without it none can compute"
    uses = holders.to_use(found._replace(devices=(*others, uvm, card)))
    assert uses == {(511, 0), (226, 128), (195, 254)} <= {*holders.what_to_find(divided, (), uses).numbers}
    plugin = has((195, 0), (195, 1), (195, 255), (226, 1))
    everyones = plugin._replace(is_open=True)
    unread = has((195, 0), (195, 1), allowed=None)
    for container, free in (
        (plugin, ["0", "1"]),
        (everyones, []),
        (unread, []),
        (plugin._replace(allowed=plugin.allowed | {(511, 0)}), []),
        (plugin._replace(allowed=plugin.allowed | {(226, 128)}), []),
    ):
        seen = holders.holders(divided, (container,), uses)
        assert [item.watches for item in seen.holding] == [bool(free)]
        assert [share.name for share in seen.free if not share.flag] == free
        assert "OCI_AMD=1" not in [share.name for share in seen.free if container is not unread]
    assert [it.watches for it in holders.holders(divided, (plugin,), frozenset()).holding] == [False]


def test_where_nobody_holds_a_gpu(program: Program, runs: HostRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who is not root sees only what is his."""
    words = ("containers", "--host-root", runs.path)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    text = program(*words)
    assert "held by no container that you may look into: 0, 1\n1 processes of other" in text
    assert "leased" not in text
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert program(*words).startswith("no container holds a device\n\nheld by no container: 0, 1\n")
    document = program.document(*words)
    assert document["containers"] == []
    assert [(item["name"], item["mig"]) for item in document["free"]] == [("0", False), ("1", False)]


def test_the_hosts_own_nodes_outside_dev_are_no_fault(
    program: Program, runs: HostRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = {(195, 0): "/host/dev/nvidia0", (195, 1): "/host/dev/nvidia1"}
    monkeypatch.setattr(containerdevices, "held_nodes", lambda *_: (nodes, True))
    monkeypatch.setattr(containerdevices, "_verdict", lambda *_: partial(containerdevices.by_rules, "c 195:0 rw\n"))
    row, *_ = program.document("containers", "--host-root", runs.path)["containers"]
    assert ([it["name"] for it in row["gpus"]], row["denied"]) == (["1"], [])


def test_what_is_had_of_a_devices_memory(program: Program, runs: HostRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = {(195, 0): "/dev/nvidia0", (195, 1): "/dev/nvidia1"}
    monkeypatch.setattr(containerdevices, "held_nodes", lambda *_: (nodes, True))
    monkeypatch.setattr(containerdevices, "_verdict", lambda *_: partial(containerdevices.by_rules, "c 195:0 rw\n"))
    # Of GPU 0 it has a node that it may not open.
    uses = (MemoryUse("00000000:07:00.0", 3 << 20, 8 << 20, 5 << 20), MemoryUse("00000000:08:00.0", 1 << 20, 0, 0))
    monkeypatch.setattr(containerdevices, "memory_uses", lambda *_: uses)
    monkeypatch.setattr(processes, "device_cgroup", lambda *_: "/sys/fs/cgroup/c")
    text = program("containers", "--host-root", runs.path)
    assert "first has 3 MiB of the memory of 0000:07:00.0, had 5 at most, may have 8\n" in text
    assert "first has 1 MiB of the memory of 0000:08:00.0\n" in text
    assert "first has the node of GPU 0, and its device cgroup denies it" in text
    assert "oci-gpu-hook doctor --container 30" in text
    row, *_ = program.document("containers", "--host-root", runs.path)["containers"]
    assert ([it["name"] for it in row["denied"]], row["denied_others"]) == (["0"], [])
    assert row["memory"][0] == {"address": "00000000:07:00.0", "used": 3 << 20, "limit": 8 << 20, "peak": 5 << 20}
