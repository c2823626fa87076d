# SPDX-License-Identifier: Apache-2.0
"""A container's limit of device memory: the words, the setting, the regions, who has room, and what is written.

The cgroup here is a folder of files whose writes answer as the kernel's do; `make test-memory` has a real kernel.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from oci_gpu_hook import operations
from oci_gpu_hook.asking import Options, Question
from oci_gpu_hook.changes import cgroup_v1, dmem
from oci_gpu_hook.changes.cgroupfiles import CgroupFiles
from oci_gpu_hook.changes.tree import Undo
from oci_gpu_hook.cli import containers, plantext
from oci_gpu_hook.container import devicecgroup, memoryregion
from oci_gpu_hook.container.devicecgroup import DeviceCgroup
from oci_gpu_hook.container.rootfs import Rootfs
from oci_gpu_hook.driver.nodes import DeviceNode
from oci_gpu_hook.errors import ConfigError, DriverError, RequestError
from oci_gpu_hook.formats.devicerule import DeviceRule
from oci_gpu_hook.host import leases
from oci_gpu_hook.host.leases import Lease
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel.descriptors import closing
from oci_gpu_hook.node.diagnosis import systemcheck
from oci_gpu_hook.node.engines import containerdevices
from oci_gpu_hook.node.gpus.holdercount import Counted
from oci_gpu_hook.node.machine import kernelconfig, libselinux
from oci_gpu_hook.operations import LimitMemory, OpenCgroup
from oci_gpu_hook.planning import decide, drivers, memoryshare, placement, vendorshare
from oci_gpu_hook.planning.memoryshare import Memory
from oci_gpu_hook.planning.placement import Candidate
from oci_gpu_hook.planning.plan import Held, Plan, Provision
from oci_gpu_hook.request import memory, settingsfile
from oci_gpu_hook.request.bundle import read_bundle
from oci_gpu_hook.request.memory import MIB, SHARE
from oci_gpu_hook.request.selectors import AnyOf, Request
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.request.state import State
from oci_gpu_hook.vendors.vendorhost import VendorDevice, VendorState
from oci_gpu_hook.vendors.vendorinventory import Vendor
from tests.unit import hosts
from tests.unit.containers import DEBIAN, write_bundle

LIMIT, REQUEST = "NVIDIA_GPU_MEMORY_LIMIT", "NVIDIA_GPU_MEMORY_REQUEST"
GIB = 1 << 30
ADDRESS, OTHER = "00000000:02:00.0", "00000000:03:00.0"
REGION, TILES = f"nvidia/{ADDRESS}/vidmem", ("drm/0000:03:00.0/vram0", "drm/0000:03:00.0/vram1")
OF_TILES = {OTHER: dict.fromkeys(TILES, 8 * GIB)}
REGIONS = {ADDRESS: {REGION: 16 * GIB}, **OF_TILES}
V1 = DeviceCgroup("v1", "/d", "/d")
CGROUP = DeviceCgroup("v2", "/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a/b")
GPU = Held(ADDRESS, "0", ADDRESS)
NODE = DeviceNode("/dev/x", 240, 0, 0o666, 0, 0, True)
ONE, MIG = Provision(holds=(GPU,)), Provision(holds=(Held(f"{ADDRESS}/1/0", "0:0"),))
HOST = HostRoot("/")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [({}, (0, 0)), ({LIMIT: "4096"}, (4 * GIB, 0)), ({REQUEST: "0001"}, (0, MIB))]
    + [({LIMIT: "2", REQUEST: "2"}, (2 * MIB, 2 * MIB)), ({LIMIT: str((1 << 44) - 1)}, ((1 << 64) - MIB, 0))],
)
def test_the_words_are_whole_mebibytes(environment: dict[str, str], expected: tuple[int, int]) -> None:
    assert memory.parse_memory(environment) == expected


@pytest.mark.parametrize("variable", [LIMIT, REQUEST])
@pytest.mark.parametrize(
    "text", ["", "0", "-1", "+1", "4GB", "4G", "1.5", " 1", "1\0", "1\n", "٣", "0x10", str(1 << 44), "9" * 5000]
)
def test_what_is_no_number_of_them_is_refused(variable: str, text: str) -> None:
    with pytest.raises(RequestError, match=f"{variable} is .* not a number of MiB") as caught:
        memory.parse_memory({variable: text})
    assert str(caught.value).isascii()
    assert len(str(caught.value)) < 400


def test_nobody_needs_more_than_the_limit() -> None:
    with pytest.raises(RequestError, match=f"{REQUEST} is 2, which is more than {LIMIT}, 1"):
        memory.parse_memory({LIMIT: "1", REQUEST: "2"})


def test_regions_are_told_by_the_number_of_their_address(tmp_path: Path) -> None:
    """Among ten thousand lines that are none of a PCI device's own memory."""
    others = ["drm/0000:04:00.0/gtt 5", "drm/0000:04:00.0/vram", "drm/0000:04:00.0/vram 18446744073709551616"]
    others += ["drm/0000:05:00.0/vram 0", "drm/card0/vram 5", "a b/0000:04:00.0/vram 5", "0000:04:00.0 5", "", " /"]
    lines = [f"nvidia/{ADDRESS}/vidmem {16 * GIB}", *[f"{name} {8 * GIB}" for name in TILES]]
    folder = tmp_path / "sys/fs/cgroup"
    folder.mkdir(parents=True)
    with HostRoot(str(tmp_path)) as host:
        assert memoryregion.read_regions(host) is None
        (folder / "dmem.capacity").write_text("\n".join([*others * 1000, *lines, "drm/10000:E1:00.0/vram 1", ""]))
        found = {**REGIONS, "00010000:e1:00.0": {"drm/10000:E1:00.0/vram": 1}}
        assert memoryregion.read_regions(host) == found
        # Of a device with a region that is empty, and what says no size: one of no end, and a line that is cut off.
        sizes = ("vram0 0", "vram1 5", "vram2 max", "vram3 1")
        (folder / "dmem.capacity").write_text("\n".join([f"drm/0000:06:00.0/{size}" for size in sizes]))
        assert memoryregion.read_regions(host) == {"00000000:06:00.0": {"drm/0000:06:00.0/vram1": 5}}


