# SPDX-License-Identifier: Apache-2.0
"""Requests for any devices: the words, the choice among what has room, and leases that are valid or void."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oci_gpu_hook.container.devicecgroup import DeviceCgroup
from oci_gpu_hook.driver import proc, survey
from oci_gpu_hook.driver.inventory import MigDevice
from oci_gpu_hook.errors import ConfigError, DriverError, RequestError
from oci_gpu_hook.host import leases, statefile
from oci_gpu_hook.host.leases import Lease, Leases
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.gpus import holdercount
from oci_gpu_hook.planning import placement
from oci_gpu_hook.planning.placement import Candidate
from oci_gpu_hook.planning.plan import Container, Held, Provision
from oci_gpu_hook.request import parse, selectors
from oci_gpu_hook.request.selectors import KnownVendor, Request
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.request.sources import Inputs
from tests.unit import hosts

COUNTED = Settings(gpu_holders=1)


def asked(value: str, settings: Settings = COUNTED) -> tuple[str, ...]:
    request, _ = parse.parse_request(Inputs({"NVIDIA_VISIBLE_DEVICES": value}), settings)
    assert request is not None
    return request.words()


@pytest.mark.parametrize(
    ("value", "canonical", "number", "profile"),
    [
        ("any", "any:1", 1, ""),
        (" ANY ", "any:1", 1, ""),
        ("any:2", "any:2", 2, ""),
        ("any:1g.10gb", "any:1:1g.10gb", 1, "1g.10gb"),
        ("any:2:1c.2g.20gb", "any:2:1c.2g.20gb", 2, "1c.2g.20gb"),
        ("any:1g.10gb+me", "any:1:1g.10gb+me", 1, "1g.10gb+me"),
        ("any:2:2g.48gb-me", "any:2:2g.48gb-me", 2, "2g.48gb-me"),
    ],
)
def test_the_words(value: str, canonical: str, number: int, profile: str) -> None:
    assert asked(value) == (canonical,)
    found = selectors.any_of((canonical,), "here", COUNTED)
    assert found == (number, profile)


@pytest.mark.parametrize(
    "value",
    [
        *("any:0", "any:-1", "any:1025", "any,0", "0,any:2", "any,any"),
        *("any:", "any:2:", "any:2:a b", "any:2:1g:3", "any:2/3"),
    ],
)
def test_what_is_no_number_of_devices_is_refused(value: str) -> None:
    with pytest.raises(RequestError, match="is not a number of devices to choose"):
        asked(value)


def test_without_holders_nothing_is_chosen() -> None:
    with pytest.raises(RequestError, match="gpu-holders is not set"):
        asked("any", Settings())
    assert asked("all", Settings()) == ("all",)
    assert asked("any:2,all") == ("all",)


def test_a_vendors_flag_takes_the_same_words() -> None:
    known = (KnownVendor("OCI_AMD", "amd.com/gpu", "amd.conf"),)
    request, _ = parse.parse_request(Inputs({"OCI_AMD": "any:2"}), COUNTED, known)
    assert request is not None
    assert request.vendors[0].words() == ("any:2",)
    with pytest.raises(RequestError, match="OCI_AMD"):
        parse.parse_request(Inputs({"OCI_AMD": "any:0"}), COUNTED, known)


def candidates(*holders: int, links: str = "", numa: str = "") -> list[Candidate]:
    """GPUs with so many holders; links: a letter for each, of which equal ones have NVLink; numa: their nodes."""
    links = links or "abcdefgh"
    return [
        Candidate(
            Held(str(at), str(at)),
            number,
            tuple(str(other) for other in range(len(holders)) if links[other] == links[at] and other != at),
            int(numa[at]) if numa else -1,
        )
        for at, number in enumerate(holders)
    ]


def chosen(number: int, *holders: int, links: str = "", numa: str = "") -> str:
    return "".join([it.held.name for it in placement.choose(candidates(*holders, links=links, numa=numa), number)])


def test_the_fewest_holders_come_first_then_the_lowest_number() -> None:
    assert chosen(1, 1, 0, 0, 1) == "1"
    assert chosen(2, 1, 0, 2, 1) == "01"
    assert chosen(3, 1, 1, 1) == "012"


def test_several_are_neighbours_by_nvlink_before_they_are_of_one_numa_node() -> None:
    assert chosen(2, 0, 0, 0, 0, links="abab", numa="0011") == "02"
    assert chosen(2, 0, 0, 0, 0, numa="0110") == "03"
    assert chosen(2, 0, 0, 0, 0, links="abcb") == "13"
    assert chosen(3, 0, 1, 1, 1, links="acdc", numa="0111") == "013"
    assert chosen(4, *[0] * 8, links="abababab") == "0246"


def test_what_is_near_is_read_from_the_saved_inventory_and_sysfs(tmp_path: Path) -> None:
    root = hosts.host(tmp_path, gpus=4)
    root.remember = True
    found = survey.survey(root)
    first, second, third, last = found.gpus
    hosts.plant(tmp_path, f"sys/bus/pci/devices/{third.proc}/numa_node", "1\n")
    linked, last = first._replace(brand="NVIDIA", peers=(third.bus_id,)), last._replace(in_mig_mode=True)
    survey.save(root, proc.stamp(root, "/"), found._replace(gpus=(linked, second, third, last)))
    gpus = placement.gpus(root, Settings(), selectors.AnyOf(2))
    assert [(it.peers, it.node) for it in gpus] == [((third.bus_id,), -1), ((), -1), ((), 1)]
    wanted = tmp_path / f"{statefile.FOLDER}/{statefile.REFRESH_WANTED}".lstrip("/")
    assert wanted.exists()
    survey.save(root, proc.stamp(root, "/"), found._replace(gpus=(last,)))
    with pytest.raises(DriverError, match="each GPU is in MIG mode and has no MIG device"):
        placement.gpus(root, Settings(), selectors.AnyOf(1))


def test_a_mig_device_that_may_be_another_by_now_is_not_chosen_by_its_profile(tmp_path: Path) -> None:
    """Only the time of its folder differs: it was made again, or is shown once more."""
    root = hosts.host(tmp_path)
    caps = "proc/driver/nvidia/capabilities/gpu0/mig/gi1"
    for folder in (caps, f"{caps}/ci0"):
        hosts.plant(tmp_path, f"{folder}/access", "DeviceFileMinor: 10\n")
    (device,) = (found := survey.survey(root)).mig_devices
    named = found._replace(mig_devices=(device._replace(number=0, uuid="MIG-0", profile="1g.10gb"),))
    survey.save(root, proc.stamp(root, "/"), named)
    asked = selectors.AnyOf(1, "1g.10gb")
    assert [it.held.name for it in placement.gpus(root, Settings(), asked)] == ["1:0"]
    os.utime(tmp_path / f"{caps}/ci0", (1, 1))
    with pytest.raises(DriverError, match="profiles are not known"):
        placement.gpus(root, Settings(), asked)


@pytest.fixture
def host(tmp_path: Path) -> HostRoot:
    (tmp_path / "run").mkdir()
    (tmp_path / "proc/sys/kernel/random").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("a-boot\n")
    return HostRoot(str(tmp_path), remember=True)


def lease_of(pid: int, cgroup: str = "", *devices: str) -> Lease:
    stat = Path(f"/proc/{pid}/stat").read_bytes()
    return leases.lease_of(f"c{pid}", pid, stat, cgroup, 1)._replace(devices=devices)


def test_leases_are_kept_in_one_file_and_go_with_the_boot(host: HostRoot, tmp_path: Path) -> None:
    mine = lease_of(os.getpid(), "", "a", "b")
    with Leases(host, is_written=True) as held:
        assert held == []
        leases.write(host, [mine])
    assert leases.read_leases(host) == [mine]
    assert oct((tmp_path / "run/oci-gpu-hook/leases.lock").stat().st_mode)[-3:] == "600"
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("another\n")
    assert leases.read_leases(host) == []
    # Another user could have written it.
    (tmp_path / "run/oci-gpu-hook/leases").chmod(0o666)
    with pytest.raises(ConfigError, match="others than root"):
        leases.read_leases(host)


@pytest.mark.parametrize("content", [b"", b"oci-gpu-hook leases 1\n", leases.HEADING + b"\1\0\0\0N", bytes(2 << 20)])
def test_damaged_leases_stop_who_would_be_counted(host: HostRoot, tmp_path: Path, content: bytes) -> None:
    """They are not taken for none: two holders would be on one GPU."""
    (tmp_path / "run/oci-gpu-hook").mkdir()
    (tmp_path / "run/oci-gpu-hook/leases").write_bytes(content)
    with pytest.raises(ConfigError, match="damaged, of another version of ours"), Leases(host, is_written=True):
        pass


def test_a_process_holds_until_it_ends_and_no_other_with_its_number_does() -> None:
    child = subprocess.Popen(["/bin/sleep", "1000"])
    held = lease_of(child.pid)
    assert held.is_valid() and held.is_of(held._replace(id="another", devices=()))
    assert not held.is_of(held._replace(start=held.start + 1)) and not held.is_of(held._replace(pid=1))
    assert not held._replace(start=held.start + 1).is_valid()
    child.kill()
    # A zombie has ended, if its status was not asked for.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not held.is_valid()
    assert leases.without_void([held]) == [held]
    child.wait()
    assert leases.without_void([held]) == []


def test_a_process_that_was_moved_out_of_its_cgroup_still_holds(tmp_path: Path) -> None:
    """And a cgroup that has the path of the container's, and is another, proves nothing."""
    mine = lease_of(os.getpid())
    assert lease_of(os.getpid(), "/nowhere").is_valid()
    assert not mine._replace(cgroup=str(tmp_path), inode=1, start=mine.start + 1).is_valid()
    (tmp_path / "cgroup.events").write_text("populated 1\n")
    there = mine._replace(cgroup=str(tmp_path), inode=tmp_path.stat().st_ino, start=mine.start + 1)
    assert there.is_valid()
    assert not there._replace(inode=1).is_valid()
    # What it has left there holds on when it has ended, and no later start removes that.
    ended = there._replace(pid=1 << 22)
    assert leases.without_void([ended, ended._replace(inode=1)]) == [ended]


