# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's CSV files of a Jetson as a vendor: what a line means, which files count, and what is left out or refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oci_gpu_hook.errors import DriverError
from oci_gpu_hook.planning import platforms
from oci_gpu_hook.vendors import platform, tegra
from oci_gpu_hook.vendors.vendorinventory import DevicePattern, Group, Item, Link
from tests.unit import hosts
from tests.unit.test_platform import Host

FOLDER = "/etc/nvidia-container-runtime/host-files-for-container.d"
LIB = "/usr/lib/aarch64-linux-gnu"
RELEASE = "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64, DATE: ...\n"

DEVICES = "dev, /dev/nvmap\ndev, /dev/nvhost-gpu\ndev, /dev/nvhost-nvdec1\n"
DRIVERS = f"""\
lib, {LIB}/nvidia/libcuda.so.1.1
sym, {LIB}/libcuda.so
sym, {LIB}/nvidia/libcuda.so
sym, {LIB}/nvidia/libcuda.so.1
lib, /usr/sbin/nvidia-smi
dir, /lib/firmware/tegra23x
"""
CUDNN = f"lib, {LIB}/libcudnn.so.9.3.0\nsym, {LIB}/libcudnn.so.9\n"


@pytest.fixture()
def host(tmp_path: Path) -> Iterator[Host]:
    """A Jetson with a list of each kind, whose files are there but for one device and the firmware."""
    umask = os.umask(0o022)
    top = tmp_path / "host"
    top.mkdir()
    found = Host(str(top))
    found.devices = ("/dev/nvmap", "/dev/nvhost-gpu")
    plant(found, f"{FOLDER}/devices.csv", DEVICES)
    plant(found, f"{FOLDER}/drivers.csv", DRIVERS)
    plant(found, f"{FOLDER}/cudnn.csv", CUDNN)
    plant(found, "/etc/nv_tegra_release", RELEASE)
    for path in (f"{LIB}/nvidia/libcuda.so.1.1", f"{LIB}/libcudnn.so.9.3.0", "/usr/sbin/nvidia-smi"):
        plant(found, path, "content")
    link(found, f"{LIB}/libcuda.so", "nvidia/libcuda.so.1")
    link(found, f"{LIB}/nvidia/libcuda.so", "libcuda.so.1.1")
    link(found, f"{LIB}/nvidia/libcuda.so.1", "libcuda.so.1.1")
    link(found, f"{LIB}/libcudnn.so.9", "libcudnn.so.9.3.0")
    yield found
    os.umask(umask)


def plant(host: Host, path: str, content: str | bytes) -> None:
    hosts.plant(Path(host.path), path, content)


def link(host: Host, path: str, text: str) -> None:
    place = Path(host.path + path)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(text)


def drivers(host: Host, content: str | bytes) -> tuple[Group, tuple[str, ...]]:
    """What drivers.csv alone would give, and what is left out of it."""
    plant(host, f"{FOLDER}/drivers.csv", content)
    found, sentences = tegra.vendor(host, everything=False)
    return next(group for group in found.groups if group.name == "drivers"), sentences


def test_all_files_count_where_a_container_asks_for_all(host: Host) -> None:
    plant(host, f"{FOLDER}/OPENCV.CSV", "dir, /usr/share/opencv4\n")
    plant(host, f"{FOLDER}/.csv", "dir, /usr/share/none\n")
    plant(host, f"{FOLDER}/notes.txt", "dir, /usr/share/none\n")
    found, _ = tegra.vendor(host, everything=True)
    assert [group.name for group in found.groups] == ["OPENCV", "cudnn", "devices", "drivers", "release"]
    cudnn = found.groups[1]
    assert cudnn.libraries == (Item(f"{LIB}/libcudnn.so.9.3.0", LIB),)
    assert cudnn.links == (Link(f"{LIB}/libcudnn.so.9", "libcudnn.so.9.3.0"),)


