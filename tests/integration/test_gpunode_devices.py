# SPDX-License-Identifier: Apache-2.0
"""What a container can ask for beyond whole GPUs, on the simulated node: MIG, NVLink, the nodes of other
drivers, PCI and DRM, i386 and graphics files, a driver root.

Must not: use the hook; a fault of the hook and one of its test material must look different.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpunode.content import library_folder, twin_folder
from tests.integration.test_gpunode import (
    DESCRIPTIONS,
    described,
    make_bundle,
    on_node,
    outside,
    run_container,
    run_on_node,
    save,
)

pytestmark = pytest.mark.integration

ASK_MIG = """
import json, pynvml
pynvml.nvmlInit()
found = []
for i in range(pynvml.nvmlDeviceGetCount()):
    gpu = pynvml.nvmlDeviceGetHandleByIndex(i)
    try:
        mode = pynvml.nvmlDeviceGetMigMode(gpu)
    except pynvml.NVMLError_NotSupported:
        mode = None
    devices = []
    for number in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, number)
        except pynvml.NVMLError_NotFound:
            break
        of = pynvml.nvmlDeviceGetAttributes_v2(mig)
        uuid = pynvml.nvmlDeviceGetUUID(mig)
        same = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig)
        assert pynvml.nvmlDeviceIsMigDeviceHandle(mig).value == 1
        assert pynvml.nvmlDeviceGetUUID(parent) == pynvml.nvmlDeviceGetUUID(gpu)
        assert pynvml.nvmlDeviceGetIndex(same) == number
        assert pynvml.nvmlDeviceGetMemoryInfo(mig).total == of.memorySizeMB << 20
        devices.append({
            "name": pynvml.nvmlDeviceGetName(mig),
            "uuid": uuid,
            "gi": pynvml.nvmlDeviceGetGpuInstanceId(mig),
            "ci": pynvml.nvmlDeviceGetComputeInstanceId(mig),
            "memory_mib": of.memorySizeMB,
            "multiprocessors": of.multiprocessorCount,
            "gi_slices": of.gpuInstanceSliceCount,
            "ci_slices": of.computeInstanceSliceCount,
        })
    assert pynvml.nvmlDeviceIsMigDeviceHandle(gpu).value == 0
    found.append([mode, devices])
print(json.dumps(found))
"""


def gpus_of(description: str) -> list[dict[str, Any]]:
    return sorted(described(description)["gpus"], key=lambda gpu: str(gpu["bus_id"]))


@pytest.mark.parametrize("description", DESCRIPTIONS)
def test_pynvml_reads_the_mig_devices(description: str) -> None:
    answer = json.loads(on_node(sys.executable, "-c", ASK_MIG, description=description))
    wanted = []
    for gpu in gpus_of(description):
        mode = [int(gpu.get("mig_enabled", False))] * 2 if gpu["mig_capable"] else None
        devices = [
            {"name": f"{gpu['model']} MIG {device.pop('profile')}", **device}
            for device in gpu.get("mig", ())
        ]
        wanted.append([mode, devices])
    assert answer == wanted


def test_nvml_does_not_take_a_mig_device_for_a_gpu() -> None:
    script = "import pynvml as p; p.nvmlInit(); gpu = p.nvmlDeviceGetHandleByIndex(0);"
    script += "p.nvmlDeviceGet{}(p.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0))"
    for name in ("MinorNumber", "PciInfo", "Brand", "MigMode"):
        line = (sys.executable, "-c", script.format(name))
        assert "NotSupported" in run_on_node(*line, description="h100mig").stderr, name


@pytest.mark.parametrize(("description", "state"), [("h100x8", 3), ("h100mig", 0), ("v100", 0)])
def test_pynvml_reads_the_fabric(description: str, state: int) -> None:
    script = """
import pynvml as p
p.nvmlInit()
gpu = p.nvmlDeviceGetHandleByIndex(0)
old, new = p.c_nvmlGpuFabricInfo_t(), p.c_nvmlGpuFabricInfo_v2_t()
p.nvmlDeviceGetGpuFabricInfo(gpu, p.byref(old))
p.nvmlDeviceGetGpuFabricInfoV(gpu, p.byref(new))
try:
    link = (p.nvmlDeviceGetNvLinkState(gpu, 17), p.nvmlDeviceGetNvLinkRemoteDeviceType(gpu, 0))
