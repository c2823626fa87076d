# SPDX-License-Identifier: Apache-2.0
"""``doctor --container`` on real containers: with a GPU, without, and with one that is broken in some way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration import roots
from tests.integration.conftest import Maker
from tests.integration.engines import RUNTIMES, Bundle, Installed, on_node
from tests.integration.test_podman import remove_parents

SLEEPS = ("/bin/sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1; done")
NAME = "doctors-patient-1"


def examined(
    installed: Installed,
    bundle: Bundle,
    then: str = "",
    *,
    runtime: str = "runc",
    cgroup: str = "v2",
    word: str = NAME,
    description: str = "h100x8",
) -> tuple[int, list[dict[str, str]]]:
    """Start a container, do something to it, and ask doctor; its exit code and findings."""
    bundle.runs(*SLEEPS)
    script = f"""
oci-gpu-hook inventory refresh >/dev/null
{runtime} run --detach --bundle {bundle.path} {NAME} </dev/null >/dev/null 2>/run/said ||
    {{ cat /run/said >&2; exit 99; }}
PID=$({runtime} state {NAME} | sed -n 's/.*"pid": *\\([0-9]*\\).*/\\1/p')
set +e
{then}
oci-gpu-hook doctor --container {word} --json; echo $? >&2
{runtime} resume {NAME} >/dev/null 2>&1
{runtime} delete --force {NAME} >/dev/null 2>&1
"""
    done = on_node(installed, script, cgroup=cgroup, description=description)
    assert "Traceback" not in done.err, done.err
    start = done.out.find("{\n")
    assert start >= 0, done.out + done.err
    codes = [line for line in done.err.splitlines() if line.isdigit()]
    return int(codes[-1]), json.loads(done.out[start:])["findings"]


def of(findings: list[dict[str, str]], check: str) -> list[tuple[str, str]]:
    return [(item["level"], item["seen"]) for item in findings if item["check"] == check]


@pytest.mark.parametrize(("runtime", "cgroup"), RUNTIMES)
@pytest.mark.parametrize("word", [NAME, NAME[:9], "$PID"])
def test_a_container_whose_gpu_works(
    installed: Installed, bundle: Maker, runtime: str, cgroup: str, word: str
) -> None:
    made = bundle("debian").asks("1,5")
    code, found = examined(installed, made, runtime=runtime, cgroup=cgroup, word=word)
    assert code == 0, found
    # The simulated node's GPUs have no driver behind them, which is all that there is to say.
    assert [item["check"] for item in found if item["level"] != "pass"] == ["open"], found
    assert "its device cgroup allows /dev/nvidiactl" in of(found, "open")[0][1]
    assert of(found, "request") == [("pass", "1,5 with utility,compute, by env")]
    assert of(found, "nodes") == [("pass", "5, with the driver's numbers")]
    assert of(found, "libraries")[0][0] == of(found, "ld.so.cache")[0][0] == "pass"
    assert NAME in of(found, "container")[0][1]


def test_a_container_that_asks_for_none(installed: Installed, bundle: Maker) -> None:
    code, found = examined(installed, bundle("busybox").asks(None))
    assert code == 0
    assert [item["level"] for item in found] == ["pass", "warn", "pass"]
    assert "it asks for no GPU" in of(found, "request")[0][1]


def test_a_container_that_started_without_the_hook(installed: Installed, bundle: Maker) -> None:
    made = bundle("debian").asks("0")
    made.config["hooks"] = {}
    code, found = examined(installed, made)
    assert code == 1
    assert of(found, "nodes")[0][1].startswith("none of its 4 nodes is there: the hook did not run")
    assert f"runc delete --force {NAME}" in found[-1]["remedy"]


LIBRARY = f"/usr/lib/{roots.MULTIARCH}/libcuda.so"
# As systemd does at daemon-reload: rules that know nothing of the GPUs, in a program beside ours.
WITHOUT_GPUS = """
cat >/run/deny.py <<'END'
import os, sys
sys.path.insert(0, "/usr/lib/oci-gpu-hook")
from oci_gpu_hook import bpf
deny = bytes.fromhex("b700000000000000" "9500000000000000")
program = bpf.prog_load(bpf.BPF_PROG_TYPE_CGROUP_DEVICE, deny, name="deny", license="GPL")
cgroup = os.open(sys.argv[1], os.O_RDONLY)
bpf.prog_attach(cgroup, program, attach_flags=bpf.BPF_F_ALLOW_MULTI)
END
python3 /run/deny.py /sys/fs/cgroup$(sed -n 's/^0:://p' /proc/$PID/cgroup)
"""
UNMOUNT = "nsenter -t $PID -m /bin/busybox umount"
BROKEN = [
    (
        "v1",
        "GROUP=/sys/fs/cgroup/devices$(sed -n 's/.*:devices://p' /proc/$PID/cgroup)\n"
        "echo 'c 195:255 rw' >$GROUP/devices.deny",
        "open",
        "its device cgroup denies /dev/nvidiactl",
    ),
    ("v2", WITHOUT_GPUS, "open", "its device cgroup denies /dev/nvidiactl"),
    ("v2", "rm /proc/$PID/root/dev/nvidia-uvm", "nodes", "/dev/nvidia-uvm missing"),
    (
        "v2",
        "cd /proc/$PID/root/dev; rm nvidiactl; mknod nvidiactl c 1 7; cd /",
        "nodes",
        "/dev/nvidiactl is device 1:7, the driver's is 195:255",
    ),
    (
        "v2",
        f"{UNMOUNT} {LIBRARY}.580.65.06",
        "libraries",
        f"{LIBRARY}.580.65.06, {LIBRARY}.1, {LIBRARY} missing",
    ),
    ("v2", f"{UNMOUNT} /etc/ld.so.cache", "ld.so.cache", "does not name"),
    (
        "v2",
        """
