# SPDX-License-Identifier: Apache-2.0
"""Which platform a host is; NVIDIA's CSV files of a Jetson, and WSL 2, as vendors: what is read, what is left out."""

from __future__ import annotations

import os
import posix
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oci_gpu_hook.cli import cdi
from oci_gpu_hook.driver import proc
from oci_gpu_hook.driver.inventory import Library
from oci_gpu_hook.driver.proc import Gpu
from oci_gpu_hook.errors import DriverError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.gpus import hardware
from oci_gpu_hook.node.setup import cdispec
from oci_gpu_hook.planning import placement, platforms
from oci_gpu_hook.request.cdirequest import of_nodes
from oci_gpu_hook.request.selectors import AnyOf, Request
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.request.sources import Inputs
from oci_gpu_hook.vendors import platform, tegra, wsl
from oci_gpu_hook.vendors.vendorinventory import DevicePattern, Group, Item
from tests.unit import hosts
from tests.unit.program import Program
from tests.unit.test_cdi import gpu, inventory
from tests.vocabulary.host import LAYOUT

RELEASE = "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64, DATE: ...\n"
VERSION = "proc/driver/nvidia/version"
ORIN = b"nvidia,p3768-0000+p3767-0005-super\0nvidia,p3767-0005\0nvidia,tegra234\0"


class Host(HostRoot):
    """A tree in which some paths are character devices, which only root could make there."""

    devices: tuple[str, ...] = ()

    def stat(self, path: str) -> posix.stat_result | None:
        return posix.stat("/dev/null") if path in self.devices else super().stat(path)

    def names(self, path: str) -> list[str]:
        found = [name for name in self.devices if name.rpartition("/")[0] == path]
        return super().names(path) + [name.rpartition("/")[2] for name in found]


@pytest.fixture()
def host(tmp_path: Path) -> Host:
    tmp_path.chmod(0o755)
    return Host(str(tmp_path))


def plant(host: Host, path: str, content: str | bytes = "") -> None:
    hosts.plant(Path(host.path), path, content)


@pytest.mark.parametrize(
    ("path", "content", "is_proof"),
    [
        ("etc/nv_tegra_release", RELEASE, True),
        ("sys/devices/soc0/family", "Tegra\n", True),
        ("sys/devices/soc0/family", "tegra234\n", True),
        ("sys/firmware/devicetree/base/compatible", ORIN, True),
        ("sys/devices/soc0/family", "Snapdragon\n", False),
        ("sys/devices/soc0/family", "not a tegra\n", False),
        ("sys/firmware/devicetree/base/compatible", b"raspberrypi,4\0brcm,bcm2711\0", False),
        # The word must begin with it, and a board's name alone is no proof.
        ("sys/firmware/devicetree/base/compatible", b"xnvidia,tegra234\0nvidia,grace\0", False),
        ("etc/nv_tegra_release/file", "a folder, not a file", False),
    ],
)
def test_each_proof_of_a_jetson_stands_alone(host: Host, path: str, content: str | bytes, is_proof: bool) -> None:
    plant(host, path, content)
    assert platform.prove(host) == (("tegra", f"/{path}") if is_proof else ("", ""))


def test_wsl_is_proved_by_its_device_and_by_the_library_from_windows(host: Host) -> None:
    plant(host, "usr/lib/wsl/lib/libdxcore.so")
    assert platform.platform_of(host) == ""
    plant(host, "dev/dxg", "no device")
    assert platform.platform_of(host) == ""
    host.devices = ("/dev/dxg",)
    assert platform.prove(host) == ("wsl", "/dev/dxg")
    os.unlink(f"{host.path}/usr/lib/wsl/lib/libdxcore.so")
    assert platform.platform_of(host) == ""


def test_nvidias_driver_with_a_gpu_goes_first(host: Host) -> None:
    plant(host, VERSION, hosts.NVRM)
    hosts.plant_gpu(Path(host.path), 1, 0)
    plant(host, "etc/nv_tegra_release", RELEASE)
    plant(host, "usr/lib/wsl/lib/libdxcore.so")
    host.devices = ("/dev/dxg",)
    assert platform.platform_of(host) == "nvidia"


