# SPDX-License-Identifier: Apache-2.0
"""A container's limit of device memory: the words, the setting, the regions, who has room, and what is written.

The cgroup here is a folder of files whose writes answer as the kernel's do; `make test-memory` has a real kernel.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oci_gpu_hook.changes import dmem
from oci_gpu_hook.changes.tree import Undo
from oci_gpu_hook.container import memoryregion
from oci_gpu_hook.container.devicecgroup import DeviceCgroup
from oci_gpu_hook.container.memoryregion import Region
from oci_gpu_hook.errors import ConfigError, RequestError
from oci_gpu_hook.host.leases import Lease
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.diagnosis import memorycheck
from oci_gpu_hook.node.engines import containermemory
from oci_gpu_hook.planning import holding, memoryshare
from oci_gpu_hook.planning.holding import Candidate
from oci_gpu_hook.planning.memoryshare import Memory
from oci_gpu_hook.planning.plan import Provision
from oci_gpu_hook.request import memory, settingsfile
from oci_gpu_hook.request.memory import MIB, SHARE
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.vendors.vendorhost import VendorDevice, VendorState
from oci_gpu_hook.vendors.vendorinventory import VendorInventory
from tests.unit.asking import by_environment

LIMIT, REQUEST = "NVIDIA_GPU_MEMORY_LIMIT", "NVIDIA_GPU_MEMORY_REQUEST"
GIB = 1 << 30
ADDRESS, OTHER = "00000000:02:00.0", "00000000:03:00.0"
NVIDIA = Region(f"nvidia/{ADDRESS}/vidmem", ADDRESS, 16 * GIB)
TILES = tuple([Region(f"drm/0000:03:00.0/vram{number}", OTHER, 8 * GIB) for number in (0, 1)])
CGROUP = DeviceCgroup("v2", "/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a/b")
ONE = Provision(holds=((ADDRESS, "0"),))
HOST = HostRoot("/")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 0)),
        ({LIMIT: "4096"}, (4 * GIB, 0)),
        ({REQUEST: "0001"}, (0, MIB)),
        ({LIMIT: "2", REQUEST: "2"}, (2 * MIB, 2 * MIB)),
        ({LIMIT: str((1 << 44) - 1)}, ((1 << 64) - MIB, 0)),
    ],
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


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("nvidia/00000000:02:00.0/vidmem 17179869184", NVIDIA),
        ("drm/0000:03:00.0/vram1 8589934592", TILES[1]),
        ("drm/0000:03:00.0/vram 1", Region("drm/0000:03:00.0/vram", OTHER, 1)),
        ("drm/10000:E1:00.0/vram 1", Region("drm/10000:E1:00.0/vram", "00010000:e1:00.0", 1)),
        ("drm/0000:03:00.0/gtt 5", None),
        ("drm/0000:03:00.0/vram 0", None),
        ("drm/0000:03:00.0/vram", None),
        ("drm/0000:03:00.0/vram max", None),
        ("drm/0000:03:00.0/vram 18446744073709551616", None),
        ("drm/card0/vram 5", None),
        ("a b/0000:03:00.0/vram 5", None),
        ("0000:03:00.0 5", None),
        ("", None),
        (" ", None),
        ("//", None),
    ],
)
def test_regions_are_told_by_the_number_of_their_address(line: str, expected: Region | None) -> None:
    assert memoryregion.parse_region(line) == expected


def test_ten_thousand_regions_are_read_and_none_is_no_controller(tmp_path: Path) -> None:
    folder = tmp_path / "sys/fs/cgroup"
    folder.mkdir(parents=True)
    with HostRoot(str(tmp_path)) as host:
        assert memoryregion.read_regions(host) is None
        (folder / "dmem.capacity").write_text("x y z\n" * 10_000 + f"{NVIDIA.name} {NVIDIA.capacity}\n\n")
        assert memoryregion.read_regions(host) == (NVIDIA,)


def test_sizes_of_the_setting() -> None:
    kind = settingsfile.KINDS["gpu-memory"]
    words = ("off", "share", "4096M", "4G")
    assert [memory.ceiling(text) for text in words] == [0, SHARE, 4 * GIB, 4 * GIB]
    assert [kind.read(text) for text in words] == [*words]
    for text in ("", "0M", "4", "G", "-1G", "4K", "4GB", "1.5G", "Share", "9" * 30 + "G"):
        assert kind.read(text) is None, text


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (("off", "off"), ["off"]),
        (("off", "4G", "2048M", "16G"), ["2048M"]),
        (("share", "off"), ["share"]),
        (("2G", "share", "1G"), ["share", "1G"]),
    ],
)
def test_of_sections_that_are_not_known_the_smallest_holds(values: tuple[str, ...], expected: list[str]) -> None:
    """A share is neither more nor less than a size: then the container is refused."""
    assert settingsfile._strictest("gpu_memory", list(values)) == expected


def made(limit: int = 0, needed: int = 0, ceiling: int = 0, holders: int = 0, *regions: Region) -> Memory:
    return Memory(limit, needed, ceiling, holders, regions or (NVIDIA, *TILES))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (made(), (0, 0)),
        (made(GIB), (GIB, GIB)),
        (made(0, GIB), (0, GIB)),
        (made(2 * GIB, GIB), (2 * GIB, GIB)),
        (made(2 * GIB, 0, GIB), (GIB, GIB)),
        (made(GIB, 0, 2 * GIB), (GIB, GIB)),
        (made(0, 0, SHARE, 4), (4 * GIB, 4 * GIB)),
        (made(GIB, 0, SHARE, 4), (GIB, GIB)),
        (made(0, 0, SHARE, 3), (5461 * MIB, 5461 * MIB)),
    ],
)
def test_a_word_lowers_what_the_setting_allows_and_never_raises_it(found: Memory, expected: tuple[int, int]) -> None:
    assert (found.limit_of(ADDRESS), found.need_of(ADDRESS)) == expected


def test_without_a_number_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: HostRoot) -> None:
        raise AssertionError

    monkeypatch.setattr(memoryshare, "read_regions", refuse)
    request = by_environment("0")
    assert memoryshare.memory_of(request, Settings(gpu_holders=4), HOST) is None
    # What is needed counts among holders alone.
    assert memoryshare.memory_of(request._replace(memory_request=GIB), Settings(), HOST) is None
    with pytest.raises(AssertionError):
        memoryshare.memory_of(request._replace(memory_request=GIB), Settings(gpu_holders=4), HOST)
    with pytest.raises(AssertionError):
        memoryshare.memory_of(request._replace(memory_limit=GIB), Settings(), HOST)
    with pytest.raises(ConfigError, match="gpu-memory is share, and no holders are counted"):
        memoryshare.memory_of(request, Settings(gpu_memory="share"), HOST)


def limits(found: Memory, provision: Provision = ONE, cgroup: DeviceCgroup = CGROUP) -> dict[str, int]:
    return dict([pair for it in memoryshare.limits(found, provision, cgroup, HOST) for pair in it.limits])


def of_vendor(*names: str) -> Provision:
    """One device of another vendor's, with these names."""
    state = VendorState(VendorInventory("x.conf", "OCI_X"), (VendorDevice(names, ()),))
    return Provision(vendors=(state,), holds=((f"OCI_X={names[0]}", names[0]),))