except p.NVMLError_NotSupported:
    link = None
print(old.state, new.state, link)
"""
    link = "(1, 2)" if state else "None"
    shown = on_node(sys.executable, "-c", script, description=description)
    assert shown == f"{state} {state} {link}\n"


READ_CAPABILITIES = """
import json, os, stat
root, found = "/proc/driver/nvidia/capabilities", {}
for folder, _, names in os.walk(root):
    for name in names:
        text = open(os.path.join(folder, name)).read()
        found[os.path.relpath(os.path.join(folder, name), root)] = dict(
            line.split(": ") for line in text.splitlines())
listed = dict(line.split() for line in open("/proc/driver/nvidia-caps/mig-minors"))
majors = {line.split()[1]: int(line.split()[0]) for line in open("/proc/devices") if line[:3].strip().isdigit()}
nodes = {}
for name in os.listdir("/dev/nvidia-caps"):
    status = os.stat(f"/dev/nvidia-caps/{name}")
    nodes[name] = [os.major(status.st_rdev), os.minor(status.st_rdev), stat.S_IMODE(status.st_mode)]
print(json.dumps([found, listed, majors["nvidia-caps"], nodes]))
"""


def test_capability_files_and_nodes_agree() -> None:
    shown = on_node(sys.executable, "-c", READ_CAPABILITIES, description="h100mig")
    found, listed, major, nodes = json.loads(shown)
    wanted = {"mig/config": "config", "mig/monitor": "monitor"}
    for gpu in gpus_of("h100mig"):
        for device in gpu.get("mig", ()):
            instance = f"gpu{gpu['minor']}/mig/gi{device['gi']}"
            for path in (f"{instance}/access", f"{instance}/ci{device['ci']}/access"):
                wanted[path] = path.replace("/mig", "")
    assert len(wanted) == 2 + 3 + 4  # one GPU instance has two compute instances
    assert {path: values["DeviceFileMinor"] for path, values in found.items()} == {
        path: listed[name] for path, name in wanted.items()
    }
    assert nodes == {
        f"nvidia-cap{values['DeviceFileMinor']}": [
            major,
            int(values["DeviceFileMinor"]),
            int(values["DeviceFileMode"]),
        ]
        for values in found.values()
    }


def test_a_container_sees_the_mig_device_whose_capabilities_it_may_open(tmp_path: Path) -> None:
    """Both capabilities are needed: of gi 5, the container has those of ci 1; of gi 13, only ci 0's."""
    config = make_bundle(tmp_path, "/bin/nvidia-smi", "-L")
    shown = on_node(sys.executable, "-c", READ_CAPABILITIES, description="h100mig")
    found, _, major, _ = json.loads(shown)
    allowed = ("gi5/access", "gi5/ci1/access", "gi13/ci0/access")
    rules = config["linux"]["resources"]["devices"]
    rules.append({"allow": True, "type": "c", "major": 195, "minor": 1, "access": "rw"})
    for path, values in found.items():
        minor = int(values["DeviceFileMinor"])
        node = {"path": f"/dev/nvidia-caps/nvidia-cap{minor}", "type": "c", "fileMode": 0o444}
        config["linux"]["devices"].append({**node, "major": major, "minor": minor})
        if path.endswith(allowed):
            rules.append(
                {"allow": True, "type": "c", "major": major, "minor": minor, "access": "r"}
            )
    save(tmp_path, config)
    done = run_container(tmp_path, "runc", description="h100mig")
    lines = [line.split(maxsplit=2) for line in done.stdout.splitlines() if "MIG-" in line]
    uuid = "MIG-b86f1e52-04ad-5c79-a3d8-62f97e0b1c34"
    assert lines == [["MIG", "1c.2g.20gb", f"Device  0: (UUID: {uuid})"]], done.stdout + done.stderr