def test_sizes_of_the_setting() -> None:
    kind = settingsfile.KINDS["gpu-memory"]
    words = ("off", "share", "4096M", "4G")
    assert [memory.ceiling(text) for text in words] == [0, SHARE, 4 * GIB, 4 * GIB]
    assert [kind.read(text) for text in words] == [*words]
    for text in ("", "0M", "4", "G", "-1G", "4K", "4GB", "1.5G", "Share", "9" * 30 + "G"):
        assert kind.read(text) is None, text


@pytest.mark.parametrize(
    ("values", "expected"),
    [(("off", "off"), ["off"]), (("off", "4G", "2048M", "16G"), ["2048M"]), (("share", "off"), ["share"])]
    + [(("2G", "share", "1G"), ["share", "1G"])],
)
def test_of_sections_that_are_not_known_the_smallest_holds(values: tuple[str, ...], expected: list[str]) -> None:
    """A share is neither more nor less than a size: then the container is refused."""
    assert settingsfile._strictest("gpu_memory", list(values)) == expected


def made(limit: int = 0, needed: int = 0, ceiling: int = 0, holders: int = 0, regions: Any = REGIONS) -> Memory:
    return Memory(limit, needed, ceiling, holders, regions, CGROUP, HOST)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (made(), (None, 0)),
        (made(GIB), (GIB, GIB)),
        (made(0, GIB), (None, GIB)),
        (made(2 * GIB, 0, GIB), (GIB, GIB)),
        (made(GIB, 0, 2 * GIB), (GIB, GIB)),
        (made(0, 0, 24 * GIB, 8), (16 * GIB, 16 * GIB)),
        # What it may take by a setting counts, whatever it says.
        (made(0, MIB, 8 * GIB), (8 * GIB, 8 * GIB)),
        (made(0, 0, SHARE, 1 << 20), (0, 0)),
        (made(0, 0, SHARE, 4), (4 * GIB, 4 * GIB)),
        (made(GIB, 0, SHARE, 4), (GIB, GIB)),
        (made(0, 0, SHARE, 3), (5461 * MIB, 5461 * MIB)),
    ],
)
def test_a_word_lowers_what_is_allowed_and_never_raises_it(found: Memory, expected: tuple[int | None, int]) -> None:
    assert (found.limit_of(GPU), found.need_of(GPU)) == expected


def limits(found: Memory, provision: Provision = ONE) -> dict[str, int]:
    operations: Any = found.limited(provision).operations
    return dict([pair for it in operations if not it.library for pair in it.limits])


NVML = "/usr/lib/libnvidia-ml.so.615.71.09"


def by_nvml(limit: int, needed: int = 0, ceiling: int = 0, holders: int = 0, regions: Any = None) -> Memory:
    """Where NVIDIA's driver may hold it to what the kernel cannot."""
    return made(limit, needed, ceiling, holders, regions)._replace(library=NVML)


def of_vendor(*names: str) -> Provision:
    """One device of another vendor's, with these names."""
    nodes = ((NODE._replace(path=f"/dev/{names[-1]}"), "g"),)
    state = VendorState(Vendor("x.conf", "OCI_X"), (VendorDevice(names, nodes),))
    return Provision(vendors=(state,), holds=(vendorshare.held("OCI_X", state.devices[0]),))


def test_for_who_is_not_counted_nothing_is_reserved(tmp_path: Path) -> None:
    asked = Request("env", ("0",), ("utility",), memory_request=GIB)
    for counts, needed in ((True, GIB), (False, 0)):
        settings = Settings(gpu_holders=1, count_watchers=counts)
        found = memoryshare.memory_of(asked, settings, HostRoot(str(tmp_path)), DeviceCgroup())
        assert found.needed == needed