def test_each_device_is_limited_and_one_of_several_regions_in_all_of_them_together() -> None:
    assert limits(made(GIB)) == {NVIDIA.name: GIB}
    assert limits(made(GIB), of_vendor("0", "0000:03:00.0")) == {region.name: GIB // 2 for region in TILES}
    assert limits(made(0, GIB)) == {}
    both = of_vendor("0", "0000:03:00.0")
    both = both._replace(holds=(*ONE.holds, *both.holds))
    assert sum(limits(made(0, 0, SHARE, 4), both).values()) == 8 * GIB


@pytest.mark.parametrize(
    ("found", "provision", "cgroup", "why"),
    [
        (made(GIB), ONE, DeviceCgroup("v1", "/d", "/d"), "GPU 0 cannot be limited: this host has cgroup v1"),
        (made(GIB), ONE, DeviceCgroup(reason="a user's"), "cannot be limited: a user's"),
        (made(GIB), ONE, DeviceCgroup("v2", "/other/c", "/other/c"), "is not below /sys/fs/cgroup"),
        (Memory(GIB, 0, 0, 0, None), ONE, CGROUP, "this kernel has no dmem controller"),
        (made(GIB, 0, 0, 0, *TILES), ONE, CGROUP, "its driver has not told"),
        (made(GIB), Provision(holds=((f"{ADDRESS}/1/0", "0:0"),)), CGROUP, "MIG device 0:0 .* memory of its own"),
        (made(GIB), Provision(holds=(("all", "all"),)), CGROUP, "its driver has not told"),
        (made(GIB), of_vendor("0"), CGROUP, "OCI_X device 0 cannot be limited: its driver has not told"),
        (made(17 * GIB), ONE, CGROUP, "NVIDIA_GPU_MEMORY_LIMIT is 17408, and it has 16384 MiB"),
        (made(0, 5 * GIB, SHARE, 4), ONE, CGROUP, "REQUEST is 5120, and the container may take 4096 MiB"),
    ],
)
def test_what_cannot_be_held_is_refused(found: Memory, provision: Provision, cgroup: DeviceCgroup, why: str) -> None:
    with pytest.raises(RequestError, match=why) as caught:
        limits(found, provision, cgroup)
    assert "gpu-memory" in caught.value.hint or "oci-gpu-hook.conf" in caught.value.hint


@pytest.mark.parametrize(("kind", "is_limited"), [("0x020700", False), ("0x030000", True), ("", True)])
def test_a_network_adapter_has_no_memory_to_limit(tmp_path: Path, kind: str, is_limited: bool) -> None:
    folder = tmp_path / "sys/bus/pci/devices/0000:05:00.0"
    folder.mkdir(parents=True)
    (folder / "class").write_text(f"{kind}\n")
    with HostRoot(str(tmp_path)) as host:
        if is_limited:
            with pytest.raises(RequestError):
                memoryshare.limits(made(GIB), of_vendor("0", "0000:05:00.0"), CGROUP, host)
        else:
            assert memoryshare.limits(made(GIB), of_vendor("0", "0000:05:00.0"), CGROUP, host) == ()


def test_less_than_was_asked_for_is_told() -> None:
    assert memoryshare.notes(made(GIB), ONE) == ()
    assert memoryshare.notes(made(0, 0, GIB), ONE) == ()
    (note,) = memoryshare.notes(made(2 * GIB, 0, GIB), ONE)
    assert note == "NVIDIA_GPU_MEMORY_LIMIT is 2048, and gpu-memory allows 1024 MiB"
    (note,) = memoryshare.notes(made(GIB), Provision())
    assert "limits nothing" in note


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
        (path / "dmem.max").write_text(f"{NVIDIA.name} max\n{TILES[0].name} max\n")

    def write(self, folder: dmem.Folder, name: str, line: str) -> None:
        at = self.paths.index(Path(os.readlink(f"/proc/self/fd/{folder.fd}")))
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
        folders, undo = dmem.opened([str(path) for path in self.paths]), Undo()
        try:
            dmem.limit(folders[:-own], folders[-own:], ((NVIDIA.name, GIB), (TILES[0].name, MIB)), undo)
        except OSError:
            undo.take_back()
            raise
        finally:
            for folder in folders:
                os.close(folder.fd)
        return undo


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Kernel]:
    def make(**more: Any) -> Kernel:
        made = Kernel(tmp_path / f"r{len(os.listdir(tmp_path))}", **more)
        monkeypatch.setattr(dmem, "_write", made.write)
        return made

    return make


