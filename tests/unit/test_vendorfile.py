# SPDX-License-Identifier: Apache-2.0
"""Vendors' files: what is read from them, what is said of wrong ones, and what they may name."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oci_gpu_hook.errors import ConfigError
from oci_gpu_hook.vendors import vendorfile, vendorrules
from oci_gpu_hook.vendors.vendorinventory import LARGEST_FILE, DevicePattern, Group, Item, Vendor
from tests import manual

PUBLISHED = Path(__file__).resolve().parents[1] / "data/vendors"


def read(document: dict[str, Any]) -> Vendor:
    return vendorfile.parse_vendor(json.dumps(document).encode(), "x.json")


def small(**keys: Any) -> dict[str, Any]:
    return {"activation_flag": "OCI_X", "inventory": {"a": {}}, **keys}


def group(**lists: Any) -> Group:
    return read(small(inventory={"a": lists})).groups[0]


def test_all_keys() -> None:
    """Of the manual's example, and those that it does without."""
    (example,) = [text for text in manual.blocks("oci-gpu-hook-vendors.5", "EXAMPLE") if text.startswith("{")]
    document = json.loads(example)
    document |= {"$schema": "file:///x", "log_level": "info", "selinux": {"type": "x_t", "boolean": "x_use"}}
    document["environment"]["EMPTY"] = ""
    control, each = document["inventory"]["compute"]["devices"]
    each.update(pci=["10EE", "1d0f:5000"], udev={"ID_X": "1"}, name="xdev", required=False)
    document["inventory"]["compute"]["devices"] = ["kfd", control, each]
    document["inventory"]["compute"]["directories"].append("/opt/x/share/")
    pci, udev = ("10ee", "1d0f:5000"), (("ID_X", "1"),)
    icd = Item("/etc/OpenCL/vendors/xcard.icd")
    assert read(document) == Vendor(
        file="x.json",
        flag="OCI_XCARD",
        groups=(
            Group(
                "compute",
                devices=(
                    *(DevicePattern("/dev/kfd"), DevicePattern("/dev/xcard_ctl", "xcard")),
                    DevicePattern("/dev/xcard[0-9]*", "xcard", pci, udev, True, "xdev", False),
                ),
                libraries=(
                    Item("/usr/lib64/libxcard.so.{version}", required=True),
                    Item("/usr/lib/x86_64-linux-gnu/libxcard*.so*"),
                ),
                files=(Item("/usr/bin/xcard-smi"), Item("/opt/xcard-{version}", "/opt"), Item("/opt/x/share"), icd),
                sockets=("/run/xcard/xcardd.sock",),
            ),
        ),
        kind="example.com/card",
        source=("module", "xcard"),
        environment=(("XCARD_HOME", "/opt/xcard"), ("EMPTY", "")),
        kernel="5.14",
        modules=("xcard",),
        selinux_type="x_t",
        selinux_boolean="x_use",
    )


def test_a_library_among_the_programs() -> None:
    names = ("libx.so", "libx.so.1", "libx.so*", "x.sock", "x.some", "x")
    found = [bool(group(binaries=[f"/usr/bin/{name}"]).libraries) for name in names]
    assert found == [True, True, True, False, False, False]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "line 1: expecting value"),
        (b'\n\n{"a": }', "line 3: expecting value"),
        (b'{"a": "\n"}', "line 1: invalid control character"),
        (b"{}\n{}", "line 2: extra data (it must be one JSON object, each name once)"),
        (b'{"a": 1,\n"b": [{"c": 1}, {"c": 1,\n"d": "{",\n"c": 2}]}', "it has the key 'c' twice"),
        (b'{"NaN": 1,\n"a":\nNaN}', "NaN is not a JSON value"),
        (b'{"a":\n"\xff"}', "it is not UTF-8 text"),
        (b"[" * 200_000, "it is nested too deeply"),
    ],
)
def test_the_key_or_the_line_is_said(text: bytes, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        vendorfile.parse_vendor(text, "x.json")
    assert str(caught.value).startswith(f"x.json: {says}") and caught.value.hint


def test_bounds() -> None:
    most = [f"/opt/x/{number}" for number in range(vendorfile.MAX_ITEMS)]
    assert len(group(miscellaneous=most).files) == len(most)
    with pytest.raises(ConfigError, match="more than 4096 things"):
        group(miscellaneous=most, sockets=["/run/x"])
    assert len(group(devices=["kfd"] * 256).devices) == 256
    with pytest.raises(ConfigError, match="more than 256 devices"):
        group(devices=["kfd"] * 257)
    with pytest.raises(ConfigError, match=r"x\.json: it is larger than 1 MiB"):
        vendorfile.parse_vendor(b" " * (LARGEST_FILE + 1), "x.json")


@pytest.mark.parametrize(
    "data",
    [
        b"[" + b'"a",' * 250_000 + b"NaN]",
        b'{"a": [' + b"1," * 400_000 + b'1], "a": 1}',
        b"[" * LARGEST_FILE,
        json.dumps({f"k{number}": 1 for number in range(60_000)}).encode(),
        json.dumps(
            small(
                driver_feature=[f"g{number}" for number in range(60_000)],
                inventory={f"g{number}": {} for number in range(30_000)},
            )
        ).encode(),
        json.dumps(
            small(inventory={"a": {"devices": ["dri/" + "*a" * 100] * 256, "libraries": ["/usr/l*"]}}, kind="wrong")
        ).encode(),
    ],
    ids=["strings", "a name at the end", "deep", "keys", "groups", "stars"],
)
def test_a_hostile_file_takes_no_time(data: bytes) -> None:
    began = time.process_time()
    with pytest.raises(ConfigError):
        vendorfile.parse_vendor(data, "x.json")
    # What is quadratic takes minutes.
    assert time.process_time() - began < 20


def test_a_good_file_loads_nothing_that_a_start_does_without() -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from oci_gpu_hook.vendors import folders, vendorfile\n"
        "vendorfile.parse_vendor(open(sys.argv[2], 'rb').read(), 'x.json')\n"
        "settings = 'oci_gpu_hook.request.settingsfile'\n"
        "print(*{'os', 're', 'json', 'typing', 'fnmatch', settings} & sys.modules.keys())"
    )
    words = [sys.executable, "-ISc", script, str(PUBLISHED.parents[2]), str(PUBLISHED / "oci-onload.json")]
    assert subprocess.check_output(words, text=True) == "\n"


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


def test_a_path_says_whose_a_device_is() -> None:
    known = ["nvidia-uvm", "nvidia[0-9]*", "onload_epoll", "dri/renderD*", "infiniband/rdma_cm"]
    others = ["hidraw0", "[n]vidia0", "nv*", "dri/by-path/x", "x/nvidia0", "dri", "tpmrm0"]
    assert [name for name in (*known, *others) if vendorrules.known_node(f"/dev/{name}")] == known


def test_which_numbers_are_an_accelerators() -> None:
    """video4linux, ALSA, NVIDIA, DRM, InfiniBand, accel, what devices.txt leaves to local use, what the kernel gives.

    Of misc devices the minors that are nobody's for good (Documentation/admin-guide/devices.txt).
    """
    accelerators = {81, 116, 195, 226, 231, 261, *range(60, 64), *range(120, 128)}
    given = {major for major in range(4096) if not vendorrules.fault_of_device_number(major, 200)}
    assert given == accelerators | {*range(234, 255), *range(384, 512)}
    misc = {minor for minor in range(400) if not vendorrules.fault_of_device_number(10, minor)}
    assert misc == {*range(16, 128), *range(255, 400)}
