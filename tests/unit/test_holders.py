# SPDX-License-Identifier: Apache-2.0
"""Who holds which GPU: what a device cgroup answers, what a container's nodes amount to, and what is shown of it."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_gpu_hook.diagnosis import holders
from oci_gpu_hook.driver.inventory import DriverInventory, MigDevice
from oci_gpu_hook.driver.nodes import DeviceNode
from oci_gpu_hook.formats import devicefilter, devicefilter_whole, deviceverdict
from oci_gpu_hook.formats.devicerule import DeviceRule
from oci_gpu_hook.host import contained
from oci_gpu_hook.host.contained import Contained, Node
from oci_gpu_hook.host.containers import Running
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.vendors import present
from oci_gpu_hook.vendors.devices import Device, Devices
from oci_gpu_hook.vendors.host import OnHost
from oci_gpu_hook.vendors.inventory import VendorInventory
from tests.unit import hosts
from tests.unit.program import Program
from tests.unit.test_containers import stat
from tests.unit.test_devicefilter import CHAR, READ, WRITE, Request, run

# --- what a device cgroup answers


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("a *:* rwm\n", True),
        ("c 1:3 rwm\nc 195:3 rw\n", True),
        ("c 195:* rw\n", True),
        ("c *:* rwm\n", True),
        ("c 195:3 r\n", False),
        ("c *:* m\nb 195:3 rwm\n", False),
        ("c 195:30 rw\n", False),
        ("", False),
        ("nonsense\n", False),
    ],
)
def test_rules_of_v1(text: str, allowed: bool) -> None:
    assert deviceverdict.by_rules(text, 195, 3) == allowed


RULES = st.builds(
    DeviceRule,
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from([None, 1, 195]),
    st.sampled_from([None, 3, 4]),
    st.sampled_from(["rw", "rwm", "r", "m"]),
    allow=st.booleans(),
)


@given(st.lists(RULES, max_size=6))
def test_programs_of_v2_answer_as_their_rules_say(rules: list[DeviceRule]) -> None:
    """As another interpreter runs them, which is as strict as the verifier."""
    code = devicefilter_whole.program(rules)
    for major, minor in itertools.product((1, 195), (3, 4)):
        request = Request(CHAR, major, minor, READ | WRITE)
        assert deviceverdict.by_programs([code], major, minor) == bool(run(code, request))


def test_programs_of_others() -> None:
    """crun's and systemd's have comparisons of 64 bits, shifts and jumps over several instructions."""
    insn = devicefilter.insn
    # r2 = type and access; r2 >>= 16; r3 = major; if r3 != 195 goto deny; r0 = 1; exit; deny: r0 = 0; exit
    load = insn(0x61, 2, 1, 0) + insn(0x77, 2, immediate=16) + insn(0x61, 3, 1, 4)
    body = insn(0x55, 3, 0, 2, immediate=195) + insn(0xB7, 0, immediate=1) + insn(0x95)
    program = load + body + insn(0xB7, 0) + insn(0x95)
    assert deviceverdict.by_programs([program], 195, 0) is True
    assert deviceverdict.by_programs([program], 1, 0) is False
    assert deviceverdict.by_programs([], 1, 0) is True
    for other in (None, b"", insn(0x85, immediate=5), insn(0x05, offset=-1), insn(0x61, 2, 1, 12)):
        assert deviceverdict.by_programs([program, other], 195, 0) is None
        assert deviceverdict.by_programs([program, other], 1, 0) is False


# --- what nodes amount to


def surveyed(tmp_path: Path, **more: object) -> DriverInventory:
    """Two GPUs: GPU 0 has minor 1, GPU 1 has minor 0."""
    return hosts.surveyed(hosts.host(tmp_path))._replace(**more)  # type: ignore[arg-type]


def has(*numbers: tuple[int, int], allowed: bool | None = True) -> Contained:
    nodes = [Node("/dev/x", *each, allowed) for each in numbers]
    return Contained(Running("a" * 64, 7, "", "runc"), 0, tuple(nodes))


def test_a_gpu_is_held_by_its_number_whatever_its_name(tmp_path: Path) -> None:
    divided = holders.divisions(surveyed(tmp_path))
    holding, free = holders.holders(divided, (has((195, 1), (195, 255)), has((195, 255)), has()))
    assert [[share.name for share in item.held] for item in holding] == [["0"]]
    assert [share.name for share in free] == ["1"]


def test_a_node_that_may_not_be_opened_holds_nothing(tmp_path: Path) -> None:
    divided = holders.divisions(surveyed(tmp_path))
    (item,), free = holders.holders(divided, (has((195, 1), allowed=False),))
    assert ([share.name for share in item.denied], item.held) == (["0"], ())
    assert [share.name for share in free] == ["0", "1"]
    (item,), free = holders.holders(divided, (has((195, 1), allowed=None),))
    assert ([share.name for share in item.held], item.is_certain) == (["0"], False)


def test_a_mig_device_needs_its_gpu_and_both_capabilities(tmp_path: Path) -> None:
    mig = [MigDevice(0, at, f"MIG-{at}", "1g.10gb", at, 0, 10 + at, 20 + at) for at in (0, 1)]
    found = surveyed(tmp_path, mig_devices=tuple(mig))
    caps = DeviceNode("/dev/nvidia-caps/nvidia-cap10", 240, 10, 0o444, 0, 0, True, "caps")
    divided = holders.divisions(found._replace(devices=(*found.devices, caps)))
    assert [share.name for share, _ in divided] == ["0:0", "0:1", "1"]
    whole, half = has((195, 1), (240, 11), (240, 21)), has((195, 1), (240, 10))
    holding, free = holders.holders(divided, (whole, half))
    assert [[share.name for share in item.held] for item in holding] == [["0:1"]]
    assert [share.name for share in free] == ["0:0", "1"]


def amd() -> OnHost:
    """Two GPUs of one node each, one of which has a control node beside it, and a node that every request gets."""

    def node(path: str, minor: int) -> tuple[DeviceNode, str]:
        return DeviceNode(path, 226, minor, 0o666, 0, 0, True), "compute"

    devices = Devices(
        (
            Device(("0", "0000:23:00.0", "renderD128"), (node("/dev/dri/renderD128", 128),)),
            Device(("1", "card1"), (node("/dev/dri/card1", 1), node("/dev/acme1", 201))),
        ),
        (node("/dev/kfd", 7),),
        (),
        (),
    )
    return OnHost(VendorInventory("/x.json", "OCI_AMD"), devices, (), (), ())


def test_another_vendors_device_is_held_by_any_of_its_nodes() -> None:
    divided = holders.of_vendor(amd())
    containers = (has((226, 201)), has((226, 7)), has((226, 1), (226, 128)))
    holding, free = holders.holders(divided, containers)
    assert [[share.name for share in item.held] for item in holding] == [
        ["OCI_AMD=1"],
        ["OCI_AMD=0", "OCI_AMD=1"],
    ]
    assert free == ()
    holding, free = holders.holders(divided, (has((226, 1), allowed=False),))
    assert [share.name for share in holding[0].denied] == ["OCI_AMD=1"]
    assert [share.name for share in free] == ["OCI_AMD=0", "OCI_AMD=1"]
    # One node that may be opened is enough.
    mixed = has((226, 1))._replace(
        nodes=(Node("/dev/x", 226, 1, False), Node("/dev/y", 226, 201, True))
    )
    ((item,), _) = holders.holders(divided, (mixed,))
    assert ([share.name for share in item.held], item.denied) == (["OCI_AMD=1"], ())


def test_what_has_no_single_devices_is_held_as_a_whole() -> None:
    found = amd()
    divided = holders.of_vendor(found._replace(devices=found.devices._replace(devices=())))
    ((item,), free) = holders.holders(divided, (has((226, 7)),))
    assert ([share.name for share in item.held], free) == (["OCI_AMD"], ())


# --- all containers


@pytest.fixture()
def runs(tmp_path: Path) -> HostRoot:
    """Two containers, one with two processes; a service with mounts of its own; and the host's own processes."""
    root = hosts.host(tmp_path)
    hosts.plant(tmp_path, "proc/stat", "cpu 1\nbtime 1000000\n")
    for pid, start, namespace in (
        (1, 1, "h"),
        (5, 2, "s"),
        (30, 500, "a"),
        (29, 900, "a"),
        (40, 300, "b"),
    ):
        hosts.plant(tmp_path, f"proc/{pid}/stat", stat(pid, start=start))
        (tmp_path / f"proc/{pid}/ns").mkdir()
        hosts.plant(tmp_path, f"ns/{namespace}", "")
        os.link(tmp_path / f"ns/{namespace}", tmp_path / f"proc/{pid}/ns/mnt")
        if namespace in "ab":
            hosts.plant(tmp_path, f"proc/{pid}/root/dev/null", "")
        else:
            (tmp_path / f"proc/{pid}/root").symlink_to("/")
    (tmp_path / "proc/self").symlink_to("1")
    hosts.plant(tmp_path, "proc/41/stat", stat(41))
    hosts.plant(tmp_path, "run/runc/first/state.json", '{"init_process_pid": 30}')
    return root