def test_the_controller_is_enabled_from_above_and_each_region_written_alone(kernel: Callable[..., Kernel]) -> None:
    found = kernel(enabled=1)
    found.run()
    assert found.writes == ["a +dmem", "b +dmem", f"c {NVIDIA.name} {GIB}", f"c {TILES[0].name} {MIB}"]
    # crun has the process in a cgroup below the container's own.
    found = kernel(enabled=3)
    found.run(own=2)
    lines = [f"{NVIDIA.name} {GIB}", f"{TILES[0].name} {MIB}"]
    assert found.writes == [f"{level} {line}" for level in "bc" for line in lines]
    # Another hook of the same start has nothing to do.
    count = len(found.writes)
    found.run(own=2)
    assert len(found.writes) == count


def test_a_lower_limit_of_the_containers_own_stays(kernel: Callable[..., Kernel]) -> None:
    """Of config.json: linux.resources.unified."""
    found = kernel(enabled=3)
    (found.paths[3] / "dmem.max").write_text(f"{NVIDIA.name} 4096\n{TILES[0].name} 2097152\n")
    found.run()
    assert found.writes == [f"c {TILES[0].name} {MIB}"]


def test_what_fails_at_any_step_leaves_the_limits_as_they_were(kernel: Callable[..., Kernel]) -> None:
    for fails in range(1, 7):
        found = kernel(enabled=1, fails=fails)
        before = found.state()
        if fails <= 4:
            with pytest.raises(OSError, match="fails"):
                found.run()
        else:
            found.run()
            continue
        after = found.state()
        assert [it for it in after if "max\n" not in it.split(" ")[1]] == []
        assert before == after[: len(before)]