def test_blanks_carriage_returns_and_commas_are_as_nvidia_reads_them(host: Host) -> None:
    plant(host, "/usr/share/a,b/x", "")
    plant(host, "/usr/lib/spaced.so.1", "")
    """A device without a folder is below /dev, and may be a pattern."""
    group, sentences = drivers(host, "\n\tdev ,nvgpu/*\r\ndir,/usr/share/a,b\r\n \n  lib,\t/usr/lib/spaced.so.1 ")
    assert sentences == ()
    assert group.devices == (DevicePattern("/dev/nvgpu/*", required=False),)
    assert group.files == (Item("/usr/share/a,b"),)
    assert group.libraries == (Item("/usr/lib/spaced.so.1", "/usr/lib"),)


def test_a_line_that_is_no_entry_is_left_out_and_said(host: Host) -> None:
    _, sentences = drivers(host, "# a comment\n\nlib,\n,\nnot-dev ,/usr/a\nLIB, /usr/b\nlib, /usr/\x1b[2J\n")
    start = f"{FOLDER}/drivers.csv"
    words = {1: "'# a comment'", 3: "'lib'", 4: "''"}
    assert sentences == (
        *[f"{start}:{line} is left out: {word} has no path" for line, word in words.items()],
        f"{start}:5 is left out: its type 'not-dev' is not one of dev, lib, dir, sym",
        f"{start}:6 is left out: its type 'LIB' is not one of dev, lib, dir, sym",
        f"{start}:7 is left out: '/usr/\\x1b[2J' has characters that cannot be printed",
    )


def test_what_no_vendor_may_name_is_left_out_and_said(host: Host) -> None:
    """Of each type of line; test_vendor_allowed has the paths."""
    lines = ["dev, /dev/shm/x", "dev, /dev/nvmap/../mem", "dev, /etc/passwd", "lib, /etc/shadow", "lib, relative.so"]
    lines += ["lib, /usr/../etc/shadow", "dir, /", "dir, /usr/lib", "dir, /proc/driver", "sym, /srv/user/link"]
    group, sentences = drivers(host, "\n".join([*lines, "lib, /usr/sbin/nvidia-smi\n"]))
    assert group == Group("drivers", files=(Item("/usr/sbin/nvidia-smi"),))
    starts = [f"{FOLDER}/drivers.csv:{number} is left out: '" for number in range(1, len(lines) + 1)]
    assert [sentence.startswith(start) for sentence, start in zip(sentences, starts)] == [True] * len(lines)


def test_a_link_to_what_no_vendor_may_name_is_left_out_with_it(host: Host) -> None:
    plant(host, "/srv/user/libevil.so", "")
    link(host, f"{LIB}/libevil.so", "/srv/user/libevil.so")
    link(host, f"{LIB}/libevil.so.1", "libevil.so")
    for type in ("sym", "lib"):
        group, (sentence,) = drivers(host, f"{type}, {LIB}/libevil.so.1\n")
        assert group == Group("drivers")
        said = f"'{LIB}/libevil.so.1' leads elsewhere: '/srv/user/libevil.so' lies outside of /usr, "
        assert sentence.startswith(f"{FOLDER}/drivers.csv:1 is left out: {said}")


def test_links_that_lead_nowhere_round_or_to_a_folder_and_one_that_is_a_library(host: Host) -> None:
    links = {"libgone.so": "libgone.so.1", "liba.so": "libb.so", "libb.so": "liba.so", "cuda": "cuda-12.6"}
    links["libv4l2.so.0"] = "./tegra/../tegra/libnvv4l2.so"
    for name, text in links.items():
        link(host, f"{LIB}/{name}", text)
    for path in (f"{LIB}/cuda-12.6/version.json", f"{LIB}/tegra/libnvv4l2.so"):
        plant(host, path, "")
    lines = [f"{kind}, {LIB}/{name}\n" for kind, name in (("lib", "libv4l2.so.0"), ("lib", "absent"))]
    lines += [f"sym, {LIB}/{name}\n" for name in ("libgone.so", "liba.so", "cuda")]
    group, sentences = drivers(host, "".join(lines))
    assert group.libraries == (Item(f"{LIB}/tegra/libnvv4l2.so", f"{LIB}/tegra"),)
    assert {*group.links} == {Link(f"{LIB}/{name}", links[name]) for name in ("libv4l2.so.0", "cuda")}
    assert (group.files, sentences) == ((), ())