def test_the_module_of_a_jetsons_display_has_no_gpu(host: Host) -> None:
    # As on a Jetson Orin, whose GPU is nvgpu's.
    plant(host, VERSION, "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  540.4.0\n")
    os.makedirs(f"{host.path}/proc/driver/nvidia/gpus")
    assert platform.platform_of(host) == "nvidia"
    plant(host, "etc/nv_tegra_release", RELEASE)
    assert platform.platform_of(host) == "tegra"


def library(folder: str, file: str, *names: str) -> Library:
    all_names = tuple(dict.fromkeys((file, *names)))
    return Library(f"{folder}/{file}", file, names[-1], all_names, 0, 64, "", ("x",), folder)


def test_copies_keep_their_names_and_links_beside_a_library_become_its_names() -> None:
    copies = (library("/a", "libx.so", "libx.so.1"), library("/a", "libx.so.1", "libx.so.1"))
    other = library("/b", "libx.so.1.2", "libx.so.1")
    links = (
        ("/b/libx.so.1", "libx.so.1.2"),
        ("/b/libx.so", "libx.so.1"),
        ("/b/liby.so", "libx.so"),
        ("/c/libx.so", "libx.so.1"),
        ("/b/libz.so", "../a/libx.so"),
    )
    found, left = platforms.joined((*copies, other), links)
    assert [one.names for one in found] == [
        ("libx.so",),
        ("libx.so.1",),
        ("libx.so.1.2", "libx.so.1", "libx.so", "liby.so"),
    ]
    assert left == links[3:]


def test_doctor_names_what_mends_a_jetson(host: Host, program: Program) -> None:
    plant(host, "etc/nv_tegra_release", RELEASE)
    said = program("doctor", "--host-root", host.path, code=1)
    lines = [line.split(maxsplit=2) for line in said.splitlines()]
    assert ["pass", "platform", "Jetson (Tegra), by /etc/nv_tegra_release"] in lines
    assert any(line[:2] == ["fail", "driver"] and line[2].startswith("no CSV file lists what ") for line in lines)
    assert "fix: apt install --reinstall nvidia-l4t-init && modprobe nvgpu" in said


# --- a Jetson's lists

FOLDER = "/etc/nvidia-container-runtime/host-files-for-container.d"
LIB = "/usr/lib/aarch64-linux-gnu"


@pytest.fixture()
def jetson(host: Host) -> Host:
    """A Jetson with a list of each kind, whose files are there but for one device and the firmware."""
    host.devices = ("/dev/nvmap", "/dev/nvhost-gpu")
    for file in (Path(__file__).parents[1] / "data/jetson").iterdir():
        plant(host, f"{FOLDER}/{file.name}", file.read_bytes())
    plant(host, "/etc/nv_tegra_release", RELEASE)
    for path in (f"{LIB}/nvidia/libcuda.so.1.1", f"{LIB}/libcudnn.so.9.3.0", "/usr/sbin/nvidia-smi"):
        plant(host, path)
    link(host, f"{LIB}/libcuda.so", "nvidia/libcuda.so.1")
    link(host, f"{LIB}/nvidia/libcuda.so", "libcuda.so.1.1")
    link(host, f"{LIB}/nvidia/libcuda.so.1", "libcuda.so.1.1")
    link(host, f"{LIB}/libcudnn.so.9", "libcudnn.so.9.3.0")
    return host


def link(host: Host, path: str, to: str) -> None:
    hosts.link(Path(host.path), path, to)


def drivers(host: Host, content: str | bytes) -> tuple[Group, tuple[str, ...]]:
    """What drivers.csv alone would give, and what is left out of it."""
    plant(host, f"{FOLDER}/drivers.csv", content)
    found, sentences = tegra.vendor(host, everything=False)
    return next(group for group in found.groups if group.name == "drivers"), sentences


