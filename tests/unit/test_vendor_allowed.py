# SPDX-License-Identifier: Apache-2.0
"""What a vendor's file may name, and what it may not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from oci_gpu_hook.vendors import vendorrules

SERVED = """
nvidia0 nvidiactl nvidia-uvm nvidia-caps/nvidia-cap1 kfd dri/card0 dri/renderD128 accel/accel0 accel/accel_controlD0 hl0
hl_controlD0 neuron0 infiniband/uverbs0 infiniband/rdma_cm infiniband/umad0 infiniband/issm0 rdma_cm onload onload_epoll
sfc_char sfc_affinity xclmgmt1 xfpga/xvc_pub.u1 xvc_pub.u1 xdma0_user gdrdrv dxg nvhost-gpu nvmap nvgpu/igpu0/ctrl
video0 media0 snd/pcmC0D0p qaic0 mst/mt1 knem xpmem cpu_dma_latency ptp0 dma_heap/system
nvidia* nvidia[0-9]* neuron* neuron? dri/renderD* dri/* accel/* infiniband/* infiniband/uverbs[0-9]* hl[0-9]* xclmgmt*
"""
DYNAMIC = """
ttyprintk hidraw usbmon firewire bsg nvme nvme-generic megaraid_sas_ioctl watchdog tpm tpm_vtpm ipmidev mei uio vfio
vhost-vdpa iommu dax crash fwctl misc
"""
DRIVERS = """
nvidia nvidia-uvm nvidia-caps drm kfd accel infiniband_verbs infiniband_mad neuron habanalabs hl onload_char sfc_char
rdma_cm xclmgmt xdma gdrdrv dxg nvmap qaic alsa video4linux media cuda-x
"""
PATHS = """
/usr/lib64/libx.so.1 /opt/rocm /opt/rocm-* /lib/firmware/x /lib64/libx.so* /lib32/x /libx32/x /etc/OpenCL/vendors/*.icd
/etc/ld.so.conf.d/x.conf /run/x/x.sock /usr/lib/x86_64-linux-gnu/dri/*_dri.so /usr/lib/libx* /usr/share/x
/opt/x-{version} /run/x*/x.sock
"""
OTHER_PATHS = """
usr/x / /usr /etc /run /opt /lib /usr/ /srv/x /var/lib/x /proc/x /sys/x /dev/x /boot/x /media/x /tmp/x /lib*/x /*/x
/u?r/x /usr/../x /usr/./x /usr//x /usr/bin /usr/lib64 /usr/lib/x86_64-linux-gnu /etc/* /etc/shadow /etc/ssh /etc/ssh/x
/etc/ssh/* /etc/pki /etc/pki/tls/private/x /run/docker.sock /run/* /run/*/* /run/containerd/containerd.sock
/run/{version} /run/systemd/private /run/dbus/system_bus_socket
"""


@pytest.mark.parametrize(
    ("fault", "allowed", "refused"),
    [
        (
            lambda name: vendorrules.fault_of_device_path(f"/dev/{name}"),
            SERVED.split(),
            ["*", "?da", "*/*", "{version}", "shm/x", "mqueue/x", "pts/0", "fd/0", "shm/*"],
        ),
        # Those that reach further than a device of their own.
        (vendorrules.fault_of_driver, DRIVERS.split(), DYNAMIC.split()),
        (
            vendorrules.fault_of_host_path,
            PATHS.split(),
            ["", *OTHER_PATHS.split(), "/usr/x\n", "/usr/x\0y", "/usr/" + "x" * 256, "/usr" + "/x" * 2048],
        ),
        (
            vendorrules.fault_of_target,
            ["/opt/x", "/usr/lib64", "/usr/local/x", "/srv", "/devices"],
            ["", *["/", "x", "/proc", "/proc/x", "/sys/x", "/dev", "/dev/x", "/opt/../proc", "/opt/*", "/opt/[a]"]]
            + ["/opt/{version}", "/opt//x", "//x", "/opt/\n"],
        ),
        (
            vendorrules.fault_of_version,
            ["396.26", "6.8.0-1+deb12~1", "2:1.0_a", "1" * 64],
            ["", "..", ".1", "1/2", "1 2", "*", "1\n", "é", "1" * 65],
        ),
    ],
    ids=["device", "driver", "path", "target", "version"],
)
def test_what_may_be_named(fault: Callable[[str], str], allowed: list[str], refused: list[str]) -> None:
    assert [name for name in allowed if fault(name)] == []
    assert [name for name in refused if not fault(name)] == []


@pytest.mark.parametrize(
    ("names", "is_known"),
    [
        ("nvidia-uvm nvidia[0-9]* onload_epoll dri/renderD* infiniband/rdma_cm", True),
        ("hidraw0 [n]vidia0 nv* dri/by-path/x x/nvidia0 dri tpmrm0", False),
    ],
)
def test_a_path_says_whose_a_device_is(names: str, is_known: bool) -> None:
    assert {vendorrules.known_node(f"/dev/{name}") for name in names.split()} == {is_known}


# Numbers that are the kernel's for good (Documentation/admin-guide/devices.txt).
FIXED = (
    *(("mem", 1, 1), ("null", 1, 3), ("kmsg", 1, 11), ("tty0", 4, 0), ("ttyS0", 4, 64), ("console", 5, 1)),
    *(("vcs", 7, 0), ("st0", 9, 0), ("psaux", 10, 1), ("watchdog", 10, 130), ("rtc", 10, 135), ("nvram", 10, 144)),
    *(("vfio", 10, 196), ("tun", 10, 200), ("uinput", 10, 223), ("tpm0", 10, 224), ("fuse", 10, 229), ("kvm", 10, 232)),
    *(("btrfs-control", 10, 234), ("device-mapper", 10, 236), ("loop-control", 10, 237), ("vhost-net", 10, 238)),
    *(("input/event0", 13, 64), ("sg0", 21, 0), ("fb0", 29, 0), ("mtd0", 90, 0), ("i2c-0", 89, 0), ("raw1", 162, 1)),
    *(("ttyUSB0", 188, 0), ("bus/usb/001/001", 189, 0), ("msr", 202, 0), ("cpuid", 203, 0), ("osd0", 260, 0)),
)


def test_numbers_for_good_are_accelerators_and_others_the_kernel_gives() -> None:
    """video4linux, ALSA, NVIDIA, DRM, InfiniBand, accel, and what devices.txt leaves to local use."""
    assert [name for name, *number in FIXED if not vendorrules.fault_of_device_number(*number)] == []
    accelerators = {81, 116, 195, 226, 231, 261, *range(60, 64), *range(120, 128)}
    given = {major for major in range(4096) if not vendorrules.fault_of_device_number(major, 200)}
    assert given == accelerators | {*range(234, 255), *range(384, 512)}


def test_misc_devices_are_given_by_the_minors_that_are_nobodys_for_good() -> None:
    assert {minor for minor in range(400) if not vendorrules.fault_of_device_number(10, minor)} == {
        *range(16, 128),
        *range(255, 400),
    }