def test_void_leases_are_removed_and_no_more_than_a_hundred_at_a_time() -> None:
    gone = [Lease("x", 2**22 + at, 1, "", 0, 1, 1, ("a",)) for at in range(150)]
    here = lease_of(os.getpid(), "", "a")
    assert len(leases.without_void([*gone, here])) == 51
    assert leases.without_void([*gone[:100], here]) == [here]


def test_who_cannot_write_leases_is_told_so(host: HostRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(statefile, "open_folder", refused)
    with pytest.raises(ConfigError, match="leases cannot be written") as caught, Leases(host, is_written=True):
        pass
    assert "rootless" in caught.value.hint


GONE = Lease("gone", 2**22 + 1, 1, "", 0, 1, 1, ("0",))


def room(others: list[Lease], most: int) -> bool:
    return leases.has_room(placement._holders(Held("0", "0"), others, most), most)


def test_void_leases_make_room_and_those_of_other_devices_take_none() -> None:
    mine = lease_of(os.getpid(), "", "0")
    assert not room([mine, GONE], 1)
    assert room([GONE], 1)
    assert room([mine._replace(devices=("1",))], 1)
    shared = mine._replace(most=4)
    assert room([GONE._replace(most=4), shared, shared], 3)
    assert not room([shared, shared, shared], 3)


def test_who_holds_a_device_is_told_and_of_many_the_first_three() -> None:
    mine = lease_of(os.getpid(), "", "0")
    told = placement._full(Held("0", "0"), [mine])
    assert re.fullmatch(rf"GPU 0 is held by c{os.getpid()} since 20\d\d-\S+ \d\d:\d\d", told)
    told = placement._full(Held("0", "0"), [mine._replace(id=f"c{number}") for number in range(4)])
    assert re.search(r"held by c0 since \S+ \S+, c1 since \S+ \S+, c2 since \S+ \S+ and 1 more$", told)


def picked(others: list[Lease], unhealthy: dict[str, str] | None = None, number: int = 1, most: int = 1) -> str:
    asked = selectors.AnyOf(number)
    chosen = placement._pick(asked, candidates(0, 0, 0), others, most, unhealthy or {}, None)
    return "".join([it.held.name for it in chosen])


def test_what_is_full_or_not_healthy_is_not_chosen() -> None:
    mine = lease_of(os.getpid(), "", "0")
    assert picked([]) == "0"
    assert picked([GONE]) == "0"
    assert picked([mine]) == "1"
    assert picked([mine._replace(most=2)], most=2, number=3) == "012"
    assert picked([mine], {"1": "XID 79"}) == "2"
    # Who is not counted is chosen for all the same.
    assert picked([mine], {"1": "XID 79"}, most=0, number=2) == "02"
    with pytest.raises(RequestError, match=r"3 devices are asked for, and 1 has room: GPU 0 is held .*; GPU 1 is not"):
        picked([mine], {"1": "XID 79"}, number=3)
    with pytest.raises(RequestError, match="4 devices are asked for, and this host has 3"):
        picked([], number=4)


@pytest.mark.parametrize("choice", [selectors.AnyOf(1), None])
def test_a_watcher_of_nvidias_gpus_holds_another_vendors_device(
    host: HostRoot, monkeypatch: pytest.MonkeyPatch, choice: selectors.AnyOf | None
) -> None:
    own: Any = SimpleNamespace(pid=os.getpid(), is_caller=False, read=lambda _: Path("/proc/self/stat").read_bytes())
    device = Held("OCI_X=0", "0")
    monkeypatch.setattr(placement, "_of_vendor", lambda *_: [Candidate(device)])
    part = Request("env", () if choice else ("0",), any_of=choice, flag="OCI_X")
    container, settings = Container("c", "/b", "/r", DeviceCgroup()), COUNTED._replace(count_watchers=False)
    start = placement.Start(host, settings, container, own, None, restores=False)
    given = Provision(holds=(Held("bus", "0"), device))
    start.given(Request("env", ("0",), ("utility",), vendors=(part,)), lambda _: given)
    assert [lease.devices for lease in leases.read_leases(host)] == [("OCI_X=0",)]


def test_what_sections_alone_count_is_shown(tmp_path: Path) -> None:
    """And a GPU that was leased as a whole, and is divided; but what ``any`` would not choose has no room."""
    found = survey.survey(root := hosts.host(tmp_path, gpus=4))
    buses = [gpu.bus_id for gpu in found.gpus]
    part = MigDevice(3, 0, "MIG-0", "1g.10gb", 1, 0, 10, 11)
    found = found._replace(gpus=(*found.gpus[:2], found.gpus[2]._replace(in_mig_mode=True), found.gpus[3]))
    mine = lease_of(os.getpid(), "", buses[0], buses[3])
    leases.write(root, [mine, lease_of(os.getppid(), "", buses[1], "OCI_X=0")._replace(most=2)])
    counted = holdercount.count_holders(root, found._replace(mig_devices=(part,)), 0)
    assert [(it.title, len(it.leases), it.has_room) for it in counted] == [
        *[("GPU 0", 1, False), ("GPU 1", 1, True), ("GPU 2", 0, False), ("MIG device 3:0", 0, True)],
        *[(f"GPU {buses[3]}", 1, False), ("OCI_X device 0", 1, True)],
    ]
    (tmp_path / f"{statefile.FOLDER}/{leases.FILE}".lstrip("/")).write_text("damaged")
    assert [len(it.leases) for it in holdercount.count_holders(root, found, 0)] == [0] * 4
    with pytest.raises(ConfigError, match="is damaged"):
        holdercount.count_holders(root, found, 1)