def test_all_files_count_where_a_container_asks_for_all(jetson: Host) -> None:
    plant(jetson, f"{FOLDER}/OPENCV.CSV", "dir, /usr/share/opencv4\n")
    plant(jetson, f"{FOLDER}/.csv", "dir, /usr/share/none\n")
    plant(jetson, f"{FOLDER}/notes.txt", "dir, /usr/share/none\n")
    found, _ = tegra.vendor(jetson, everything=True)
    assert [group.name for group in found.groups] == ["OPENCV", "cudnn", "devices", "drivers", "release"]
    cudnn = found.groups[1]
    assert cudnn.libraries == (Item(f"{LIB}/libcudnn.so.9.3.0", LIB),)
    assert cudnn.links == ((f"{LIB}/libcudnn.so.9", "libcudnn.so.9.3.0"),)


def test_blanks_carriage_returns_and_commas_are_as_nvidia_reads_them(jetson: Host) -> None:
    """A device without a folder is below /dev, and may be a pattern."""
    plant(jetson, "/usr/share/a,b/x", "")
    plant(jetson, "/usr/lib/spaced.so.1", "")
    group, sentences = drivers(jetson, "\n\tdev ,nvgpu/*\r\ndir,/usr/share/a,b\r\n \n  lib,\t/usr/lib/spaced.so.1 ")
    assert sentences == ()
    assert group.devices == (DevicePattern("/dev/nvgpu/*", required=False),)
    assert group.files == (Item("/usr/share/a,b"),)
    assert group.libraries == (Item("/usr/lib/spaced.so.1", "/usr/lib"),)


def test_a_line_that_is_no_entry_is_left_out_and_said(jetson: Host) -> None:
    _, sentences = drivers(jetson, "# a comment\n\nlib,\n,\nnot-dev ,/usr/a\nLIB, /usr/b\nlib, /usr/\x1b[2J\n")
    start = f"{FOLDER}/drivers.csv"
    words = {1: "'# a comment'", 3: "'lib'", 4: "''"}
    assert sentences == (
        *[f"{start}:{line} is left out: {word} has no path" for line, word in words.items()],
        f"{start}:5 is left out: its type 'not-dev' is not one of dev, lib, dir, sym",
        f"{start}:6 is left out: its type 'LIB' is not one of dev, lib, dir, sym",
        f"{start}:7 is left out: '/usr/\\x1b[2J' has characters that cannot be printed",
    )


def test_what_no_vendor_may_name_is_left_out_and_said(jetson: Host) -> None:
    lines = ["dev, /dev/shm/x", "dev, /dev/nvmap/../mem", "dev, /etc/passwd", "lib, /etc/shadow", "lib, relative.so"]
    lines += ["lib, /usr/../etc/shadow", "dir, /", "dir, /usr/lib", "dir, /proc/driver", "sym, /srv/user/link"]
    group, sentences = drivers(jetson, "\n".join([*lines, "lib, /usr/sbin/nvidia-smi\n"]))
    assert group == Group("drivers", files=(Item("/usr/sbin/nvidia-smi"),))
    starts = [f"{FOLDER}/drivers.csv:{number} is left out: '" for number in range(1, len(lines) + 1)]
    assert [sentence.startswith(start) for sentence, start in zip(sentences, starts)] == [True] * len(lines)


def test_a_link_to_what_no_vendor_may_name_is_left_out_with_it(jetson: Host) -> None:
    plant(jetson, "/srv/user/libevil.so", "")
    link(jetson, f"{LIB}/libevil.so", "/srv/user/libevil.so")
    link(jetson, f"{LIB}/libevil.so.1", "libevil.so")
    for type in ("sym", "lib"):
        group, (sentence,) = drivers(jetson, f"{type}, {LIB}/libevil.so.1\n")
        assert group == Group("drivers")
        said = f"'{LIB}/libevil.so.1' leads elsewhere: '/srv/user/libevil.so' lies outside of /usr, "
        assert sentence.startswith(f"{FOLDER}/drivers.csv:1 is left out: {said}")