def test_nvidia_smi_tells_which_capabilities_are_denied(tmp_path: Path) -> None:
    config = make_bundle(tmp_path, "/bin/nvidia-smi")
    channels = [("/dev/nvidia-caps-imex-channels/channel", 400, minor) for minor in (0, 1)]
    others = [("/dev/dri/renderD", 226, 128), ("/dev/dri/renderD", 226, 129)]
    for prefix, major, minor in channels + others:
        node = {"path": f"{prefix}{minor}", "type": "c", "major": major, "minor": minor}
        config["linux"]["devices"].append({**node, "fileMode": 0o666})
    rules = config["linux"]["resources"]["devices"]
    for _, major, minor in (channels[1], others[0]):
        rules.append({"allow": True, "type": "c", "major": major, "minor": minor, "access": "rw"})
    save(tmp_path, config)
    done = run_container(tmp_path, "crun", "v2", description="h100mig")
    lines = [line.split()[:2] for line in done.stdout.splitlines()[1:]]
    assert lines[-4:] == [
        ["/dev/dri/renderD128", "allowed"],
        ["/dev/dri/renderD129", "denied"],
        ["/dev/nvidia-caps-imex-channels/channel0", "denied"],
        ["/dev/nvidia-caps-imex-channels/channel1", "allowed"],
    ], done.stdout + done.stderr


NODES = {
    "v100": set(),
    "h100x8": {
        *(f"nvidia-caps-imex-channels/channel{number}" for number in range(4)),
        *(f"nvidia-fs{number}" for number in range(4)),
        *(f"nvidia-nvswitch{number}" for number in range(4)),
        "nvidia-nvswitchctl",
        "gdrdrv",
        "infiniband/uverbs0",
        "infiniband/uverbs1",
        "infiniband/rdma_cm",
    },
    "h100mig": {
        *(f"nvidia-caps-imex-channels/channel{number}" for number in range(4)),
        *("dri/card1", "dri/renderD128", "dri/card2", "dri/renderD129"),
    },
}
FAMILIES = ("nvidia-caps-imex", "nvidia-fs", "nvidia-nvswitch", "gdrdrv", "infiniband", "dri")


@pytest.mark.parametrize("description", DESCRIPTIONS)
def test_the_description_says_which_nodes_there_are(description: str) -> None:
    shown = on_node("find", "/dev", "-type", "c", "-printf", "%P\n", description=description)
    assert {name for name in shown.split() if name.startswith(FAMILIES)} == NODES[description]
    devices = on_node("cat", "/proc/devices", description=description).split("\nBlock")[0]
    registered = {line.split()[1] for line in devices.splitlines()[1:] if line}
    assert ("gdrdrv" in registered) is (description == "h100x8")
    assert ("nvidia-fs" in registered) is (description == "h100x8")
    assert "nvidia-caps-imex-channels" in registered  # the driver's own, wanted or not
    lines = on_node("nvidia-smi", description=description).splitlines()[1:]
    assert NODES[description] <= {line.split()[0][len("/dev/") :] for line in lines}
    assert {line.split()[1] for line in lines} == {"allowed"}


def test_pci_and_dri_name_the_same_nodes() -> None:
    script = """
import json, os
found = {}
for address in os.listdir("/sys/bus/pci/devices"):
    folder = f"/sys/bus/pci/devices/{address}"
    if open(f"{folder}/vendor").read() == "0x10de\\n":
        found[address] = {}
        for name in os.listdir(f"{folder}/drm"):
            kind = "card" if name.startswith("card") else "render"
            link = os.stat(f"/dev/dri/by-path/pci-{address}-{kind}").st_rdev
            numbers = f"{os.major(link)}:{os.minor(link)}"
            assert open(f"{folder}/drm/{name}/dev").read() == numbers + "\\n"
            assert os.stat(f"/dev/dri/{name}").st_rdev == link
            found[address][kind] = numbers
    else:
        assert os.path.exists(f"{folder}/config")  # a real one
print(json.dumps(found))
"""
    found = json.loads(on_node(sys.executable, "-c", script, description="h100mig"))
    assert found == {
        gpu["bus_id"]: {"card": f"226:{gpu['dri'][0]}", "render": f"226:{gpu['dri'][1]}"}
        for gpu in gpus_of("h100mig")
    }


