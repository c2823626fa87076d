# SPDX-License-Identifier: Apache-2.0
"""What a vendor's file may name, held against the kernel's own lists as far as this host has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from oci_gpu_hook.vendors import allowed

SERVED = """
nvidia0 nvidiactl nvidia-uvm nvidia-caps/nvidia-cap1 kfd dri/card0 dri/renderD128 accel/accel0 accel/accel_controlD0 hl0
hl_controlD0 neuron0 infiniband/uverbs0 infiniband/rdma_cm infiniband/umad0 infiniband/issm0 rdma_cm onload onload_epoll
sfc_char sfc_affinity xclmgmt1 xfpga/xvc_pub.u1 xvc_pub.u1 xdma0_user gdrdrv dxg nvhost-gpu nvmap nvgpu/igpu0/ctrl
video0 media0 snd/pcmC0D0p qaic0 mst/mt1 knem xpmem cpu_dma_latency ptp0 dma_heap/system
nvidia* nvidia[0-9]* neuron* neuron? dri/renderD* dri/* accel/* infiniband/* infiniband/uverbs[0-9]* hl[0-9]* xclmgmt*
"""


def test_accelerators_devices_may_be_named() -> None:
    assert [name for name in SERVED.split() if allowed.device_path(f"/dev/{name}")] == []


@pytest.mark.parametrize("name", ["*", "?da", "*/*", "{version}", "shm/x", "mqueue/x", "pts/0", "fd/0", "shm/*"])
def test_what_could_be_any_device_or_anybodys_file_may_not(name: str) -> None:
    assert allowed.device_path(f"/dev/{name}")


# Names and numbers that are the kernel's for good (Documentation/admin-guide/devices.txt).
FIXED = (
    *(("mem", 1, 1), ("null", 1, 3), ("kmsg", 1, 11), ("tty0", 4, 0), ("ttyS0", 4, 64)),
    *(("console", 5, 1), ("ptmx", 5, 2), ("vcs", 7, 0), ("st0", 9, 0), ("psaux", 10, 1)),
    *(("watchdog", 10, 130), ("nvram", 10, 144), ("fuse", 10, 229), ("kvm", 10, 232)),
    *(("btrfs-control", 10, 234), ("loop-control", 10, 237), ("vhost-net", 10, 238)),
    *(("input/event0", 13, 64), ("sg0", 21, 0), ("fb0", 29, 0), ("mtd0", 90, 0), ("i2c-0", 89, 0)),
    *(("raw/raw1", 162, 1), ("ttyUSB0", 188, 0), ("cpu/0/msr", 202, 0), ("cpu/0/cpuid", 203, 0)),
)
GIVEN = (
    *(("nvidia0", 195, 0), ("nvidiactl", 195, 255), ("dri/renderD128", 226, 128)),
    *(("dri/card0", 226, 0), ("infiniband/uverbs0", 231, 192), ("accel/accel0", 261, 0)),
)


@pytest.mark.parametrize(("name", "major", "minor"), FIXED)
def test_a_device_of_the_hosts_is_refused_by_its_number(name: str, major: int, minor: int) -> None:
    assert allowed.device_number(major, minor)


@pytest.mark.parametrize(("name", "major", "minor"), GIVEN)
def test_an_accelerator_is_not(name: str, major: int, minor: int) -> None:
    assert not allowed.device_number(major, minor)


def test_this_hosts_drivers_are_refused_as_their_numbers_are() -> None:
    rows = Path("/proc/devices").read_text().partition("Block devices:")[0].split("\n")[1:]
    for row in rows:
        number, _, name = row.strip().partition(" ")
        # An accelerator's misc device has a number of that driver's.
        if number and name != "misc" and int(number) < 234 and allowed.device_number(int(number), 0):
            assert allowed.driver(name), row


@pytest.mark.parametrize(
    "name",
    [
        *("mem", "/dev/vc/0", "tty", "ttyS", "/dev/tty", "/dev/console", "/dev/ptmx", "vcs", "st", "sg"),
        *("input", "fb", "raw", "mtd", "bsg", "nvme", "nvme-generic", "hidraw", "usb_device", "ttyUSB"),
        *("cpu/msr", "cpu/cpuid", "watchdog", "rtc", "tpm", "uio", "vfio", "dax", "ndctl", "mei", "ipmidev"),
        *("loop-control", "device-mapper", "btrfs-control", "kvm", "fuse", "tun", "snapshot", "autofs"),
        *("userfaultfd", "hw_random", "vhost-net", "uinput", "uhid", "nvram", "hpet", "zfs"),
        # These have numbers of their own on each host, and names that only udev knows.
        *("rpmb", "ubi0", "mpt3ctl", "megaraid_sas_ioctl", "ublk-control", "vduse", "aac", "twl", "dasd_eer"),
        *("cxl", "gpiochip", "isst_interface", "sev", "efi_test", "acpi_thermal_rel", "mcelog", "tpm_vtpm"),
        *("aux", "switchtec", "fwctl", "virtio-portsdev", "nitro_enclaves", "tee"),
        *("usbmon", "rfcomm", "ttyprintk", "firewire", "iommu", "vhost-vdpa", "ppp", "vmci", "xen/evtchn"),
    ],
)
def test_drivers_of_the_hosts_own_are_refused(name: str) -> None:
    assert allowed.driver(name)


def test_drivers_of_accelerators_are_not() -> None:
    names = """nvidia nvidia-uvm nvidia-caps drm kfd accel infiniband_verbs infiniband_mad neuron habanalabs hl
    onload_char sfc_char rdma_cm xclmgmt xdma gdrdrv dxg nvmap qaic alsa video4linux media cuda-x"""
    assert [name for name in names.split() if allowed.driver(name)] == []


@pytest.mark.parametrize(
    "major,minor,is_refused",
    [
        *((1, 1, True), (1, 3, True), (4, 0, True), (5, 1, True), (7, 0, True), (9, 0, True), (10, 237, True)),
        *((10, 236, True), (10, 1, True), (10, 130, True), (10, 232, True), (13, 64, True), (21, 0, True)),
        *((29, 0, True), (90, 0, True), (162, 1, True), (189, 0, True), (202, 0, True), (260, 0, True)),
        *((10, 120, False), (10, 259, False), (195, 0, False), (226, 128, False), (231, 192, False)),
        *((234, 0, False), (235, 0, False), (261, 0, False), (505, 1, False), (61, 0, False), (61, 5, False)),
    ],
)
def test_numbers(major: int, minor: int, is_refused: bool) -> None:
    assert bool(allowed.device_number(major, minor)) == is_refused


def test_no_number_for_good_is_given_but_those_of_accelerators() -> None:
    """video4linux, ALSA, NVIDIA, DRM, InfiniBand, and what devices.txt leaves to local use."""
    accelerators = {81, 116, 195, 226, 231, *range(60, 64), *range(120, 128)}
    assert {major for major in range(234) if not allowed.device_number(major, 200)} == accelerators


def test_misc_devices_are_given_by_the_minors_that_are_nobodys_for_good() -> None:
    assert {minor for minor in range(400) if not allowed.device_number(10, minor)} == {
        *range(16, 128),
        *range(255, 400),
    }


def test_a_containers_own_devices_are_called_that() -> None:
    own = [minor for minor in range(20) if "of its own" in allowed.device_number(1, minor)]
    assert own == [3, 5, 7, 8, 9]


@pytest.mark.parametrize(
    "path",
    [
        *("/usr/lib64/libx.so.1", "/opt/rocm", "/opt/rocm-*", "/lib/firmware/x", "/lib64/libx.so*"),
        *("/lib32/x", "/libx32/x", "/etc/OpenCL/vendors/*.icd", "/etc/ld.so.conf.d/x.conf", "/run/x/x.sock"),
        *(
            "/usr/lib/x86_64-linux-gnu/dri/*_dri.so",
            "/usr/lib/libx*",
            "/usr/share/x",
            "/opt/x-{version}",
            "/run/x*/x.sock",
        ),
    ],
)
def test_paths_of_drivers_are_allowed(path: str) -> None:
    assert allowed.host_path(path) == ""