def test_links_that_lead_nowhere_round_or_to_a_folder_and_one_that_is_a_library(jetson: Host) -> None:
    links = {"libgone.so": "libgone.so.1", "liba.so": "libb.so", "libb.so": "liba.so", "cuda": "cuda-12.6"}
    links["libv4l2.so.0"] = "./tegra/../tegra/libnvv4l2.so"
    for name, text in links.items():
        link(jetson, f"{LIB}/{name}", text)
    for path in (f"{LIB}/cuda-12.6/version.json", f"{LIB}/tegra/libnvv4l2.so"):
        plant(jetson, path, "")
    lines = [f"{kind}, {LIB}/{name}\n" for kind, name in (("lib", "libv4l2.so.0"), ("lib", "absent"))]
    lines += [f"sym, {LIB}/{name}\n" for name in ("libgone.so", "liba.so", "cuda")]
    group, sentences = drivers(jetson, "".join(lines))
    assert group.libraries == (Item(f"{LIB}/tegra/libnvv4l2.so", f"{LIB}/tegra"),)
    assert {*group.links} == {(f"{LIB}/{name}", links[name]) for name in ("libv4l2.so.0", "cuda")}
    assert (group.files, sentences) == ((), ())


def test_links_that_programs_expect_beside_a_library_are_made(jetson: Host) -> None:
    for name in ("libcuda.so.1.1", "libGLX_nvidia.so.0", "libnvidia-opticalflow.so.1"):
        plant(jetson, f"/usr/lib/tegra/{name}", "")
    group, _ = drivers(jetson, "lib, /usr/lib/tegra/lib*\n")
    assert group.links == (
        ("/usr/lib/tegra/libGLX_indirect.so.0", "libGLX_nvidia.so.0"),
        ("/usr/lib/tegra/libcuda.so", "libcuda.so.1"),
        ("/usr/lib/tegra/libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1"),
    )


def test_many_lines_that_are_left_out_are_counted(jetson: Host) -> None:
    _, sentences = drivers(jetson, "".join([f"nothing {number}\n" for number in range(1_000)]))
    assert len(sentences) == 51
    assert sentences[-1] == f"950 more lines below {FOLDER} are left out"


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("# R39 (release), REVISION: 2.0, GCID: 45755727, BOARD: generic\n", "39.2.0"),
        ("R32 (release)\n", "32"),
        *[(text, "") for text in ("", "# R36 (release), REVISION: \x1b[2J, x\n", "garbage", "# R" + "9" * 100)],
    ],
)
def test_the_release_is_what_jetson_linux_says(jetson: Host, text: str, release: str) -> None:
    plant(jetson, "/etc/nv_tegra_release", text)
    assert tegra.release(jetson) == release


def test_the_sources_are_all_places_where_an_answer_could_change(jetson: Host) -> None:
    plant(jetson, f"{FOLDER}/l4t.csv", "lib, /opt/*/libx.so\n")
    seen: dict[str, None] = {}
    tegra.vendor(jetson, False, seen.setdefault)
    lists = [f"{FOLDER}/{name}.csv" for name in ("devices", "drivers", "l4t")]
    assert [*seen] == [FOLDER, "/etc/nv_tegra_release", *lists[:2], f"{LIB}/nvidia", LIB, "/usr/sbin", lists[2], "/opt"]
    tegra.vendor(jetson, True, seen.setdefault)
    assert f"{FOLDER}/cudnn.csv" in seen


@given(st.binary(max_size=400))
@example(b"lib, /usr/lib/\x00\n")
@example("dev, /dev/\u2028x\n".encode())
def test_any_bytes_are_entries_sentences_or_one_error(data: bytes) -> None:
    try:
        entries = tegra.parse_csv(data, "/a.csv")
    except DriverError as err:
        assert err.message.startswith("/a.csv ")
        return
    lines = [line for line in data.decode().split("\n") if line.strip()]
    assert len(entries) <= len(lines)
    assert all(text == text.strip() for entry in entries for text in entry)