def test_libudev_finds_the_gpus() -> None:
    script = """
import ctypes
udev = ctypes.CDLL("libudev.so.1")
void, text = ctypes.c_void_p, ctypes.c_char_p
for name in ("new", "enumerate_new", "enumerate_get_list_entry", "list_entry_get_next", "device_new_from_syspath"):
    getattr(udev, f"udev_{name}").restype = void
for name in ("list_entry_get_name", "device_get_driver", "device_get_property_value"):
    getattr(udev, f"udev_{name}").restype = text
context = void(udev.udev_new())
search = void(udev.udev_enumerate_new(context))
udev.udev_enumerate_add_match_subsystem(search, b"pci")
udev.udev_enumerate_add_match_sysattr(search, b"vendor", b"0x10de")
udev.udev_enumerate_scan_devices(search)
entry = udev.udev_enumerate_get_list_entry(search)
while entry:
    path = udev.udev_list_entry_get_name(void(entry))
    device = void(udev.udev_device_new_from_syspath(context, path))
    assert udev.udev_device_get_driver(device) == b"nvidia"
    print(udev.udev_device_get_property_value(device, b"PCI_SLOT_NAME").decode())
    entry = udev.udev_list_entry_get_next(void(entry))
"""
    shown = on_node(sys.executable, "-c", script, description="h100x8")
    assert shown.split() == [gpu["bus_id"] for gpu in gpus_of("h100x8")]


def test_a_user_namespace_may_mount_its_own_sysfs(tmp_path: Path) -> None:
    """As rootless engines do; the kernel allows it only while a whole sysfs is in sight."""
    mount = ("mount", "-t", "sysfs", "sysfs", str(tmp_path))
    on_node("unshare", "--user", "--map-root-user", "--net", "--mount", *mount)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86_64 has i386 libraries")
@pytest.mark.parametrize("description", DESCRIPTIONS)
def test_the_linker_lists_the_i386_twins(description: str) -> None:
    listed = on_node("ldconfig", "-p", description=description)
    folder = twin_folder(library_folder())
    for soname in ("libcuda.so.1", "libnvidia-ml.so.1", "libGLX_nvidia.so.0", "libnvcuvid.so.1"):
        assert f"\t{soname} (libc6) => {folder}/{soname}\n" in listed
        assert f"\t{soname} (libc6,x86-64) => {library_folder()}/{soname}\n" in listed
    assert f"{folder}/libnvidia-cfg" not in listed  # 64-bit only
    driver = described(description)["driver"]
    readelf = ("readelf", "--wide", "--dynamic", "--file-header")
    shown = on_node(*readelf, f"{folder}/libcuda.so.{driver}", description=description)
    assert all(word in shown for word in ("ELF32", "Intel 80386", "soname: [libcuda.so.1]"))


GRAPHICS = (
    "/etc/OpenCL/vendors/nvidia.icd",
    "/etc/vulkan/icd.d/nvidia_icd.json",
    "/etc/vulkan/implicit_layer.d/nvidia_layers.json",
    "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
    "/usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json",
    "/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
    "/usr/share/nvidia/nvoptix.bin",
    "/usr/share/X11/xorg.conf.d/10-nvidia.conf",
    "/usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf",
    "/usr/bin/nvidia-imex",
    "/usr/bin/nvidia-imex-ctl",
    "/usr/bin/nvidia-xconfig",
)