sed s/580.65.06/580.65.07/ /proc/driver/nvidia/version >/run/version
mount --bind /run/version /proc/driver/nvidia/version
for file in /usr/lib/*/lib*.so.580.65.06; do cp $file ${file%6}7; done
""",
        "libraries",
        ".so.580.65.06 is there: the driver has changed since its start",
    ),
]


@pytest.mark.parametrize(("cgroup", "breaks", "check", "seen"), BROKEN)
def test_a_container_whose_gpu_is_broken(
    installed: Installed, bundle: Maker, cgroup: str, breaks: str, check: str, seen: str
) -> None:
    code, found = examined(installed, bundle("debian").asks("0"), breaks, cgroup=cgroup)
    matching = [item for item in found if item["check"] == check and item["level"] == "fail"]
    assert any(seen in item["seen"] for item in matching), found
    assert all(NAME in item["remedy"] for item in matching)
    assert code == 1


def test_a_user_who_may_not_open_the_nodes(installed: Installed, bundle: Maker) -> None:
    made = bundle("busybox").asks("0")
    made.config["process"]["user"] = {"uid": 1000, "gid": 1000}
    code, found = examined(installed, made, "chmod 0600 /proc/$PID/root/dev/nvidiactl")
    assert code == 1
    assert ("fail", "its user may not open /dev/nvidiactl") in of(found, "open")


def test_a_mig_device_of_a_plain_user(installed: Installed, bundle: Maker) -> None:
    """Capability devices are for reading only."""
    made = bundle("busybox").asks("0:0")
    made.config["process"]["user"] = {"uid": 1000, "gid": 1000}
    code, found = examined(
        installed, made, "ls /proc/$PID/root/dev/nvidia-caps >&2", description="h100mig"
    )
    assert code == 0, found
    assert [item["check"] for item in found if item["level"] != "pass"] == ["open"], found


def test_a_paused_container_does_not_stop_us(installed: Installed, bundle: Maker) -> None:
    code, found = examined(installed, bundle("busybox").asks("0"), f"runc pause {NAME}")
    assert code == 0
    assert of(found, "open")[0][0] == "warn"
    assert "it is paused" in of(found, "open")[0][1]


@pytest.mark.parametrize(
    ("asks", "by", "nodes"),
    [("--env NVIDIA_VISIBLE_DEVICES=0", "env", 4), ("--device nvidia.com/gpu=0", "cdi", 5)],
)
def test_a_container_of_podman_by_its_name(
    installed: Installed, tmp_path: Path, driver: Path, asks: str, by: str, nodes: int
) -> None:
    root = roots.debian(tmp_path / "root", driver)
    script = f"""
mount -t tmpfs none /var/lib/containers
oci-gpu-hook cdi generate --output /etc/cdi/gpu.yaml >/dev/null
podman --storage-driver vfs --runtime crun --cgroup-manager=cgroupfs --events-backend=none \\
    --hooks-dir /usr/libexec/gpunode/hooks.d --hooks-dir /usr/share/containers/oci/hooks.d \\
    run --detach --name patient --pids-limit=-1 --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 \\
    --network=none --cap-add=mknod {asks} --rootfs {root} \\
    sleep 600 </dev/null >/run/id 2>/run/said || {{ cat /run/said >&2; exit 99; }}
set +e
oci-gpu-hook doctor --container patient --json; echo $? >&2
crun delete --force $(cat /run/id) >/dev/null 2>&1
"""
    try:
        done = on_node(installed, script)
    finally:
        remove_parents()
    found = json.loads(done.out[done.out.find("{\n") :])["findings"]
    assert [item["check"] for item in found if item["level"] != "pass"] == ["open"], done.err
    assert of(found, "nodes") == [("pass", f"{nodes}, with the driver's numbers")]
    assert of(found, "request")[0][1].endswith(f", by {by}")


@pytest.mark.parametrize("word", ["1", "4194305", "nobody", "x", "''", "../..", "0", "-1x"])
def test_what_is_no_container_is_one_sentence(installed: Installed, word: str) -> None:
    done = on_node(installed, f"oci-gpu-hook doctor --container={word} || echo $?")
    assert done.out == "2\n", done.out + done.err
    assert len(done.err.splitlines()) == 1
    assert done.err.startswith("oci-gpu-hook: ")


def test_the_host_itself_is_no_container(installed: Installed) -> None:
    done = on_node(installed, "oci-gpu-hook doctor --container $$ || echo $?")
    assert done.out == "2\n"
    assert "is in no container" in done.err
