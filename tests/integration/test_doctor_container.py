# SPDX-License-Identifier: Apache-2.0
"""``doctor --container`` on real containers: with a GPU, without, and with one that is broken in some way."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.conftest import Maker
from tests.integration.engines import RUNTIMES, Bundle, in_turn
from tests.integration.inside import REFRESH
from tests.integration.test_doctor import parsed

SLEEPS = ("/bin/sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1; done")
NAME = "doctors-patient-1"

Findings = list[dict[str, str]]


def examined(
    patients: dict[str, tuple[Bundle, str]], *, runtime: str = "runc", word: str = NAME, **node: Any
) -> dict[str, tuple[int, Findings]]:
    """Doctor's exit code and findings of containers, one after another, each with a command that was run before."""
    scripts = {}
    for name, (bundle, then) in patients.items():
        bundle.runs(*SLEEPS)
        scripts[name] = f"""
{runtime} run --detach --bundle {bundle.path} {NAME} </dev/null >/dev/null 2>/run/said ||
    {{ cat /run/said >&2; exit 99; }}
PID=$({runtime} state {NAME} | sed -n 's/.*"pid": *\\([0-9]*\\).*/\\1/p')
set +e
{then}
{{ oci-gpu-hook doctor --container {word} --json || echo $?; }} | tr -d '\\n'; echo
{runtime} resume {NAME} >/dev/null 2>&1
{runtime} delete --force {NAME} >/dev/null 2>&1
exit 0
"""
    found = in_turn(scripts, REFRESH, **node)
    said = {name: parsed(lines[0]) for name, lines in found.items()}
    return {name: (code, document["findings"]) for name, (code, document) in said.items()}


def of(findings: Findings, check: str) -> list[tuple[str, str]]:
    return [(item["level"], item["seen"]) for item in findings if item["check"] == check]


def not_passed(findings: Findings) -> list[str]:
    """The simulated node's GPUs have no driver behind them, which is all that there is to say of a working one."""
    return [item["check"] for item in findings if item["level"] != "pass"]


@pytest.mark.parametrize(
    ("runtime", "cgroup", "word"), [(*both, word) for both, word in zip(RUNTIMES, (NAME, NAME[:9], "$PID", NAME))]
)
def test_a_container_whose_gpu_works(bundle: Maker, runtime: str, cgroup: str, word: str) -> None:
    patients = {"well": (bundle("debian").asks("1,5"), "")}
    if cgroup == "v1":
        deny = "echo 'c 195:255 rw' >/sys/fs/cgroup/devices$(sed -n 's/.*:devices://p' /proc/$PID/cgroup)/devices.deny"
        patients["denied"] = (bundle("debian").asks("0"), deny)
    how = {"runtime": runtime, "cgroup": cgroup, "word": word}
    found = examined(patients, **how)
    code, findings = found["well"]
    assert code == 0, findings
    assert not_passed(findings) == ["open"], findings
    assert "its device cgroup allows /dev/nvidiactl" in of(findings, "open")[0][1]
    assert of(findings, "request") == [("pass", "1,5 with utility,compute, by env")]
    assert of(findings, "nodes") == [("pass", "5, with the driver's numbers")]
    assert of(findings, "libraries")[0][0] == of(findings, "ld.so.cache")[0][0] == "pass"
    assert NAME in of(findings, "container")[0][1]
    if cgroup == "v1":
        is_broken(*found["denied"], "open", "its device cgroup denies /dev/nvidiactl")


# For the containers that are started from then on.
SPEC = "mkdir -p /etc/cdi; printf 'cdiVersion: 0.6.0\\nkind: amd.com/gpu\\n' >/etc/cdi/amd.yaml"


def test_other_vendors_are_held_to_their_plan(bundle: Maker) -> None:
    """AMD's second GPU and an adapter, on a host without NVIDIA's driver."""
    both = {"OCI_AMD": "1", "OCI_RDMA": "mlx5_0"}
    # What an engine that knows CDI, as its spec shows, has resolved itself is no request.
    by_engine = bundle("debian").asks(None)
    by_engine.config["annotations"] = {"cdi.k8s.io/plugin": "amd.com/gpu=1"}
    patients = {
        "well": (bundle("debian").asks(None, **both), ""),
        "missing": (bundle("debian").asks(None, **both), "nsenter -t $PID -m /bin/busybox rm /dev/kfd"),
        "unknown": (bundle("debian").asks(None, **both), "rm /dev/infiniband/uverbs0"),
        "by its engine": (by_engine, SPEC),
    }
    found = examined(patients, description="none", vendors=("amd", "rdma"))
    code, findings = found["well"]
    assert (code, not_passed(findings)) == (0, ["open"]), findings
    assert of(findings, "request") == [("pass", "OCI_AMD=1, by env; OCI_RDMA=mlx5_0, by env")]
    assert of(findings, "nodes") == [("pass", "4, with the driver's numbers")]
    assert of(findings, "libraries")[0][0] == of(findings, "ld.so.cache")[0][0] == "pass"
    is_broken(*found["missing"], "nodes", "/dev/kfd missing")
    assert "unknown device 'mlx5_0'" in of(found["unknown"][1], "request")[0][1]
    code, findings = found["by its engine"]
    assert code == 0 and "and no vendor's flag anything" in of(findings, "request")[0][1], findings


