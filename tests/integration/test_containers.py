# SPDX-License-Identifier: Apache-2.0
"""Containers of several engines at once: who holds which GPU, and that each is found by what its engine calls it.

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
from tests.integration.engines import PODMAN_RUN, Bundle, cdi_devices, podman, with_podman
from tests.integration.inside import REFRESH
from tests.integration.test_doctor_container import SLEEPS, WITHOUT_GPUS

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
    assert {name: ours[name]["watches"] for name in (*wanted, "plugin")} == {
        **dict.fromkeys(wanted, False),
        "plugin": True,
    }
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
