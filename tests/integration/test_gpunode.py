# SPDX-License-Identifier: Apache-2.0
"""The simulated GPU node itself: what NVML says of it, that containers run on it, that it leaves nothing.

Each device, file and fault that it simulates has a test of the hook that fails without it.  Must not use the hook; a
fault of the hook and one of its test material must look different.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpunode import description
from tests.gpunode.vendors import VENDORS
from tests.integration import roots
from tests.integration.engines import PROCDRIVER, REPOSITORY, Bundle, on_node, start

ROOT = "/run/nvidia/driver"
ASK_NVML = """
import json, pynvml as p
p.nvmlInit()
def mig_devices(gpu):
    for number in range(p.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            mig = p.nvmlDeviceGetMigDeviceHandleByIndex(gpu, number)
        except p.NVMLError_NotFound:
            return
        ids = p.nvmlDeviceGetGpuInstanceId(mig), p.nvmlDeviceGetComputeInstanceId(mig)
        yield [p.nvmlDeviceGetUUID(mig), p.nvmlDeviceGetName(mig), *ids]
gpus = [p.nvmlDeviceGetHandleByIndex(i) for i in range(p.nvmlDeviceGetCount())]
print(json.dumps([p.nvmlSystemGetDriverVersion(), p.nvmlSystemGetCudaDriverVersion(), [[
    p.nvmlDeviceGetUUID(gpu),
    p.nvmlDeviceGetMinorNumber(gpu),
    p.nvmlDeviceGetName(gpu),
    p.nvmlDeviceGetPciInfo(gpu).busId.lower(),
    ".".join(map(str, p.nvmlDeviceGetCudaComputeCapability(gpu))),
    list(mig_devices(gpu)),
] for gpu in gpus]]))
"""


@pytest.mark.parametrize("name", ["v100", "h100x8", "h100mig"])
def test_unmodified_pynvml_and_nvidia_smi_show_what_is_described(name: str) -> None:
    node = description.load(name)
    script = f"{sys.executable} -c '{ASK_NVML}'; echo; nvidia-smi; echo; nvidia-smi -L"
    done = on_node(None, script, description=name)
    assert done.code == 0, done.err
    answer, shown, listed = done.out.split("\n\n")
    assert json.loads(answer) == [
        node.driver,
        node.cuda_number,
        [
            [
                gpu.uuid,
                gpu.minor,
                gpu.model,
                f"0000{gpu.bus_id}",
                gpu.compute_capability,
                [[it.uuid, f"{gpu.model} MIG {it.profile}", it.gi, it.ci] for it in gpu.mig],
            ]
            for gpu in node.gpus
        ],
    ]
    heading, *nodes = shown.splitlines()
    assert node.driver in heading
    assert {line.split()[1] for line in nodes} == {"allowed"}
    for gpu in node.gpus:
        (line,) = [line for line in nodes if line.endswith(gpu.uuid)]
        assert line.split()[0] == f"/dev/nvidia{gpu.minor}"
        assert f"{gpu.model} (UUID: {gpu.uuid})" in listed
    assert len([line for line in listed.splitlines() if line.startswith("GPU ")]) == len(node.gpus)


def test_exit_status_and_arguments_are_the_commands_own() -> None:
    node = [sys.executable, str(REPOSITORY / "tests/gpunode/node.py"), "--"]
    words = [*node, "sh", "-c", 'echo "$1"; exit 7', "sh", "a b"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (7, "a b\n")
    assert subprocess.run([*node, "/no/such/command"], capture_output=True).returncode == 127


@pytest.mark.parametrize(("runtime", "cgroup"), [("runc", "v1"), ("crun", "v2")])
def test_a_container_tells_allowed_from_denied(tmp_path: Path, runtime: str, cgroup: str) -> None:
    roots.busybox(tmp_path / "rootfs")
    bundle = Bundle(tmp_path, {"prestart": [PROCDRIVER]})
    bundle.mounts("/usr/bin/nvidia-smi", "/bin/nvidia-smi", "ro")
    linux = bundle.config["linux"]
    for path, minor in (("/dev/nvidiactl", 255), ("/dev/nvidia0", 0), ("/dev/nvidia1", 1)):
        device = {"type": "c", "major": 195, "minor": minor}
        linux["devices"] = [*linux.get("devices", ()), {**device, "path": path, "fileMode": 0o666}]
        if minor != 1:
            linux["resources"]["devices"].append({**device, "allow": True, "access": "rw"})
    done = on_node(None, start(runtime, bundle.runs("/bin/nvidia-smi")), cgroup=cgroup)
    heading, *lines = [line.split() for line in done.out.splitlines()]
    assert heading[-1] == "580.65.06", done.out + done.err
    assert [line[:2] for line in lines] == [
        ["/dev/nvidiactl", "allowed"],
        ["/dev/nvidia0", "allowed"],
        ["/dev/nvidia1", "denied"],
    ]
    assert lines[1][-1] == "GPU-0c94e7d8-2f61-4a3b-b5d7-81e3f6092a4b"  # by minor, not by index
    assert done.code == 1


def test_a_driver_root_leaves_the_root_without_a_driver() -> None:
    """Else a hook that looks there only seems to find the driver below another root."""
    # Not every machine has /lib/firmware.
    look = "ldconfig -p; ls /usr/bin /lib/firmware /etc /usr/share /run || :"
    script = f"{look}; cat /proc/driver/nvidia/version; ls /dev"
    done = on_node(None, f"{script}; readlink {ROOT}/var/run", driver_root=ROOT)
    before, after = done.out.split("NVRM version:")
    assert "nvidia\n" in before  # /run/nvidia itself, and nothing else of it
    assert "libnvidia" not in before and "nvidia-smi" not in before and "vulkan" not in before
    assert "nvidia0" in after
    # As in every distribution; who follows the link by its text leaves the driver root.
    assert after.endswith("\n/run\n")


def test_two_builds_at_once_both_succeed(tmp_path: Path) -> None:
    build = REPOSITORY / "tests/gpunode/build.py"
    line = [sys.executable, str(build), "--cache", str(tmp_path), "580.65.06", "13.0"]
    both = [subprocess.Popen(line, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    folders = [process.communicate()[0].strip() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert folders[0] == folders[1]
    assert os.listdir(tmp_path / Path(folders[0]).name)
    assert len(list(tmp_path.iterdir())) == 2  # the folder, and .gitignore


# A node's number and the kernel's answer, its driver's name, what sysfs has of it; and what the machine itself has.
ASK_VENDORS = """
single="/dev/kfd /dev/neuron* /dev/onload* /dev/sfc_char /dev/xclmgmt*"
for node in $(find $single /dev/dri /dev/accel /dev/infiniband -type c); do
    number=$(stat -c '%t %T' $node | while read -r a b; do echo $((0x$a)):$((0x$b)); done)
    grep -q "^ *${number%:*} " /proc/devices || echo "$node: no driver"
    if ! grep -qx $number /sys/dev/char/$number/dev; then echo "$node: not in sysfs"; fi
    grep -qx DEVNAME=${node#/dev/} /sys/dev/char/$number/uevent || echo "$node: no name"
    test -f /run/udev/data/c$number || echo "$node: unknown to udev"
    echo "node $node $(readlink /sys/dev/char/$number) $({ true <$node; } 2>&1)"
done
for file in $(find -H /sys/dev/char /sys/bus/pci/devices /sys/module /sys/class/net); do
    test -e $file || echo "$file leads nowhere"
done
"""


def test_other_vendors_devices_are_where_a_kernel_shows_them() -> None:
    commands = """
        /opt/rocm/bin/rocminfo; hl-smi; /opt/aws/neuron/bin/neuron-ls; ibv_devinfo; onload; nvidia-smi
        cat /sys/dev/char/226:128/device/vendor /sys/dev/char/231:193/ibdev /sys/module/neuron/version
        cat /sys/bus/pci/devices/0000:23:00.0/uevent
        ls /sys/class/net/lo/statistics /sys/devices/system/cpu/online >/dev/null
        ldconfig -p
    """
    done = on_node(None, ASK_VENDORS + commands, description="none", vendors=tuple(VENDORS))
    assert done.code == 0, done.out + done.err
    wrong = [line for line in done.out.splitlines() if ": no" in line or "nowhere" in line]
    assert not wrong
    rows = [line.split(maxsplit=3) for line in done.out.splitlines() if line.startswith("node ")]
    ways = {path: way for _, path, way, _ in rows}
    assert all("No such device" in answer for *_, answer in rows), rows
    # amdgpu found the second one first.
    assert "/0000:83:00.0/drm/" in ways["/dev/dri/renderD128"]
    assert "/0000:23:00.0/drm/" in ways["/dev/dri/renderD129"]
    assert ways["/dev/neuron1"] == "../../devices/virtual/neuron_device/neuron1"
    assert ways["/dev/infiniband/rdma_cm"] == "../../devices/virtual/misc/rdma_cm"
    assert ways["/dev/accel/accel_controlD2"].endswith("/0000:9a:00.0/accel/accel_controlD2")
    for line in (
        *("/dev/kfd allowed", "/dev/accel/accel2 allowed", "/dev/neuron1 allowed"),
        *("/dev/infiniband/uverbs1 allowed", "/dev/onload_epoll allowed", "/dev/nvidia0 allowed"),
        *("0x1002", "mlx5_1", "2.18.12.0", "PCI_ID=1002:740F"),
    ):
        assert line in done.out.splitlines(), line
    assert "libamdhip64.so.6 (libc6,x86-64) => /opt/rocm-6.2.0/lib/" in done.out
    assert "denied" not in done.out


def test_a_node_without_nvidias_driver_has_nothing_of_it() -> None:
    look = "ls /dev /usr/bin /run /etc /proc/driver; ldconfig -p; cat /proc/devices; ls -R /lib/firmware"
    done = on_node(None, f"{{ {look}; }} | grep -i -e nvidia -e 'libcuda[.]so' || :", description="none")
    assert (done.code, done.out) == (0, ""), done.err


# Where only this node could write, and where everybody does.
QUIET = (
    *("/dev", "/etc", "/usr/bin", "/usr/libexec", "/lib/firmware", "/proc/driver"),
    *("/sys/bus/pci/devices", "/run/nvidia", "/opt", "/sys/module", "/sys/dev/char", "/sys/devices"),
)
BUSY = ("/run", "/tmp", "/var/cache/ldconfig", "/sys/fs/cgroup")


def outside() -> dict[str, Any]:
    """What a node might leave on the machine, as far as anyone could see it."""
    seen: dict[str, Any] = {folder: names(folder) for folder in QUIET}
    cache = Path("/etc/ld.so.cache").stat()
    seen["ld.so.cache"] = (cache.st_ino, cache.st_mtime_ns, cache.st_size)
    seen["libraries"] = {str(path) for path in Path("/usr/lib").glob("**/*nvidia*")}
    seen["libraries"] |= {str(path) for path in Path("/usr/lib").glob("*/libcuda*")}
    seen["devices"] = Path("/proc/devices").read_text()
    lines = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    covered = ("/usr", "/etc", "/dev", "/proc", "/sys", "/run/nv", "/tmp/nv")
    seen["mounts"] = [(line[0], line[4]) for line in lines if line[4].startswith(covered)]
    seen["root mounts"] = [line for line in lines if line[4] in ("/", "/run", "/tmp")]
    return seen


def names(folder: str) -> set[str]:
    return set(os.listdir(folder)) if os.path.isdir(folder) else set()


@pytest.mark.parametrize(
    "how",
    [
        {"cgroup": "v1"},
        {"overlay": False},
        {"driver_root": ROOT, "layout": "current", "description": "h100mig"},
        {"vendors": tuple(VENDORS)},
    ],
    ids=["overlay", "no overlay", "driver root", "vendors"],
)
def test_nothing_is_hidden_and_nothing_shows_outside(how: dict[str, Any], tmp_path: Path) -> None:
    before, busy = outside(), {folder: names(folder) for folder in BUSY}
    script = f"""
        touch /run/nvidia-left /tmp/nvidia-left /usr/bin/nvidia-left /etc/nvidia-left
        for folder in /usr/bin /usr/lib /etc; do ls -A $folder >{tmp_path}/$(basename $folder); done
        for folder in {" ".join(BUSY)}; do ls -A $folder; done
        test -S {how.get("driver_root", "")}/run/nvidia-persistenced/socket
        grep -q nvidia-uvm /proc/devices
    """
    done = on_node(None, script, **how)
    assert done.code == 0, done.err
    assert outside() == before
    assert {"nvidia-left", "nvidia-mps"} <= set(done.out.split())
    for folder in ("/usr/bin", "/usr/lib", "/etc"):
        inside = (tmp_path / Path(folder).name).read_text().split("\n")
        assert set(os.listdir(folder)) - set(inside) == set(), folder
    for folder in BUSY:  # others may have come and gone there; ours must not have
        assert not [name for name in names(folder) - busy[folder] if name.startswith("nvidia")]


def test_a_node_with_its_own_network_leaves_the_machines_alone() -> None:
    forwards = Path("/proc/sys/net/ipv4/ip_forward")
    before = forwards.read_text(), sorted(os.listdir("/sys/class/net"))
    script = f"ip link add made type bridge; echo 2 >{forwards}; cat {forwards}; ip -oneline link"
    done = on_node(None, script, booted=True, own_network=True)
    assert done.code == 0, done.err
    value, *links = done.out.splitlines()
    assert value == "2"
    assert [line.split()[1] for line in links] == ["lo:", "made:"]
    assert (forwards.read_text(), sorted(os.listdir("/sys/class/net"))) == before
