# SPDX-License-Identifier: Apache-2.0
"""The simulated GPU node itself: what it shows, that containers run on it, that it leaves nothing.

Must not: use the hook; a fault of the hook and one of its test material must look different.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.gpunode.content import library_folder

pytestmark = pytest.mark.integration

GPUNODE = Path(__file__).resolve().parents[1] / "gpunode"
NODE = [sys.executable, str(GPUNODE / "node.py")]
DESCRIPTIONS = ("v100", "h100x8", "h100mig")
PROCDRIVER = "/usr/libexec/gpunode/procdriver"

ASK_NVML = """
import json, pynvml
pynvml.nvmlInit()
handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
print(json.dumps({
    "driver": pynvml.nvmlSystemGetDriverVersion(),
    "cuda": pynvml.nvmlSystemGetCudaDriverVersion(),
    "gpus": [[
        pynvml.nvmlDeviceGetUUID(handle),
        pynvml.nvmlDeviceGetMinorNumber(handle),
        pynvml.nvmlDeviceGetName(handle),
        pynvml.nvmlDeviceGetPciInfo(handle).busId.lower(),
        list(pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
    ] for handle in handles],
}))
"""


@pytest.fixture(autouse=True)
def _root() -> None:
    if os.geteuid() != 0:
        pytest.fail("the simulated GPU node needs root: it mounts and makes device nodes")


def on_node(*command: str, description: str = "h100x8", options: tuple[str, ...] = ()) -> str:
    """The output of a command that must succeed on the node."""
    done = run_on_node(*command, description=description, options=options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_on_node(
    *command: str, description: str = "h100x8", options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    line = [*NODE, "--description", description, *options, "--", *command]
    return subprocess.run(line, check=False, capture_output=True, text=True, timeout=60)


def described(name: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((GPUNODE / "descriptions" / f"{name}.json").read_text())
    return values


@pytest.mark.parametrize("description", DESCRIPTIONS)
def test_unmodified_pynvml_reads_the_description(description: str) -> None:
    node = described(description)
    answer = json.loads(on_node(sys.executable, "-c", ASK_NVML, description=description))
    assert answer["driver"] == node["driver"]
    assert answer["cuda"] == {"12.2": 12020, "13.0": 13000, "13.1": 13010}[node["cuda"]]
    assert answer["gpus"] == [
        [
            gpu["uuid"],
            gpu["minor"],
            gpu["model"],
            "0000" + gpu["bus_id"],
            [int(part) for part in gpu["compute_capability"].split(".")],
        ]
        for gpu in sorted(node["gpus"], key=lambda gpu: str(gpu["bus_id"]))
    ]


def test_index_and_minor_differ() -> None:
    gpus = sorted(described("h100x8")["gpus"], key=lambda gpu: str(gpu["bus_id"]))
    assert sum(index != gpu["minor"] for index, gpu in enumerate(gpus)) >= 2


@pytest.mark.parametrize("description", DESCRIPTIONS)
def test_nvidia_smi_shows_every_node_allowed(description: str) -> None:
    shown = on_node("nvidia-smi", description=description)
    listed = on_node("nvidia-smi", "-L", description=description)
    node = described(description)
    assert node["driver"] in shown.splitlines()[0]
    for gpu in node["gpus"]:
        (line,) = [line for line in shown.splitlines() if line.endswith(gpu["uuid"])]
        assert line.split()[:2] == [f"/dev/nvidia{gpu['minor']}", "allowed"]
        assert f"{gpu['model']} (UUID: {gpu['uuid']})" in listed
    lines = [line for line in listed.splitlines() if line.startswith("GPU ")]
    assert len(lines) == len(node["gpus"])


def test_the_linker_knows_the_driver() -> None:
    assert "libcuda.so.1 " in on_node("ldconfig", "-p")
    count = "import ctypes as c; l = c.CDLL('libcuda.so.1'); n = c.c_int(); l.cuInit(0);"
    count += "l.cuDeviceGetCount(c.byref(n)); print(n.value)"
    assert on_node(sys.executable, "-c", count) == "8\n"


def test_a_device_node_without_a_driver_is_enxio() -> None:
    script = (
        "import os\ntry: os.open('/dev/nvidia0', os.O_RDWR)\nexcept OSError as e: print(e.errno)"
    )
    assert on_node(sys.executable, "-c", script) == "6\n"


def test_exit_status_and_arguments_are_the_commands_own() -> None:
    done = run_on_node("sh", "-c", 'echo "$1"; exit 7', "sh", "a b")
    assert (done.returncode, done.stdout) == (7, "a b\n")
    assert run_on_node("/no/such/command").returncode == 127


@pytest.mark.parametrize("option", [(), ("--no-overlay",)])
def test_host_folders_are_still_there(option: tuple[str, ...], tmp_path: Path) -> None:
    script = f"""
        set -e
        for folder in /usr/bin /usr/lib /etc; do
            ls -A $folder > {tmp_path}/$(basename $folder)
        done
        test -S /run/nvidia-persistenced/socket
        test -S /run/nvidia-fabricmanager/socket
        test -d /tmp/nvidia-mps
        test -f /lib/firmware/nvidia/580.65.06/gsp_ga10x.bin
        grep -q nvidia-uvm /proc/devices
        nvidia-smi > /dev/null
    """
    on_node("sh", "-c", script, options=option)
    for folder in ("/usr/bin", "/usr/lib", "/etc"):
        inside = (tmp_path / Path(folder).name).read_text().split("\n")
        assert set(os.listdir(folder)) - set(inside) == set(), folder


def make_bundle(folder: Path, *command: str) -> dict[str, Any]:
    """A busybox container with two GPU nodes, of which it may open the first."""
    busybox = shutil.which("busybox")
    if not busybox:
        pytest.fail("busybox is not installed: these containers need a static one")
    (folder / "rootfs/bin").mkdir(parents=True)
    shutil.copy(busybox, folder / "rootfs/bin/busybox")
    (folder / "rootfs/bin/sh").symlink_to("busybox")
    subprocess.run(["runc", "spec", "--bundle", str(folder)], check=True)
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    config["process"].update(terminal=False, args=list(command))
    mount = {"destination": "/bin/nvidia-smi", "source": "/usr/bin/nvidia-smi", "type": "bind"}
    config["mounts"].append({**mount, "options": ["bind", "ro"]})
    nodes = (("nvidiactl", 255), ("nvidia0", 0), ("nvidia1", 1))
    config["linux"]["devices"] = [
        {"path": f"/dev/{name}", "type": "c", "major": 195, "minor": minor, "fileMode": 0o666}
        for name, minor in nodes
    ]
    config["linux"]["resources"]["devices"] = [{"allow": False, "access": "rwm"}] + [
        {"allow": True, "type": "c", "major": 195, "minor": minor, "access": "rw"}
        for minor in (255, 0)
    ]
    config["hooks"] = {"prestart": [{"path": PROCDRIVER}]}
    save(folder, config)
    return config


def save(folder: Path, config: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(config))


def run_container(
    folder: Path, runtime: str, cgroup: str = "host", description: str = "h100x8"
) -> subprocess.CompletedProcess[str]:
    if not shutil.which(runtime):
        pytest.fail(f"{runtime} is not installed: the node is tested with it")
    name = f"gpunode-{os.getpid()}-{folder.name}"
    # The state lies in the test's own folder, and the node's /run is its own anyway.
    command = (runtime, "--root", str(folder / "state"), "run", "--bundle", str(folder), name)
    return run_on_node(*command, description=description, options=("--cgroup", cgroup))


@pytest.mark.parametrize("cgroup", ["v1", "v2"])
@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_a_container_tells_allowed_from_denied(runtime: str, cgroup: str, tmp_path: Path) -> None:
    make_bundle(tmp_path, "/bin/nvidia-smi")
    done = run_container(tmp_path, runtime, cgroup)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines and lines[0][-1] == "580.65.06", done.stdout + done.stderr
    assert [line[:2] for line in lines[1:]] == [
        ["/dev/nvidiactl", "allowed"],
        ["/dev/nvidia0", "allowed"],
        ["/dev/nvidia1", "denied"],
    ]
    assert lines[2][-1] == "GPU-0c94e7d8-2f61-4a3b-b5d7-81e3f6092a4b"  # by minor, not by index
    assert done.returncode == 1


def test_procdriver_reads_a_large_configuration(tmp_path: Path) -> None:
    config = make_bundle(tmp_path, "/bin/nvidia-smi", "0")
    config["root"]["path"] = str(tmp_path / "rootfs")
    config["annotations"] = {'a "root": {"path"} \\': "\u00e9" * 2_000_000, "b": "{[,]}"}
    # Everything else first: the whole document has to be passed over.
    save(tmp_path, {**{k: v for k, v in config.items() if k != "root"}, "root": config["root"]})
    done = run_container(tmp_path, "runc")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "580.65.06" in done.stdout


def test_procdriver_leaves_a_container_without_proc_alone(tmp_path: Path) -> None:
    config = make_bundle(tmp_path, "/bin/nvidia-smi", "0")
    config["mounts"] = [mount for mount in config["mounts"] if mount["destination"] != "/proc"]
    for key in ("maskedPaths", "readonlyPaths"):
        config["linux"].pop(key, None)
    save(tmp_path, config)
    done = run_container(tmp_path, "crun", "v2")
    assert "/proc/driver/nvidia/version: ENOENT" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_procdriver_enters_a_user_namespace(runtime: str, tmp_path: Path) -> None:
    config = make_bundle(tmp_path, "/bin/nvidia-smi", "0")
    config["linux"]["namespaces"].append({"type": "user"})
    # With devices of its own there, crun 1.8 forgets the bundle: its state says "/".
    config["linux"]["devices"] = []
    for kind in ("uid", "gid"):
        config["linux"][f"{kind}Mappings"] = [{"containerID": 0, "hostID": 100_000, "size": 65_536}]
    save(tmp_path, config)
    # The container's root is nobody to the folders that pytest keeps to itself.
    folder = Path(tempfile.mkdtemp(prefix="gpunode-"))
    try:
        shutil.copytree(tmp_path, folder, symlinks=True, dirs_exist_ok=True)
        for path in (folder, *folder.rglob("*")):
            os.chown(path, 100_000, 100_000, follow_symlinks=False)
        done = run_container(folder, runtime, "v2")
    finally:
        shutil.rmtree(folder)
    assert "580.65.06" in done.stdout, done.stdout + done.stderr


def test_a_user_namespace_may_mount_its_own_procfs() -> None:
    """As rootless engines do; the kernel allows it only while a whole procfs is in sight."""
    on_node("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "true")


FAULTS = {
    "library-version": "test -e $LIB/libcuda.so.580.65.07 -a ! -e $LIB/libcuda.so.580.65.06",
    "driver-version": "nvidia-smi | grep -q 580.65.07",
    "no-libcuda": "! ldconfig -p | grep -q 'libcuda.so.1 '",
    "dangling-libcuda": "test -L $LIB/libcuda.so.1 -a ! -e $LIB/libcuda.so.1",
    "no-libraries": "! ls $LIB | grep -q libnvidia",
    "broken-library": "grep -q 'not an ELF' $LIB/libnvidia-ptxjitcompiler.so.1",
    "no-proc-driver": "test ! -e /proc/driver/nvidia -a -e /dev/nvidia0",
    "no-gpus": "! ls /dev/nvidia0 && nvidia-smi",
    "no-uvm": "! grep nvidia-uvm /proc/devices && ! ls /dev/nvidia-uvm",
    "no-uvm-nodes": "grep nvidia-uvm /proc/devices && ! ls /dev/nvidia-uvm",
    "no-caps": "! grep nvidia-caps$ /proc/devices && ! ls /dev/nvidia-caps",
    "no-nodes": "! ls /dev | grep nvidia",
    "no-control-node": "! nvidia-smi && ls /dev/nvidia0",
    "wrong-node": "ls -l /dev/nvidia2 | grep '1, *7'",
    "no-sockets": "test ! -e /run/nvidia-persistenced",
    "no-firmware": "test ! -e /lib/firmware/nvidia/580.65.06",
    "no-nvml": "! find $LIB/.. -name 'libnvidia-ml*' | grep . && ! ldconfig -p | grep nvidia-ml",
    # The GPUs are still there for those who do not ask NVML.
    "nvml-hangs": "nvidia-smi -L || exit 1;"
    "timeout 1 $PYTHON -c 'import pynvml; pynvml.nvmlInit()'; test $? -eq 124",
    "nvml-errors": "$PYTHON -c 'import pynvml; pynvml.nvmlInit()' 2>&1 | grep NVMLError_Unknown",
    "gpu-lost": "$PYTHON -c '"
    "import pynvml; pynvml.nvmlInit(); pynvml.nvmlDeviceGetHandleByIndex(1);"
    "pynvml.nvmlDeviceGetHandleByIndex(0)' 2>&1 | grep NVMLError_GpuIsLost",
    "stale-cache": "! ldconfig -p | grep -q 'libcuda.so.1 ' && test -e $LIB/libcuda.so.1",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault(fault: str) -> None:
    script = f"LIB={library_folder()}; PYTHON={sys.executable}; {FAULTS[fault]}"
    on_node("sh", "-c", script, options=("--break", fault))


def test_every_fault_is_tested() -> None:
    helped = subprocess.run([*NODE, "--help"], check=False, capture_output=True, text=True).stdout
    table = helped.split("faults:\n", 1)[1].splitlines()
    assert {line.split()[0] for line in table} == set(FAULTS)


def test_nvml_refuses_a_driver_of_another_version() -> None:
    done = run_on_node(sys.executable, "-c", ASK_NVML, options=("--break", "driver-version"))
    assert "NVMLError_LibRmVersionMismatch" in done.stderr


def test_two_builds_at_once_both_succeed(tmp_path: Path) -> None:
    line = [
        sys.executable,
        str(GPUNODE / "build.py"),
        "--cache",
        str(tmp_path),
        "580.65.06",
        "13.0",
    ]
    both = [subprocess.Popen(line, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    folders = [process.communicate()[0].strip() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert folders[0] == folders[1]
    assert os.listdir(tmp_path / Path(folders[0]).name)
    assert len(list(tmp_path.iterdir())) == 2  # the folder, and .gitignore


# Where only this node could write, and where everybody does.
QUIET = ("/dev", "/etc", "/usr/bin", "/usr/libexec", "/lib/firmware", "/proc/driver")
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


@pytest.mark.parametrize("option", [(), ("--no-overlay",), ("--cgroup", "v2")])
def test_nothing_shows_outside(option: tuple[str, ...], tmp_path: Path) -> None:
    before, busy = outside(), {folder: names(folder) for folder in BUSY}
    make_bundle(tmp_path, "/bin/nvidia-smi", "0")
    script = f"""
        touch /run/nvidia-left /tmp/nvidia-left /usr/bin/nvidia-left /etc/nvidia-left
        for folder in {" ".join(BUSY)}; do ls -A $folder; done
        runc --root {tmp_path}/state run --bundle {tmp_path} gpunode-{os.getpid()} >&2
    """
    inside = set(on_node("sh", "-c", script, options=option).split())
    assert outside() == before
    assert {"nvidia-left", "nvidia-mps", "nvidia-persistenced"} <= inside
    for folder in BUSY:  # others may have come and gone there; ours must not have
        assert not [name for name in names(folder) - busy[folder] if name.startswith("nvidia")]