@pytest.mark.parametrize(
    "path",
    [
        *("", "usr/x", "/", "/usr", "/etc", "/run", "/opt", "/lib", "/usr/", "/srv/x", "/var/lib/x", "/proc/x"),
        *("/sys/x", "/dev/x", "/boot/x", "/media/x", "/tmp/x", "/lib*/x", "/*/x", "/u?r/x", "/usr/../x", "/usr/./x"),
        *("/usr//x", "/usr/bin", "/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/etc/*"),
        *("/etc/shadow", "/etc/ssh", "/etc/ssh/x", "/etc/ssh/*", "/etc/pki", "/etc/pki/tls/private/x"),
        *("/run/docker.sock", "/run/*", "/run/*/*", "/run/containerd/containerd.sock", "/run/{version}"),
        *("/run/systemd/private", "/run/dbus/system_bus_socket", "/usr/x\n", "/usr/x\0y", "/usr/" + "x" * 256),
        "/usr" + "/x" * 2048,
    ],
)
def test_other_paths_are_refused(path: str) -> None:
    assert allowed.host_path(path)


@pytest.mark.parametrize("path", ["/opt/x", "/usr/lib64", "/usr/local/x", "/srv", "/devices"])
def test_targets(path: str) -> None:
    assert allowed.target(path) == ""


@pytest.mark.parametrize(
    "path",
    [
        *("", "/", "x", "/proc", "/proc/x", "/sys/x", "/dev", "/dev/x", "/opt/../proc", "/opt/*", "/opt/[a]"),
        *("/opt/{version}", "/opt//x", "//x", "/opt/\n"),
    ],
)
def test_other_targets_are_refused(path: str) -> None:
    assert allowed.target(path)


@pytest.mark.parametrize("text", ["396.26", "6.8.0-1+deb12~1", "2:1.0_a", "1" * 64])
def test_versions(text: str) -> None:
    assert allowed.version(text) == ""


@pytest.mark.parametrize("text", ["", "..", ".1", "1/2", "1 2", "*", "1\n", "é", "1" * 65])
def test_what_is_no_version(text: str) -> None:
    assert allowed.version(text)