def is_broken(code: int, findings: Findings, check: str, seen: str) -> None:
    matching = [item for item in findings if (item["check"], item["level"]) == (check, "fail")]
    assert any(seen in item["seen"] for item in matching), findings
    assert all(NAME in item["remedy"] for item in matching)
    assert code == 1


LIBRARY = "/usr/local/nvidia/lib64/libcuda.so"
# As systemd does at daemon-reload: rules that know nothing of the GPUs, in a program beside ours.
WITHOUT_GPUS = """
cat >/run/deny.py <<'END'
import os, sys
sys.path.insert(0, "/usr/lib/oci-gpu-hook")
from oci_gpu_hook.kernel import bpf
deny = bytes.fromhex("b700000000000000" "9500000000000000")
program = bpf.prog_load(deny, name="deny")
cgroup = os.open(sys.argv[1], os.O_RDONLY)
bpf.prog_attach(cgroup, program, attach_flags=bpf.BPF_F_ALLOW_MULTI)
END
python3 /run/deny.py /sys/fs/cgroup$(sed -n 's/^0:://p' /proc/$PID/cgroup)
"""
UNMOUNT = "nsenter -t $PID -m /bin/busybox umount"
NEWER = """
sed s/580.65.06/580.65.07/ /proc/driver/nvidia/version >/run/version
mount --bind /run/version /proc/driver/nvidia/version
for file in /usr/lib/*/lib*.so.580.65.06; do cp $file ${file%6}7; done
"""
BROKEN = {
    WITHOUT_GPUS: ("open", "its device cgroup denies /dev/nvidiactl"),
    "rm /proc/$PID/root/dev/nvidia-uvm": ("nodes", "/dev/nvidia-uvm missing"),
    "cd /proc/$PID/root/dev; rm nvidiactl; mknod nvidiactl c 1 7; cd /": (
        "nodes",
        "/dev/nvidiactl is device 1:7, the driver's is 195:255",
    ),
    f"{UNMOUNT} {LIBRARY}.580.65.06": ("libraries", f"{LIBRARY}.580.65.06, {LIBRARY}.1, {LIBRARY} missing"),
    f"{UNMOUNT} /etc/ld.so.cache": ("ld.so.cache", "does not name"),
    # This one changes the host.
    NEWER: ("libraries", ".so.580.65.06 is there: the driver has changed since its start"),
}


def test_a_container_whose_gpu_is_broken(bundle: Maker) -> None:
    patients = {str(n): (bundle("debian").asks("0"), it) for n, it in enumerate(BROKEN)}
    for broken, (code, findings) in zip(BROKEN.values(), examined(patients).values()):
        is_broken(code, findings, *broken)


def test_other_containers(bundle: Maker) -> None:
    without, as_user, mig = (bundle("busybox").asks(it) for it in ("0", "0", "0:0"))
    without.config["hooks"] = {}
    for made in (as_user, mig):
        made.config["process"]["user"] = {"uid": 1000, "gid": 1000}
    patients = {
        "none": (bundle("busybox").asks(None), ""),
        "without the hook": (without, ""),
        "narrow": (as_user, "chmod 0600 /proc/$PID/root/dev/nvidiactl"),
        # Capability devices are for reading only.
        "mig": (mig, ""),
        "paused": (bundle("busybox").asks("0"), f"runc pause {NAME}"),
    }
    found = examined(patients, description="h100mig")
    code, findings = found["none"]
    assert (code, [item["level"] for item in findings]) == (0, ["pass", "warn", "pass"])
    assert "it asks for no GPU" in of(findings, "request")[0][1]
    code, findings = found["without the hook"]
    assert code == 1
    reason = "none of its 4 nodes is there: the hook did not run"
    assert of(findings, "nodes")[0][1].startswith(reason), findings
    assert f"runc delete --force {NAME}" in findings[-1]["remedy"]
    code, findings = found["narrow"]
    assert code == 1
    assert ("fail", "its user may not open /dev/nvidiactl") in of(findings, "open")
    code, findings = found["mig"]
    assert (code, not_passed(findings)) == (0, ["open"]), findings
    code, findings = found["paused"]
    assert (code, of(findings, "open")[0][0]) == (0, "warn")
    assert "it is paused" in of(findings, "open")[0][1]