@pytest.mark.parametrize("description", DESCRIPTIONS)
def test_graphics_files_are_there_and_name_libraries_that_are(description: str) -> None:
    """So a dangling configuration, which would be the node's fault, is never taken for the hook's."""
    script = f"""
import ctypes, glob, json, os
folder = {library_folder()!r}
for path in {GRAPHICS!r}:
    assert os.path.isfile(path), path
for where in ("/usr/share/egl/egl_external_platform.d", "/etc/vulkan/icd.d", "/usr/share/glvnd/egl_vendor.d"):
    for path in glob.glob(where + "/*nvidia*"):
        ctypes.CDLL(json.load(open(path))["ICD"]["library_path"])
below = glob.glob(folder + "/*") + glob.glob(folder + "/vdpau/*") + glob.glob(folder + "/gbm/*")
links = [path for path in below if os.path.islink(path) and "nvidia" in os.readlink(path)]
assert len(links) > 20 and all(map(os.path.exists, links)), links
assert folder + "/gbm/nvidia-drm_gbm.so" in links
modules = [*glob.glob("/usr/lib/xorg/modules/*/*nvidia*"), *glob.glob("/usr/lib64/xorg/modules/*/*nvidia*")]
wayland = os.path.realpath(folder + "/libnvidia-egl-wayland.so.1")
print(len(modules), wayland, len(glob.glob(folder + "/libnvidia-egl-xcb*")))
"""
    modules, wayland, xcb = on_node(sys.executable, "-c", script, description=description).split()
    assert int(modules) >= 3  # nvidia_drv, libglxserver_nvidia and its link
    assert wayland.endswith("libnvidia-egl-wayland.so.1.1.19")  # not the driver's version
    assert bool(int(xcb)) is (description != "v100")  # the old branch has no such library


ROOT = "/run/nvidia/driver"


@pytest.mark.parametrize(
    ("layout", "folder"),
    [
        ("multiarch", f"/usr/lib/{platform.machine()}-linux-gnu"),
        ("lib64", "/usr/lib64"),
        ("current", f"/usr/lib/{platform.machine()}-linux-gnu"),
    ],
)
@pytest.mark.parametrize("root", ["", ROOT])
def test_the_driver_lies_where_it_was_told(root: str, layout: str, folder: str) -> None:
    script = f"""
        set -e
        test -x {root}/usr/bin/nvidia-smi
        test -f {root}/lib/firmware/nvidia/580.65.06/gsp_ga10x.bin
        test -f {root}/usr/share/glvnd/egl_vendor.d/10_nvidia.json
        test -S {root}/run/nvidia-persistenced/socket
        ldconfig -p {f"-r {root}" if root else ""}
        readlink -f {root}{folder}/libcuda.so.1
        LD_LIBRARY_PATH={root}{folder} {sys.executable} -c 'import pynvml; pynvml.nvmlInit()'
    """
    options = ("--driver-root", root, "--layout", layout)
    shown = on_node("sh", "-c", script, options=options)
    assert (
        f"libcuda.so.1 (libc6,{'x86-64' if platform.machine() == 'x86_64' else 'AArch64'}) => {folder}/"
        in shown
    )
    inner = "/nvidia/current" if layout == "current" else ""
    assert shown.splitlines()[-1] == f"{root}{folder}{inner}/libcuda.so.580.65.06"


def test_a_driver_root_leaves_the_root_without_a_driver() -> None:
    script = "ldconfig -p; ls /usr/bin /lib/firmware /etc /usr/share /run; cat /proc/driver/nvidia/version"
    shown = on_node("sh", "-c", f"{script}; ls /dev", options=("--driver-root", ROOT))
    before, after = shown.split("NVRM version:")
    assert "nvidia\n" in before  # /run/nvidia itself, and nothing else of it
    assert "libnvidia" not in before and "nvidia-smi" not in before and "vulkan" not in before
    assert "nvidia0" in after
    # As in every distribution; who follows the link by its text leaves the driver root.
    assert on_node("readlink", f"{ROOT}/var/run", options=("--driver-root", ROOT)) == "/run\n"


@pytest.mark.parametrize("option", [("--driver-root", ROOT), ("--layout", "current")])
def test_nothing_of_it_shows_outside(option: tuple[str, ...]) -> None:
    before = outside(), os.listdir("/sys/bus/pci/devices"), os.path.exists(ROOT)
    on_node("true", description="h100mig", options=option)
    assert (outside(), os.listdir("/sys/bus/pci/devices"), os.path.exists(ROOT)) == before