def test_for_other_vendors_devices_no_driver_of_nvidias_is_needed(tmp_path: Path) -> None:
    part = Request("env", ("0",), flag="OCI_X")
    with HostRoot(str(tmp_path)) as host:
        for asked in (Request("", (), vendors=(part,)), Request("env", ("0",))):
            with pytest.raises(DriverError) if asked.devices else contextlib.nullcontext():
                assert memoryshare.memory_of(asked, BY_NVML, host, CGROUP).library == ""


def test_each_device_is_limited_and_one_of_several_regions_in_all_of_them_together() -> None:
    assert limits(made(GIB)) == {REGION: GIB}
    assert limits(made(GIB), of_vendor("0", "0000:03:00.0")) == dict.fromkeys(TILES, GIB // 2)
    both = of_vendor("0", "0000:03:00.0")
    both = both._replace(holds=(*ONE.holds, *both.holds))
    assert sum(limits(made(0, 0, SHARE, 4), both).values()) == 8 * GIB


@pytest.mark.parametrize(
    ("found", "provision", "why"),
    [
        (made(GIB)._replace(cgroup=V1), ONE, "GPU 0 cannot be .*: this host has cgroup v1"),
        (made(GIB)._replace(cgroup=DeviceCgroup(reason="a user's")), ONE, "cannot be limited: a user's"),
        (made(GIB)._replace(cgroup=DeviceCgroup("v2", "/o/c", "/o/c")), ONE, "is not below /sys/fs/cgroup"),
        (made(GIB)._replace(regions=None), ONE, "this kernel has no dmem controller"),
        (made(GIB, 0, 0, 0, OF_TILES), ONE, "its driver has not told"),
        (made(GIB), MIG, "MIG device 0:0 .* memory of its own"),
        (made(GIB), Provision(holds=(Held("all", "all"),)), "its driver has not told"),
        (made(GIB), of_vendor("0"), "OCI_X device 0 cannot be limited: its driver has not told"),
        (made(17 * GIB), ONE, "17408 MiB are more than its 16384"),
        (made(0, 5 * GIB, SHARE, 4), ONE, "5120 MiB are needed, and it may take 4096"),
        (made(0, 0, SHARE, 1 << 20), ONE, "1048576 holders have less than 1 MiB each of its 16384"),
        (by_nvml(0, 0, SHARE, 4), ONE, "need the kernel's dmem controller"),
        (by_nvml(GIB, GIB, 0, 2), ONE, "MEMORY_REQUEST need the kernel's dmem controller"),
        (made(0, GIB, 0, 2, None), ONE, "no memory of GPU 0 can be reserved: this kernel has no dmem controller"),
        (made(0, GIB, 0, 2), of_vendor("0"), "no memory of OCI_X device 0 can be reserved: its driver has not told"),
        (by_nvml(0, GIB, 0, 2), ONE, "no memory of GPU 0 can be reserved"),
        (made(0, 17 * GIB, 0, 2), ONE, "no memory of GPU 0 can be reserved: 17408 MiB are more than its 16384"),
        (by_nvml(GIB), MIG, "MIG device 0:0 .* memory of its own"),
        (by_nvml(GIB), of_vendor("0"), "OCI_X device 0 cannot be limited: this kernel has no dmem controller"),
    ],
)
def test_what_cannot_be_held_is_refused(found: Memory, provision: Provision, why: str) -> None:
    with pytest.raises(RequestError, match=why) as caught:
        limits(found, provision)
    assert "gpu-memory" in caught.value.hint or "oci-gpu-hook.conf" in caught.value.hint


@pytest.mark.parametrize("regions", [None, OF_TILES])
def test_nvml_limits_the_gpus_that_the_kernel_does_not_count(regions: Any) -> None:
    found = by_nvml(GIB, 0, 2 * GIB, 0, regions)

    def told(found: Memory) -> list[tuple[object, str]]:
        operations: Any = found.limited(both).operations
        return [(it.limits, it.library) for it in operations]

    both = ONE._replace(holds=(*ONE.holds, Held(OTHER, "1", OTHER)))
    by_kernel, rest = (tuple([(name, GIB // 2) for name in TILES]), ""), ((ADDRESS, GIB),)
    assert told(found) == ([by_kernel, (rest, NVML)] if regions else [((*rest, (OTHER, GIB)), NVML)])
    assert (((ADDRESS, 2 * GIB),), NVML) in told(found._replace(limit=0, regions=OF_TILES))
    assert [library for _, library in told(found._replace(regions=REGIONS))] == [""]


def test_a_network_adapter_has_no_memory_to_limit(tmp_path: Path) -> None:
    adapter = of_vendor("0", "0000:05:00.0")
    with HostRoot(str(tmp_path)) as host:
        for kind, is_limited in (("0x020700", False), ("0x030000", True), ("", True)):
            hosts.plant(tmp_path, "sys/bus/pci/devices/0000:05:00.0/class", f"{kind}\n")
            with pytest.raises(RequestError) if is_limited else contextlib.nullcontext():
                found = made(GIB, GIB, 0, 2)._replace(host=host)
                assert found.limited(adapter).operations == ()
                assert "limits nothing: the container has no device with memory" in found.limited(adapter).notes[0]
                (held,) = adapter.holds
                assert placement._pick(AnyOf(1), [Candidate(held)], [], 2, {}, found) == [Candidate(held)]
                assert found.need_of(held) == 0
                (judged,) = systemcheck.memory(host, settingsfile.parse_text(OURS, "x"), Settings(), [held])
                assert "there is no GPU" in judged.seen


def test_a_need_alone_limits_nothing_and_is_refused_nowhere() -> None:
    """Not on cgroup v1, and not of a MIG device, among holders either."""
    assert limits(made(0, GIB)) == {}
    assert limits(made(0, GIB)._replace(cgroup=V1)) == {}
    assert limits(made(0, GIB, 0, 2), MIG) == {}


def test_nodes_of_no_single_device_cannot_be_limited() -> None:
    """As a vendor's file gives them without ``each``, or an old CDI spec that knows a part of a device's nodes."""
    given = Provision(vendors=(VendorState(Vendor("x.conf", "OCI_X"), common=((NODE, "g"),)),), devices=((240, 0),))
    for found in (made(GIB), made(0, 0, GIB)):
        with pytest.raises(RequestError, match="the nodes of OCI_X lead to cannot be limited"):
            limits(found, given)
        # As of OCI_X=none, the driver's files without a device.
        assert limits(found, given._replace(devices=())) == {}
    assert limits(made(0, GIB), given) == {}


def test_less_than_was_asked_for_is_told() -> None:
    assert made(GIB).limited(ONE).notes == made(0, 0, GIB).limited(ONE).notes == ()
    (note,) = made(2 * GIB, 0, GIB).limited(ONE).notes
    assert note == "NVIDIA_GPU_MEMORY_LIMIT is 2048, and gpu-memory allows 1024 MiB"


class Kernel:
    """A cgroup tree whose files take what the kernel's take: root/a/b/c, of which `enabled` have the controller.

    fails: the number of the write that fails with EIO, 0 for none.
    """

    def __init__(self, root: Path, *, enabled: int, fails: int = 0) -> None:
        self.root, self.fails, self.writes = root, fails, list[str]()
        self.paths = [root, root / "a", root / "a/b", root / "a/b/c"]
        (root / "a/b/c").mkdir(parents=True)
        for number, path in enumerate(self.paths):
            (path / "cgroup.subtree_control").write_text("cpu dmem\n" if number < enabled else "cpu\n")
            if 0 < number <= enabled:
                self._offer(path)

    def _offer(self, path: Path) -> None:
        (path / "dmem.max").write_text(f"{REGION} max\n{TILES[0]} max\n")

    def write(self, path: str, name: str, line: str) -> None:
        at = self.paths.index(Path(path))
        self.writes.append(f"{'rabc'[at]} {line}")
        if len(self.writes) == self.fails:
            raise OSError(errno.EIO, "fails")
        file = self.paths[at] / name
        if name == "cgroup.subtree_control":
            assert line == "+dmem"
            if at and "dmem" not in (self.paths[at - 1] / name).read_text():
                raise OSError(errno.ENOENT, name)
            file.write_text("cpu dmem\n")
            self._offer(self.paths[at + 1])
            return
        region, value = line.split(" ")
        limits = dict([it.split(" ") for it in file.read_text().splitlines()])
        if region not in limits:
            raise OSError(errno.EINVAL, name)
        file.write_text("".join([f"{it} {value if it == region else was}\n" for it, was in limits.items()]))

    def state(self) -> list[str]:
        return [path.read_text() for path in sorted(self.root.rglob("dmem.max"))]

    def run(self, own: int = 1) -> Undo:
        """Limit both regions in the lowest `own` cgroups."""
        folders, undo = [str(path) for path in self.paths], Undo()
        try:
            dmem.limit(folders[:-own], folders[-own:], ((REGION, GIB), (TILES[0], MIB)), undo)
        except OSError:
            undo.take_back()
            raise
        return undo


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Kernel]:
    def make(**more: Any) -> Kernel:
        made = Kernel(tmp_path / f"r{len(os.listdir(tmp_path))}", **more)

        def write(cgroup: CgroupFiles, name: str, line: str) -> None:
            made.write(cgroup.path, name, line)

        monkeypatch.setattr(CgroupFiles, "write", write)
        return made

    return make


def test_the_controller_is_enabled_from_above_and_each_region_written_alone(kernel: Callable[..., Kernel]) -> None:
    found = kernel(enabled=1)
    found.run()
    assert found.writes == ["a +dmem", "b +dmem", f"c {REGION} {GIB}", f"c {TILES[0]} {MIB}"]
    # crun has the process in a cgroup below the container's own.
    found = kernel(enabled=3)
    found.run(own=2)
    lines = [f"{REGION} {GIB}", f"{TILES[0]} {MIB}"]
    assert found.writes == [f"{level} {line}" for level in "bc" for line in lines]
    # Another hook of the same start has nothing to do.
    count = len(found.writes)
    found.run(own=2)
    assert len(found.writes) == count


def test_a_lower_limit_of_the_containers_own_stays(kernel: Callable[..., Kernel]) -> None:
    """Of config.json: linux.resources.unified."""
    found = kernel(enabled=3)
    (found.paths[3] / "dmem.max").write_text(f"{REGION} 4096\n{TILES[0]} 2097152\n")
    found.run()
    assert found.writes == [f"c {TILES[0]} {MIB}"]


def test_what_fails_at_any_step_leaves_the_limits_as_they_were(kernel: Callable[..., Kernel]) -> None:
    for enabled, fails, most in ((1, 1, "max"), (1, 2, "max"), (1, 3, "max"), (1, 4, "max"), (3, 2, str(2 * GIB))):
        found = kernel(enabled=enabled, fails=fails)
        before = f"{REGION} {most}\n{TILES[0]} max\n"
        for path in found.root.rglob("dmem.max"):
            path.write_text(before)
        with pytest.raises(OSError, match="fails"):
            found.run()
        assert {*found.state()} == {before}


def test_what_a_container_has_is_read_by_device(tmp_path: Path) -> None:
    """Of a device of two regions in both together; nothing of one that is neither used nor limited."""
    folder = tmp_path / "sys/fs/cgroup/c"
    folder.mkdir(parents=True)
    names = (REGION, *TILES, "drm/0000:09:00.0/vram", "other x")
    for file, numbers in (("current", (5, 1, 2, 0, 7)), ("max", ("max", 10, 20, "max", 8)), ("peak", (6, 3, 3, 9, 9))):
        lines = [f"{name} {number}\n" for name, number in zip(names, numbers)]
        (folder / f"dmem.{file}").write_text("".join(lines))
    with HostRoot(str(tmp_path)) as host:
        assert containerdevices.memory_uses(host, "/sys/fs/cgroup/c") == ((ADDRESS, 5, 0, 6), (OTHER, 3, 30, 6))
        (folder / "dmem.peak").unlink()
        (folder / "dmem.max").write_text(f"{TILES[0]} 10\n{TILES[1]} max\n")
        assert containerdevices.memory_uses(host, "/sys/fs/cgroup/c") == ((ADDRESS, 5, 0, 0), (OTHER, 3, 0, 0))
        assert containerdevices.memory_uses(host, "/sys/fs/cgroup/none") == ()


def lease(memory: int, *devices: str) -> Lease:
    """Of this process, which lives."""
    own = os.getpid()
    stat = Path(f"/proc/{own}/stat").read_text().rpartition(")")[2].split()
    needs = tuple([(it, memory) for it in devices])
    return Lease(f"c{memory}", own, int(stat[19]), "", 0, 0, 8, devices, needs)


def pick(found: Memory, number: int, *others: Lease) -> list[str]:
    devices = [Candidate(Held(it, str(at), it)) for at, it in enumerate((ADDRESS, OTHER))]
    chosen = placement._pick(AnyOf(number), devices, list(others), 8, {}, found)
    return [it.held.name for it in chosen]


def test_any_goes_where_the_memory_is() -> None:
    """GPU 0 has fewer holders, and too little left."""
    big, small = lease(12 * GIB, ADDRESS), lease(GIB, OTHER)
    others = [big, small, small._replace(id="c2")]
    assert pick(made(8 * GIB), 1, *others) == ["1"]
    assert pick(made(4 * GIB), 1, *others) == ["0"]
    assert pick(made(0, 5 * GIB), 1, *others) == ["1"]
    with pytest.raises(RequestError, match="1 has room: GPU 0 has 4096 MiB of 16384 left, and 8192 are needed"):
        pick(made(8 * GIB), 2, *others)
    # A void lease does not count if it would leave too little.
    assert pick(made(8 * GIB), 2, big._replace(pid=1 << 22), small) == ["0", "1"]


BY_NVML = Settings(gpu_memory_by="nvml")
DENIED, NO_NVML = (systemcheck.MEMORY_BOOLEAN, systemcheck.NVML_BOOLEAN), (systemcheck.NVML_BOOLEAN,)
OURS, SHARED, NVML_TOO = "gpu-memory = 4G", "gpu-memory = share", "gpu-memory-by = nvml\ngpu-memory = 4G"
CLASS = f"[namespace class]\n{SHARED}\ngpu-holders = 4"


@pytest.mark.parametrize(
    ("text", "changes", "level", "seen"),
    [
        (OURS, {}, "pass", "^the kernel limits that of GPU 0, OCI_X device 0$"),
        ("", {}, "", ""),
        # What a later file has taken back, and what a section sets with its own number of holders.
        (f"{OURS}\ngpu-memory = off", {"cgroups": "v1"}, "", ""),
        (CLASS, {}, "pass", "limits that of GPU 0"),
        (f"[namespace class]\n{SHARED}", {}, "fail", "is share, .*: gpu-holders is not set: a container"),
        (OURS, {"cgroups": "v1"}, "fail", "cgroup v1"),
        (OURS, {"regions": OF_TILES}, "fail", "GPU 0 .* has not told .*: a container with a GPU is refused"),
        (OURS, {"regions": {ADDRESS: REGIONS[ADDRESS]}}, "fail", "OCI_X device 0 .* has not told"),
        (OURS, {"denied": DENIED}, "fail", "oci_gpu_hook_limit_memory is off"),
        (NVML_TOO, {"regions": OF_TILES}, "pass", "of OCI_X device 0, NVML of R615 or later limits that of GPU 0$"),
        (NVML_TOO, {"regions": OF_TILES, "denied": NO_NVML}, "fail", "oci_gpu_hook_use_nvml is off"),
        (NVML_TOO, {"denied": NO_NVML}, "pass", "the kernel limits"),
        (OURS, {"devices": []}, "pass", "there is no GPU"),
        (NVML_TOO, {"ask": Mock(side_effect=DriverError("it is gone"))}, "fail", "^it is gone: a container"),
    ],
)
def test_doctor_says_whether_the_setting_can_be_held(
    text: str, changes: dict[str, Any], level: str, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = SimpleNamespace(libraries=(SimpleNamespace(soname="libnvidia-ml.so.1", bits=64, path=NVML),))
    monkeypatch.setattr(drivers, "known_inventory", changes.get("ask", lambda *_: known))
    monkeypatch.setattr(memoryshare, "read_regions", lambda _: changes.get("regions", REGIONS))
    monkeypatch.setattr(libselinux, "boolean", lambda _, it: it not in changes.get("denied", ()))
    lines = settingsfile.parse_text(text, "/etc/x.conf")
    settings = Settings(**settingsfile.fields(lines, None, Settings()._asdict()))
    devices = changes.get("devices", [GPU, *of_vendor("0", "0000:03:00.0").holds])
    monkeypatch.setattr(kernelconfig, "cgroup_version", lambda _: changes.get("cgroups", "v2"))
    found = systemcheck.memory(HOST, lines, settings, devices)
    assert [it.level for it in found] == ([level] if level else [])
    assert all([re.search(seen, it.seen) and bool(it.remedy) == (level == "fail") for it in found])


# From config.json to the plan.


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with two GPUs, the kernel's list of their memory, and cgroup v2."""
    tree = tmp_path / "host"
    made = hosts.host(tree, gpus=2)
    for number, gpu in enumerate(hosts.surveyed(made).gpus):
        hosts.plant(tree, f"regions/{number}", f"nvidia/{gpu.bus_id}/vidmem {16 * GIB}\n")
    text = "".join([(tree / f"regions/{number}").read_text() for number in range(2)])
    hosts.plant(tree, "sys/fs/cgroup/dmem.capacity", text)
    monkeypatch.setattr(devicecgroup, "is_unified", lambda _: True)
    return tree


def planned(node: Path, *env: str, settings: str = "", process: Any = None) -> Plan:
    (node / "settings").write_text(settings)
    bundle = read_bundle(str(write_bundle(node, *env)))
    with HostRoot(str(node), remember=process is not None) as host:
        question = Question(bundle, State("c1"), Options(str(node / "settings"), str(node)))
        allowed = question.settings()
        request, _ = question.request(allowed)
        assert request is not None
        with closing(os.open(node / "bundle/rootfs", os.O_PATH)) as fd:
            root = Rootfs(fd, (), "/r")
            return decide.decide(bundle, request, allowed, host, root, id="c1", process=process)


def of_plan(plan: Plan) -> list[int]:
    return [most for it in plan.operations if isinstance(it, LimitMemory) for _, most in it.limits]


def test_words_and_settings_come_into_the_plan_before_the_cgroup_is_opened(node: Path) -> None:
    visible = "NVIDIA_VISIBLE_DEVICES=all"
    assert of_plan(planned(node, visible)) == []
    plan = planned(node, visible, f"{LIMIT}=2048")
    assert of_plan(plan) == [2 * GIB, 2 * GIB]
    kinds = [type(it) for it in plan.operations]
    assert kinds.index(LimitMemory) < kinds.index(OpenCgroup)
    assert [type(it) for it in plan.of_restore().operations] == [LimitMemory, OpenCgroup]
    assert of_plan(planned(node, visible, settings="gpu-memory = 3G")) == [3 * GIB, 3 * GIB]
    share = "gpu-memory = share\ngpu-holders = 4\n"
    assert of_plan(planned(node, visible, f"{LIMIT}=8192", settings=share)) == [4 * GIB, 4 * GIB]
    with pytest.raises(RequestError, match="more than its 16384"):
        planned(node, visible, f"{LIMIT}=20000")
    assert "2048 MiB" in "\n".join(plantext.plan_text(plan))


def test_without_a_number_nothing_is_read(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: HostRoot) -> None:
        raise AssertionError

    monkeypatch.setattr(memoryshare, "read_regions", refuse)
    visible, counted = "NVIDIA_VISIBLE_DEVICES=0", "gpu-holders = 4\n"
    planned(node, visible, settings=counted)
    # What is needed counts among holders alone.
    planned(node, visible, f"{REQUEST}=1")
    for words, settings in ((f"{REQUEST}=1", counted), (f"{LIMIT}=1", "")):
        with pytest.raises(AssertionError):
            planned(node, visible, words, settings=settings)
    with pytest.raises(ConfigError, match="gpu-memory is share, and no holders are counted"):
        planned(node, visible, settings="gpu-memory = share\n")


def test_of_sections_that_are_not_known_a_share_of_fewer_holders_refuses(node: Path) -> None:
    """Whose share is the larger."""
    text = "gpu-memory = share\ngpu-holders = 8\n[image a]\ngpu-holders = 2\n"
    with pytest.raises(RequestError, match="does not say the container's image"):
        planned(node, "NVIDIA_VISIBLE_DEVICES=0", settings=text)
    assert of_plan(planned(node, "NVIDIA_VISIBLE_DEVICES=0", settings=text.replace("= 2", "= 8"))) == [2 * GIB]


class Running:
    """A process that a start finds, without one."""

    pid, is_caller = os.getpid(), False

    def read(self, name: str) -> bytes:
        return Path(f"/proc/self/{name}").read_bytes()


def test_a_start_leases_what_it_needs_and_finds_what_others_have(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a name and by ``any``; another hook of the same start does not make it less."""
    monkeypatch.setattr(devicecgroup, "find", lambda *_, **__: DeviceCgroup("v2", f"{node}", f"{node}"))
    monkeypatch.setattr(memoryshare, "CGROUP_ROOT", str(node))
    monkeypatch.setattr(decide, "_layout", lambda *_: DEBIAN)

    def start(devices: str, *words: str) -> list[tuple[str, int]]:
        visible = f"NVIDIA_VISIBLE_DEVICES={devices}"
        planned(node, visible, *words, settings="gpu-holders = 8\n", process=Running())
        with HostRoot(str(node)) as host:
            (mine,) = [it for it in leases.read_leases(host) if it.id == "c1"]
            return [*mine.memory]

    (first,) = start("0", f"{LIMIT}=12288")
    assert first[1] == 12 * GIB
    assert start("0", f"{LIMIT}=1024") == start("0") == [first]
    # The lease is another container's now.
    with HostRoot(str(node), remember=True) as host:
        (mine,) = leases.read_leases(host)
        leases.write(host, [mine._replace(id="c2", start=mine.start + 1, pid=os.getppid(), memory=mine.memory)])
    monkeypatch.setattr(Lease, "is_valid", lambda _: True)
    for need, why in ((8192, "has 4096 MiB of 16384 left, and 8192 are needed"), (17408, "more than its 16384")):
        with pytest.raises(RequestError, match=why) as caught:
            start("0", f"{REQUEST}={need}")
        assert ("wait" in caught.value.hint) == (need == 8192)
    (found,) = start("any", f"{LIMIT}=8192")
    assert found[0] != first[0]


def test_a_call_that_names_no_process_has_no_cgroup_to_limit(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide, "_layout", lambda *_: DEBIAN)
    process = Running()
    process.is_caller = True
    with pytest.raises(RequestError, match="a call without --pid names no cgroup"):
        planned(node, "NVIDIA_VISIBLE_DEVICES=0", f"{LIMIT}=1", process=process)


def test_the_operation_limits_its_own_cgroups_and_enables_those_above(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "CGROUP_ROOT", "/c")
    seen: list[list[str]] = []

    def limit(above: list[str], own: list[str], *_: object) -> str:
        seen.extend([above, own])
        return "a note"

    monkeypatch.setattr(dmem, "limit", limit)
    made = LimitMemory("/c/a/scope/container", "/c/a/scope", (("r", 1),), True, "")
    tree: Any = SimpleNamespace(undo=None)
    assert made.prepare(HOST, Undo())(tree) == "a note"
    assert seen == [["/c", "/c/a"], ["/c/a/scope", "/c/a/scope/container"]]


def test_a_line_is_written_in_one_call_and_an_error_names_the_file(tmp_path: Path) -> None:
    file, cgroup = tmp_path / "dmem.max", CgroupFiles(str(tmp_path))
    file.write_text("")
    cgroup.write("dmem.max", "r 5")
    assert file.read_bytes() == b"r 5"
    file.unlink()
    with pytest.raises(OSError, match=f"write 'r 5' to {file}: No such file"):
        cgroup.write("dmem.max", "r 5")
    with pytest.raises(OSError, match=f"read {file}: No such file"):
        cgroup.read("dmem.max")


def test_what_is_taken_back_is_none_of_a_later_containers(tmp_path: Path) -> None:
    """Whose cgroup has the same path, as of the same name in config.json; nor is a link followed to another's.

    It is taken back as the kernel has not taken a limit, as of a region that has gone with its driver.
    """
    own, undo, files = tmp_path / "c", Undo(), ("dmem.max", "devices.list", "devices.allow", "devices.deny")
    for text in (f"{REGION} max\n", "the later one's\n"):
        own.mkdir()
        for file in files:
            (own / file).write_text(text)
        if not text.startswith("the"):
            cgroup_v1.allow([str(own)], (DeviceRule("c", 195, 0, "rw"),), undo)
            with pytest.raises(OSError, match="still has more than"):
                dmem.limit([], [str(own)], ((REGION, GIB), (TILES[0], MIB)), undo)
            own.rename(tmp_path / "gone")
    undo.take_back()
    assert {(own / file).read_text() for file in files} == {"the later one's\n"}
    (tmp_path / "link").symlink_to(own)
    with pytest.raises(OSError, match="Not a directory"):
        dmem.limit([], [str(tmp_path / "link")], ((REGION, GIB),), undo)


def test_any_passes_by_what_cannot_be_limited() -> None:
    """A GPU that the kernel does not count, and one that is too small; a watcher who is not counted needs no room."""
    assert pick(made(8 * GIB, 0, 0, 0, OF_TILES), 1) == ["1"]
    small = {**REGIONS, ADDRESS: {REGION: 4 * GIB}}
    assert pick(made(8 * GIB, GIB, 0, 0, small), 1) == ["1"]
    full = lease(16 * GIB, ADDRESS)
    assert pick(made(8 * GIB), 1, full) == ["1"]
    assert placement._pick(AnyOf(1), [Candidate(GPU)], [full], 0, {}, made(8 * GIB)) == [Candidate(GPU, 1)]


def test_where_no_device_can_be_limited_nobody_is_told_to_wait() -> None:
    v1 = made(GIB)._replace(cgroup=V1)
    for found, why in ((v1, "cannot be .*: this host has cgroup v1"), (made(0, 17 * GIB, 0, 8), "more than its 16384")):
        with pytest.raises(RequestError, match=f"^(the|no) memory of GPU 0 .*{why}") as caught:
            pick(found, 1)
        assert "wait" not in caught.value.hint


def test_partitions_of_one_gpu_share_its_memory() -> None:
    """amdgpu's have one PCI address."""
    parts = [Candidate(Held(f"OCI_X={number}", str(number), ADDRESS)) for number in range(2)]
    other = lease(16 * GIB, "OCI_X=0")._replace(memory=((ADDRESS, 16 * GIB), ("OCI_X=0", 16 * GIB)))
    with pytest.raises(RequestError, match="OCI_X device 1 has 0 MiB"):
        placement._pick(AnyOf(2), parts, [other], 8, {}, made(GIB))
    counted = [Counted(f"OCI_X={number}", f"OCI_X device {number}", (other,), "") for number in range(2)]
    assert [containers._leased(it)["holders"][0]["memory"] for it in counted] == [16 * GIB, 0]


def test_the_version_before_reads_these_leases_and_these_read_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks for a device's memory by the PCI address: both run during an upgrade, and after a way back."""
    written: list[Lease] = []
    monkeypatch.setattr(leases, "write", lambda _, found: written.extend(found))
    before = lease(0, ADDRESS)._replace(memory=((ADDRESS, 2 * GIB),))
    devices = (GPU, Held("OCI_X=0", "0", OTHER), Held("OCI_X=1", "1", OTHER), Held(f"{ADDRESS}/1/2", "0:1"))
    nothing: Any = None
    placement.Start(HOST, Settings(), nothing, None, made(GIB), restores=False)._lease(before, [before], [], devices)
    assert dict(written[0].memory) == {ADDRESS: 2 * GIB, OTHER: GIB, "OCI_X=0": GIB, "OCI_X=1": GIB}
    assert containers._leased(Counted(ADDRESS, "GPU 0", (before,), ""))["holders"][0]["memory"] == 2 * GIB


def test_systemd_in_a_container_moves_its_first_process() -> None:
    id = "c0" * 32
    for path in (f"/sys/fs/cgroup/a/libpod-{id}.scope", f"/sys/fs/cgroup/docker/{id}"):
        assert containerdevices.own_cgroup(f"{path}/init.scope", id) == containerdevices.own_cgroup(path, id) == path
    assert containerdevices.own_cgroup("/sys/fs/cgroup/a/b", id) == "/sys/fs/cgroup/a/b"
    assert containerdevices.own_cgroup("/sys/fs/cgroup/a/b", "") == "/sys/fs/cgroup/a/b"