def test_links_that_programs_expect_beside_a_library_are_made(host: Host) -> None:
    for name in ("libcuda.so.1.1", "libGLX_nvidia.so.0", "libnvidia-opticalflow.so.1"):
        plant(host, f"/usr/lib/tegra/{name}", "")
    group, _ = drivers(host, "lib, /usr/lib/tegra/lib*\n")
    assert group.links == (
        Link("/usr/lib/tegra/libGLX_indirect.so.0", "libGLX_nvidia.so.0"),
        Link("/usr/lib/tegra/libcuda.so", "libcuda.so.1"),
        Link("/usr/lib/tegra/libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1"),
    )


def test_many_lines_that_are_left_out_are_counted(host: Host) -> None:
    _, sentences = drivers(host, "".join([f"nothing {number}\n" for number in range(1_000)]))
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
def test_the_release_is_what_jetson_linux_says(host: Host, text: str, release: str) -> None:
    plant(host, "/etc/nv_tegra_release", text)
    assert tegra.release(host) == release


def test_the_sources_are_all_places_where_an_answer_could_change(host: Host) -> None:
    plant(host, f"{FOLDER}/l4t.csv", "lib, /opt/*/libx.so\n")
    seen: dict[str, None] = {}
    tegra.vendor(host, False, seen.setdefault)
    assert list(seen) == [
        FOLDER,
        "/etc/nv_tegra_release",
        f"{FOLDER}/devices.csv",
        f"{FOLDER}/drivers.csv",
        f"{LIB}/nvidia",
        LIB,
        "/usr/sbin",
        f"{FOLDER}/l4t.csv",
        "/opt",
    ]
    tegra.vendor(host, True, seen.setdefault)
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


# Bad input


def refused(host: Host, everything: bool = False) -> str:
    with pytest.raises(DriverError) as caught:
        tegra.vendor(host, everything)
    assert caught.value.exit_code == 6
    assert caught.value.hint
    return caught.value.message


def test_a_list_that_is_not_roots_is_refused(host: Host) -> None:
    os.chmod(f"{host.path}{FOLDER}", 0o777)
    assert "in a folder that others than root may write to" in refused(host)


def test_a_list_that_is_no_file_too_large_or_no_text_is_refused(host: Host) -> None:
    path = f"{FOLDER}/l4t.csv"
    os.mkdir(host.path + path)
    assert refused(host) == f"cannot read {path}: it is not a regular file of at most 1 MiB"
    os.rmdir(host.path + path)
    plant(host, path, b"\n" * ((1 << 20) + 1))
    assert refused(host) == f"cannot read {path}: it is not a regular file of at most 1 MiB"
    plant(host, path, b"dev, /dev/nvmap\n\nlib, /usr/\xff\n")
    assert refused(host) == f"{path} is not UTF-8 text"


def test_too_many_lists_or_entries_are_refused(host: Host) -> None:
    plant(host, f"{FOLDER}/l4t.csv", "".join([f"dev, /dev/a{n}\n" for n in range(10_000)]))
    assert refused(host) == f"{FOLDER} has more than 10000 entries"
    for number in range(257):
        plant(host, f"{FOLDER}/{number}.csv", "")
    assert refused(host) == f"{FOLDER} has more than 256 CSV files"


def test_a_host_without_any_of_the_devices_is_named_with_the_remedy(host: Host) -> None:
    host.devices = ()
    with pytest.raises(DriverError, match=f"none of the 3 devices that {FOLDER} names is there, such as /dev/nvmap"):
        platforms.platform_state(host, platform.TEGRA, everything=False)
    plant(host, f"{FOLDER}/devices.csv", "")
    assert refused(host) == f"the CSV files in {FOLDER} name no device"
