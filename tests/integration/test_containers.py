# SPDX-License-Identifier: Apache-2.0
"""``containers``, of several engines at once, and ``doctor --container``: who holds which GPU, and what is broken.

CRI-O's is a bundle as CRI-O writes it, with its annotations and its list of names, under a real runtime.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.integration import roots
from tests.integration.conftest import Maker
from tests.integration.engines import PODMAN_RUN, RUNTIMES, Bundle, cdi_devices, in_turn, podman, with_podman
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
{detached(runtime, bundle.path, NAME)}
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
        is_broken(*found["denied"], "open", "its device cgroup denies /dev/nvidiactl: its job has no more, or ")


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


CRIOS = "c0ffee" * 10 + "0123"
FULL = "k8s_main_gpu-pod_ml_6f1c_0"
WORDS = f"main gpu-pod ml/gpu-pod gpu-pod/main {FULL} {CRIOS} {CRIOS[:12]}"
USERDATA = f"/run/containers/storage/overlay-containers/{CRIOS}/userdata"
LIST = "/var/lib/containers/storage/overlay-containers/volatile-containers.json"


def as_crios(made: Bundle) -> str:
    """The shell lines that put a bundle and its name where CRI-O has them."""
    made.config["root"]["path"] = str(made.rootfs)
    made.config["annotations"] = {
        "io.container.manager": "cri-o",
        "io.kubernetes.cri-o.ContainerType": "container",
        "io.kubernetes.cri-o.Name": FULL,
        "io.kubernetes.container.name": "main",
        "io.kubernetes.pod.name": "gpu-pod",
        "io.kubernetes.pod.namespace": "ml",
    }
    made.runs(*SLEEPS)
    metadata = json.dumps({"pod-name": "k8s_gpu-pod_ml_6f1c_0", "pod-id": "d" * 64, "name": FULL})
    listed = json.dumps([{"id": CRIOS, "names": [FULL], "metadata": metadata}])
    return f"""
mount -t tmpfs none /var/lib
mkdir -p {USERDATA} {Path(LIST).parent}
cp {made.path}/config.json {USERDATA}/
printf %s {shlex.quote(listed)} >{LIST}
"""


def detached(runtime: str, bundle: object, id: str) -> str:
    return (
        f"{runtime} run --detach --bundle {bundle} {id} </dev/null >/dev/null 2>/run/said || "
        "{ cat /run/said >&2; exit 99; }\n"
    )


def gpus(item: dict[str, Any], key: str = "gpus") -> list[str]:
    return [share["name"] for share in item[key]]


@pytest.mark.parametrize("cgroup", ["v1", "v2"])
def test_who_holds_which_gpu(bundle: Maker, tmp_path: Path, driver: Path, cgroup: str) -> None:
    """Under CRI-O's names with runc, podman with crun, and bare crun and runc; one asks for none, one watches all."""
    crios, bare, without, plugin = bundle("busybox"), bundle("busybox"), bundle("busybox"), bundle("busybox")
    before = as_crios(crios.asks("1,5"))
    bare.asks("2").runs(*SLEEPS)
    without.asks(None).runs(*SLEEPS)
    plugin.asks("all", "utility").runs(*SLEEPS)
    root = roots.busybox(tmp_path / "root")
    words = f"{PODMAN_RUN} --detach --name patient {cdi_devices('nvidia.com/gpu=3')} --rootfs {root}"
    command = podman(f"{words} /bin/sh -c 'while :; do sleep 1; done'", runtime="crun", folder=tmp_path)
    deny = WITHOUT_GPUS
    if cgroup == "v1":
        deny = "echo a >/sys/fs/cgroup/devices$(sed -n 's/.*:devices://p' /proc/$PID/cgroup)/devices.deny"
    script = f"""{REFRESH}oci-gpu-hook cdi generate --output /etc/cdi/gpu.yaml >/dev/null
{before}
{detached("runc", USERDATA, CRIOS)}{detached("crun", bare.path, "bare-crun")}{detached("runc", without.path, "without")}
{detached("runc", plugin.path, "plugin")}
{command} </dev/null >/run/id 2>/run/said || {{ cat /run/said >&2; exit 99; }}
set +e
oci-gpu-hook containers --json
echo =
oci-gpu-hook containers
echo =
for word in {WORDS} patient $(cut -c 1-12 /run/id) bare-crun; do
    oci-gpu-hook doctor --container $word | head -n 1
done
oci-gpu-hook doctor --container patient --json
echo =
PID=$(crun state bare-crun | sed -n 's/.*"pid": *\\([0-9]*\\).*/\\1/p')
{deny}
oci-gpu-hook containers --json
kill -9 $(crun state $(cat /run/id) | sed -n 's/.*"pid": *\\([0-9]*\\).*/\\1/p')
for name in {CRIOS} without plugin; do runc delete --force $name >/dev/null 2>&1; done
oci-gpu-hook doctor --container main >&2
for name in bare-crun $(cat /run/id); do crun delete --force $name >/dev/null 2>&1; done
exit 0
"""
    done = with_podman(script, cgroup=cgroup)
    assert done.code == 0, done.out + done.err
    assert "Traceback" not in done.err, done.err
    first, table, found, denied = done.out.split("=\n")
    document = json.loads(first)
    ours = {it["name"] or it["id"]: it for it in document["containers"]}
    held = {name: (it["engine"], it["runtime"], gpus(it)) for name, it in ours.items()}
    wanted = {
        "main": ("CRI-O", "runc", ["1", "5"]),
        "patient": ("podman", "crun", ["3"]),
        "bare-crun": ("", "crun", ["2"]),
    }
    assert {name: held[name] for name in wanted} == wanted
    assert "without" not in held
    assert (ours["main"]["pod"], ours["main"]["namespace"]) == ("gpu-pod", "ml")
    assert {node["allowed"] for node in ours["main"]["nodes"]} == {True}
    print(table)
    assert "ml/gpu-pod/main  c0ffeec0ffee  CRI-O " in table
    assert set() < {it["name"] for it in document["free"]} <= {"0", "4", "6", "7"}
    watching = {**dict.fromkeys(wanted, False), "plugin": True}
    assert {name: ours[name]["watches"] for name in watching} == watching
    assert "plugin watches GPU 0, GPU 1, GPU 2, GPU 3, GPU 4, GPU 5, GPU 6, GPU 7, and can compute on none" in table
    names, brace, findings = found.partition("{\n")
    lines = names.splitlines()
    seen = {it["check"]: it["seen"] for it in json.loads(brace + findings)["findings"]}
    assert seen["request"].endswith(", by cdi") and seen["nodes"].endswith("with the driver's numbers"), seen
    assert [line for line in lines if "ml/gpu-pod/main (c0ffeec0ffee) of CRI-O" in line] == lines[:7]
    assert [line for line in lines if "patient (" in line and "of podman" in line] == lines[7:9]
    assert "bare-crun of crun" in lines[9]
    after = {it["id"]: it for it in json.loads(denied)["containers"]}["bare-crun"]
    assert (gpus(after), gpus(after, "denied")) == ([], ["2"])
    said = f"the container ml/gpu-pod/main does not run (crictl inspect {CRIOS[:12]})"
    assert said in done.err