def test_a_limit_that_the_kernel_has_not_taken_stops_the_start(
    kernel: Callable[..., Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a region that has gone with its driver."""
    found = kernel(enabled=3)
    monkeypatch.setattr(dmem, "_write", lambda *_: None)
    with pytest.raises(OSError, match="still has more than"):
        found.run()


def test_what_a_container_has_is_read_by_device(tmp_path: Path) -> None:
    """Of a device of two regions in both together; nothing of one that is neither used nor limited."""
    folder = tmp_path / "sys/fs/cgroup/c"
    folder.mkdir(parents=True)
    names = (NVIDIA.name, *[region.name for region in TILES], "drm/0000:09:00.0/vram", "other x")
    for file, numbers in (("current", (5, 1, 2, 0, 7)), ("max", ("max", 10, 20, "max", 8)), ("peak", (6, 3, 3, 9, 9))):
        lines = [f"{name} {number}\n" for name, number in zip(names, numbers)]
        (folder / f"dmem.{file}").write_text("".join(lines))
    with HostRoot(str(tmp_path)) as host:
        assert containermemory.uses(host, "/sys/fs/cgroup/c") == ((ADDRESS, 5, 0, 6), (OTHER, 3, 30, 6))
        assert containermemory.limits(host, "/sys/fs/cgroup/c")[TILES[1].name] == 20
        (folder / "dmem.peak").unlink()
        assert containermemory.uses(host, "/sys/fs/cgroup/c")[0].peak == 0
        assert containermemory.uses(host, "/sys/fs/cgroup/none") == ()


def lease(memory: int, *devices: str) -> Lease:
    """Of this process, which lives."""
    own = os.getpid()
    stat = Path(f"/proc/{own}/stat").read_text().rpartition(")")[2].split()
    return Lease(f"c{memory}", own, int(stat[19]), "", 0, 0, 8, devices, (memory,) * len(devices))


def pick(found: Memory, number: int, *others: Lease) -> list[str]:
    from oci_gpu_hook.request.selectors import AnyOf

    devices = [Candidate(it, str(at), address=it) for at, it in enumerate((ADDRESS, OTHER))]
    chosen = holding._pick(AnyOf(f"any:{number}", number, ""), devices, list(others), 8, {}, found)
    return [it.name for it in chosen]


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


def test_more_than_there_is_is_never_leased() -> None:
    taken: list[Lease] = []
    for _ in range(1000):
        try:
            (name,) = pick(made(3 * GIB), 1, *taken)
        except RequestError:
            break
        taken.append(lease(3 * GIB, (ADDRESS, OTHER)[int(name)]))
    assert len(taken) == 10
    for device in (ADDRESS, OTHER):
        assert sum([it.holding().get(device, 0) for it in taken]) <= 16 * GIB


@pytest.mark.parametrize(
    ("changes", "level", "seen"),
    [
        ({}, "pass", "that of 2 devices"),
        ({"allowed": None}, "pass", "that of 2 devices"),
        ({"where": ""}, "", ""),
        ({"cgroups": "v1"}, "fail", "cgroup v1"),
        ({"regions": None}, "fail", "no dmem controller"),
        ({"regions": TILES}, "fail", "does not count the memory of GPU 0: a container with a GPU is refused"),
        ({"allowed": False}, "fail", "oci_gpu_hook_limit_memory is off"),
    ],
)
def test_doctor_says_whether_the_setting_can_be_held(changes: dict[str, Any], level: str, seen: str) -> None:
    values = {"where": "/etc/x.conf:3", "regions": (NVIDIA, *TILES), "cgroups": "v2", "gpus": {ADDRESS: "GPU 0"}}
    found = memorycheck.memory(**{**values, "allowed": True, **changes})
    assert [it.level for it in found] == ([level] if level else [])
    assert all([seen in it.seen and bool(it.remedy) == (level == "fail") for it in found])