def test_each_container_once_by_its_first_process_and_no_service(runs: HostRoot) -> None:
    found, unseen = contained.look(runs, (195,), "v2")
    assert [(item.running.pid, item.running.id) for item in found] == [(40, ""), (30, "first")]
    ticks = os.sysconf("SC_CLK_TCK")
    assert [item.since for item in found] == [1000000 + 300 // ticks, 1000000 + 500 // ticks]
    assert unseen == 1


def test_nodes_are_found_in_dev_and_where_one_is_bound(tmp_path: Path) -> None:
    line = (
        b"1 2 0:6 /nvidia0 /opt/a\\040gpu rw - devtmpfs none rw\n3 2 0:7 / /data rw - ext4 x rw\n"
    )
    hosts.plant(tmp_path, "dev/gpu0", "")
    assert list(contained._paths(HostRoot(str(tmp_path)), line)) == ["/dev/gpu0", "/opt/a gpu"]


def test_others_nodes_are_found_in_their_folders_and_wherever_they_are_bound(
    tmp_path: Path,
) -> None:
    line = b"1 2 0:6 /dri/renderD128 /opt/gpu rw - devtmpfs none rw\n3 2 0:7 /x /x rw - ext4 x rw\n"
    hosts.plant(tmp_path, "dev/dri/renderD128", "")
    others = (("/dev/dri/renderD128", 226, 128), ("/dev/dri/renderD129", 226, 129))
    found = list(contained._paths(HostRoot(str(tmp_path)), line, others))
    assert found == ["/dev/dri", "/dev/dri/renderD128", "/opt/gpu"]


def test_where_nobody_holds_a_gpu(
    program: Program, runs: HostRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who is not root sees only what is his."""
    words = ("containers", "--host-root", runs.path)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    text = program(*words)
    assert "held by no container that you may look into: 0, 1\n1 processes of other" in text
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert program(*words).startswith("no container holds a GPU\n\nheld by nobody: 0, 1\n")
    document = program.document(*words)
    assert document["containers"] == []
    assert [(item["name"], item["mig"]) for item in document["free"]] == [
        ("0", False),
        ("1", False),
    ]


def test_the_table(program: Program, runs: HostRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        contained,
        "_nodes",
        lambda *_: (Node("/dev/nvidia1", 195, 1, True), Node("/dev/x", 195, 0, False)),
    )
    text = program("containers", "--host-root", runs.path)
    assert text.splitlines()[0].split() == ["CONTAINER", "ID", "ENGINE", "RUNTIME", "GPU", "SINCE"]
    assert "first  " in text and "runc     0    1970-01-12T" in text
    assert "first has the node of GPU 1, and its device cgroup denies it" in text
    assert "oci-gpu-hook doctor --container 30" in text


def test_others_have_a_column_of_their_own(
    program: Program, runs: HostRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on a host without NVIDIA's driver."""
    (Path(runs.path) / "proc/driver/nvidia/version").unlink()
    monkeypatch.setattr(present, "look", lambda root: present.Present((amd(),), ()))
    nodes = (Node("/dev/x", 226, 128, True), Node("/dev/card1", 226, 1, False))
    monkeypatch.setattr(contained, "_nodes", lambda *_: nodes)
    heading, *lines = program("containers", "--host-root", runs.path).splitlines()
    assert heading.split()[4:] == ["GPU", "OTHERS", "SINCE"]
    assert "-    OCI_AMD=0  1970-01-12T" in lines[1]
    assert lines[3] == "held by nobody: OCI_AMD=1"
    assert "first has the node of OCI_AMD=1, and its device cgroup denies it" in lines[5]
    document = program.document("containers", "--host-root", runs.path)
    row = document["containers"][1]
    held = {"flag": "OCI_AMD", "name": "OCI_AMD=0", "names": ["0", "0000:23:00.0", "renderD128"]}
    assert (row["gpus"], row["others"], row["denied"]) == ([], [held], [])
    assert [item["name"] for item in row["denied_others"]] == ["OCI_AMD=1"]
    assert (document["free"], [item["name"] for item in document["free_others"]]) == (
        [],
        ["OCI_AMD=1"],
    )
