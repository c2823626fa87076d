# SPDX-License-Identifier: Apache-2.0
"""Which platform a host is: what proves each, which goes first, and what is no proof."""

from __future__ import annotations

import os
import posix
from pathlib import Path

import pytest

from oci_gpu_hook.driver.inventory import Library
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.planning import platforms
from oci_gpu_hook.vendors import platform
from oci_gpu_hook.vendors.vendorinventory import Link
from tests.unit import hosts
from tests.unit.program import Program

RELEASE = "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64\n"
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
    (tmp_path / "host").mkdir()
    return Host(str(tmp_path / "host"))


def plant(host: Host, path: str, content: str | bytes = "") -> None:
    hosts.plant(Path(host.path), path, content)


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("etc/nv_tegra_release", RELEASE),
        ("sys/devices/soc0/family", "Tegra\n"),
        ("sys/devices/soc0/family", "tegra234\n"),
        ("sys/firmware/devicetree/base/compatible", ORIN),
    ],
)
def test_each_proof_of_a_jetson_stands_alone(host: Host, path: str, content: str | bytes) -> None:
    plant(host, path, content)
    assert platform.prove(host) == ("tegra", f"/{path}")


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("sys/devices/soc0/family", "Snapdragon\n"),
        ("sys/devices/soc0/family", "not a tegra\n"),
        ("sys/firmware/devicetree/base/compatible", b"raspberrypi,4\0brcm,bcm2711\0"),
        # The word must begin with it, and a board's name alone is no proof.
        ("sys/firmware/devicetree/base/compatible", b"xnvidia,tegra234\0nvidia,grace\0"),
        ("etc/nv_tegra_release/file", "a folder, not a file"),
    ],
)
def test_what_is_no_proof_of_a_jetson(host: Host, path: str, content: str | bytes) -> None:
    plant(host, path, content)
    assert platform.platform_of(host) == ""


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
        Link("/b/libx.so.1", "libx.so.1.2"),
        Link("/b/libx.so", "libx.so.1"),
        Link("/b/liby.so", "libx.so"),
        Link("/c/libx.so", "libx.so.1"),
        Link("/b/libz.so", "../a/libx.so"),
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