L4T = f"{FOLDER}/l4t.csv"
NO_FILE = f"cannot read {L4T}: it is not a regular file of at most 1 MiB"
OPEN, MORE = "lies in a folder that others than root may write to", f"{FOLDER} has more than"
# What is done to a Jetson, which has three lists and nine entries that count, and what is said of its lists.
REFUSED: list[tuple[Callable[[Host], object], str]] = [
    (lambda it: os.chmod(f"{it.path}{FOLDER}", 0o777), f"cannot read {FOLDER}/devices.csv: 'devices.csv' {OPEN}"),
    (lambda it: os.mkdir(it.path + L4T), NO_FILE),
    (lambda it: plant(it, L4T, b"\n" * ((1 << 20) + 1)), NO_FILE),
    (lambda it: plant(it, L4T, b"dev, /dev/nvmap\n\nlib, /usr/\xff\n"), f"{L4T} is not UTF-8 text"),
    (lambda it: plant(it, L4T, "".join([f"dev, /dev/a{n}\n" for n in range(9_992)])), f"{MORE} 10000 entries"),
    (lambda it: [Path(f"{it.path}{FOLDER}/{n}.csv").write_text("") for n in range(254)], f"{MORE} 256 CSV files"),
    (lambda it: plant(it, f"{FOLDER}/devices.csv"), f"the CSV files in {FOLDER} name no device"),
]


@pytest.mark.parametrize(("spoil", "said"), REFUSED)
def test_lists_that_cannot_be_believed_or_read_are_refused(
    jetson: Host, spoil: Callable[[Host], object], said: str
) -> None:
    spoil(jetson)
    with pytest.raises(DriverError) as caught:
        tegra.vendor(jetson, everything=False)
    assert (caught.value.message, caught.value.exit_code) == (said, 6)
    assert caught.value.hint


def test_a_host_without_any_of_the_devices_is_named_with_the_remedy(jetson: Host) -> None:
    jetson.devices = ()
    with pytest.raises(DriverError, match=f"none of the 3 devices that {FOLDER} names is there, such as /dev/nvmap"):
        platforms.platform_state(jetson, platform.TEGRA, everything=False)


# Thor's own GPU, which NVIDIA's module drives, and another one on PCI.
OWN, ADDED = inventory(gpu(0, "GPU-a", 0, "00000000:01:00.0")).gpus[0], gpu(1, "GPU-b", 1, "00000000:05:00.0")
THOR, IGX, FIRST, SECOND = (OWN, ADDED), (ADDED,), OWN.bus_id, ADDED.bus_id


@pytest.mark.parametrize(
    ("gpus", "asked", "held"),
    [((), "0", ["all"]), ((), "/dev/nvmap", ["all"]), ((), "/dev/dxg", ["all"]), ((), "", []), ((OWN,), "0", ["all"]),
     (THOR, "0", [FIRST]), (THOR, "1", [SECOND]), (THOR, "all", [FIRST, SECOND]), (IGX, "0", ["all"]),
     (IGX, "all", ["all", SECOND]), (THOR, "/dev/nvmap,/dev/nvidia0", [FIRST]), (THOR, "/dev/nvidia1", [SECOND]),
     (THOR, "/dev/nvidia0,/dev/nvidia1", [FIRST, SECOND]), (IGX, "/dev/nvmap,/dev/nvidia2", ["all"]),
     (IGX, "/dev/nvmap,/dev/nvidia1", [SECOND])],
)  # fmt: skip
def test_a_container_holds_what_it_has_of_a_jetson(jetson: Host, gpus: tuple[Gpu, ...], asked: str, held: Any) -> None:
    """By CDI the nodes tell it, which the engine makes."""
    by_name = asked[:1].isalnum()
    by_nodes, _ = of_nodes(Inputs({}), Settings(), tuple(asked.split(",")), ("utility",))
    request = Request("env", (asked,)) if by_name else by_nodes
    share, _ = platforms.share(jetson, LAYOUT, request, inventory(*gpus) if gpus else None)
    assert ([it.key for it in share.holds], bool(share.nodes)) == (held, by_name)


def test_the_node_chooses_a_gpu_on_pci_by_a_name_that_is_its_own(jetson: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """nvgpu drives IGX Orin's integrated GPU, which has index 0 and which NVIDIA's module does not list."""
    known = inventory(ADDED._replace(nvml_index=0))
    monkeypatch.setattr("oci_gpu_hook.planning.drivers.known_inventory", lambda host, driver_root: known)
    monkeypatch.setattr(platform, "platform_of", lambda host: platform.TEGRA)
    chosen = [it.held for it in placement.gpus(jetson, Settings(), AnyOf(1))]
    share, _ = platforms.share(jetson, LAYOUT, Request("env", (chosen[0].name,)), known)
    assert [it.key for it in chosen] == [it.key for it in share.holds] == [SECOND]


def test_a_spec_has_each_gpu_of_a_jetson_by_its_names(jetson: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(jetson, f"{proc.GPUS}/0000:05:00.0/information")
    plant(jetson, "/proc/devices", "Character devices:\n195 nvidia\n510 nvidia-uvm\n")
    monkeypatch.setattr(hardware, "nvidia", lambda *_: inventory(*THOR))
    spec = cdi._of_platform(jetson, Settings(), cdispec.Hook("/hook", ("compute",), "", "", False))
    edits = {it["name"]: it["containerEdits"] for it in (*spec["devices"], {**spec, "name": ""})}
    given = {name: {node["path"][5:] for node in it.get("deviceNodes", ())} for name, it in edits.items()}
    own = {"nvmap", "nvhost-gpu"}
    both = own | {"nvidiactl", "nvidia1", "nvidia-uvm", "nvidia-uvm-tools"}
    assert given == {"0": own, "1": both, "GPU-a": own, "GPU-b": both, "all": both, "none": set(), "": set()}


# --- WSL 2 as a vendor: the device, the libraries that Windows shows, and the driver's packages that they need

OF_WINDOWS = "/usr/lib/wsl/lib"
STORE = "/usr/lib/wsl/drivers/nv_dispi.inf_amd64_feedb8c0271ca811"
NOTEBOOK = "/usr/lib/wsl/drivers/nvltwi.inf_amd64_0b1c"


@pytest.fixture()
def in_windows(tmp_path: Path) -> HostRoot:
    for name in ("libcuda.so", "libcuda.so.1", "libcuda.so.1.1", "libdxcore.so", "nvidia-smi"):
        hosts.plant(tmp_path, f"{OF_WINDOWS}/{name}", "")
    for name in ("libcuda.so.1.1", "libnvidia-ml.so.1", "nvcubins.bin", "nvidia-smi", "nvapi.dll"):
        hosts.plant(tmp_path, f"{STORE}/{name}", "")
    # Drivers of others, and one of NVIDIA's that has nothing for Linux.
    for name in ("iigd_dch.inf_amd64_9f", "nvhda.inf_amd64_77", "nvblank.inf_amd64_1"):
        hosts.plant(tmp_path, f"/usr/lib/wsl/drivers/{name}/some.dll", "")
    return HostRoot(str(tmp_path))


def test_the_vendor_is_the_device_the_libraries_and_the_driver_store(in_windows: HostRoot) -> None:
    """A container that has them: tests/integration/test_platforms.py."""
    seen: list[str] = []
    found = wsl.vendor(in_windows, seen.append)
    # All places where an answer could change.
    assert seen[:3] == ["/usr/lib/wsl", OF_WINDOWS, "/usr/lib/wsl/drivers"] and STORE in seen[3:]
    assert (found.flag, found.kind, found.file) == ("NVIDIA_VISIBLE_DEVICES", "nvidia.com/gpu", "/usr/lib/wsl")
    main, store = found.groups
    assert [item.required for item in main.libraries] == [True, True, False]
    assert [item.path.rpartition("/")[0] for item in store.files] == [STORE] * 3


def test_hundreds_of_packages_are_not(in_windows: HostRoot, tmp_path: Path) -> None:
    for number in range(100):
        hosts.plant(tmp_path, f"{NOTEBOOK}{number:03}/libcuda.so.1.1", "")
    assert len(wsl.stores(in_windows)) == 16


@pytest.mark.parametrize("name", ["libcuda.so.1", "libdxcore.so"])
def test_a_windows_without_nvidias_driver_is_named_with_the_remedy(in_windows: HostRoot, name: str) -> None:
    os.unlink(f"{in_windows.path}{OF_WINDOWS}/{name}")
    with pytest.raises(DriverError) as caught:
        wsl.vendor(in_windows)
    assert caught.value.exit_code == 6
    said = f"this WSL 2 has no driver of NVIDIA's: {OF_WINDOWS}/{name} is missing (the administrator of the Windows"
    assert str(caught.value).startswith(f"{said} host must ")
