# SPDX-License-Identifier: Apache-2.0
"""GPU pools: who goes where, who gives way, what is counted, and machines out of the cluster's own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.unit.manifests import AGENTS, OPENSHIFT, POOLS, ROOT, containers, documents, judge, named, pod_of

POOL, TAINT = "node-restriction.kubernetes.io/gpu-pool", "nvidia.com/gpu"


def tolerates(spec: dict[str, Any], pool: str) -> bool:
    """Whether a pod may go to the nodes of a pool, by their taint."""
    return any(it["key"] == TAINT and (it["operator"] == "Exists" or it["value"] == pool) for it in spec["tolerations"])


def test_a_validation_computes_first_and_on_the_gpu_that_the_rest_gets() -> None:
    spec = pod_of(named("pods/device-plugin-validation.yaml", "Job"))["spec"]
    first, main = containers(spec)
    assert first["resources"] == main["resources"] == {"limits": {TAINT: "1"}}
    assert "env" not in first and "command" not in first
    # It stops at the first fault, and a tainted node is no obstacle.
    assert spec["restartPolicy"] == "Never"
    assert tolerates(spec, "training") and tolerates(spec, "inference")


def wants(spec: dict[str, Any]) -> list[str]:
    """The pools that a pod's affinity lets it go to."""
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    pools: list[str] = required["nodeSelectorTerms"][0]["matchExpressions"][0]["values"]
    of_pools = {"key": POOL, "operator": "In", "values": pools}
    assert required == {"nodeSelectorTerms": [{"matchExpressions": [of_pools]}]}
    return pools


def test_who_goes_to_which_pool() -> None:
    training = pod_of(named("pools/training.yaml", "Job"))["spec"]
    inference = pod_of(named("pools/inference.yaml", "Deployment"))["spec"]
    assert wants(training) == ["training"] and not tolerates(training, "inference")
    assert set(wants(inference)) == {"training", "inference"}
    for spec in (training, inference):
        assert all(tolerates(spec, pool) for pool in wants(spec))
    (preferred,) = inference["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert preferred["preference"]["matchExpressions"][0]["values"] == ["inference"]
    # Whatever node it is, what serves the node comes there.
    for file in ("daemonset.yaml", *(f"agents/{name}.yaml" for name in AGENTS)):
        assert tolerates(pod_of(named(file, "DaemonSet"))["spec"], "any"), file


def test_training_gives_way_to_inference_and_ends_nothing() -> None:
    classes = {item["metadata"]["name"]: item for item in documents(OPENSHIFT / "pools/priorities.yaml")}
    training, inference = (pod_of(documents(OPENSHIFT / file)[0])["spec"]["priorityClassName"] for file in POOLS)
    assert classes[training]["value"] < classes[inference]["value"] < 10**9
    assert classes[training]["preemptionPolicy"] == "Never"
    assert not any("globalDefault" in item for item in classes.values())
    kept = named_quota("no-gpu-inference")
    (expression,) = kept["scopeSelector"]["matchExpressions"]
    assert (expression["scopeName"], expression["values"]) == ("PriorityClass", [inference])
    assert kept["hard"] == {"pods": "0"}


def named_quota(name: str) -> Any:
    quotas = [it for it in documents(OPENSHIFT / "pools/quota.yaml") if it["kind"] == "ResourceQuota"]
    return {it["metadata"]["name"]: it["spec"] for it in quotas}[name]


def test_a_namespaces_quota_counts_all_that_a_pod_asks_for() -> None:
    hard = named_quota("gpus")["hard"]
    assert {f"{kind}.{resource}" for kind in ("requests", "limits") for resource in ("cpu", "memory")} <= hard.keys()
    # Kubernetes counts no limits of extended resources, and refuses a quota with them.
    extended = [name for name in hard if "nvidia.com/" in name]
    assert all(name.startswith("requests.nvidia.com/") for name in extended)
    assert f"requests.{TAINT}" in extended and any("/mig-" in name for name in extended)
    # What a container leaves out is filled in, or it would not be admitted; GPUs are not a default.
    (item,) = named("pools/quota.yaml", "LimitRange")["spec"]["limits"]
    assert {"type", "default", "defaultRequest"} == item.keys()
    assert item["default"].keys() == item["defaultRequest"].keys() == {"cpu", "memory"}


CLUSTER = "ocp-7xk2p"
# What says which machine it is, and other things beside it.
CLOUDS: dict[str, dict[str, Any]] = {
    "aws": {"ami": {"id": "ami-0"}, "instanceType": "m6i.xlarge", "subnet": {"id": "subnet-0"}},
    "google": {"machineType": "n2-standard-4", "zone": "us-east1-b"},
    "azure": {"vmSize": "Standard_D4s_v3", "zone": "1"},
    "openstack": {"flavor": "m1.xlarge", "image": "rhcos"},
    "vsphere": {"numCPUs": 4, "memoryMiB": 16384},
}


def machineset(cloud: str) -> dict[str, Any]:
    (made,) = documents(ROOT / "tests/data/machineset.yaml")
    made["spec"]["template"]["spec"]["providerSpec"]["value"] = CLOUDS[cloud]
    return made


def commands(first: str) -> str:
    """The README's block of commands that begins with these words."""
    blocks = (OPENSHIFT / "README.md").read_text().split("\n\n")
    (block,) = [it for it in blocks if it.startswith(f"    {first}")]
    return textwrap.dedent(block).strip()


def copied(tmp_path: Path, document: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """The README's commands on a cluster whose MachineSets begin with this one."""
    assert shutil.which("jq"), "this needs jq: packaging/requirements.sh test installs it"
    (tmp_path / "cluster.json").write_text(json.dumps({"kind": "List", "items": [document, {}]}))
    oc = tmp_path / "oc"
    oc.write_text(f"""#!/bin/sh
case "$*" in
*" get machineset -o json") cat {tmp_path}/cluster.json ;;
"apply -f gpu.json") cat gpu.json >{tmp_path}/applied.json ;;
*) exit 9 ;;
esac
""")
    oc.chmod(0o755)
    (tmp_path / "packaging").symlink_to(ROOT / "packaging")
    # A command after the other as a person types them; diff says 1 where it has something to show.
    script = commands("oc -n openshift-machine-api").replace("\noc apply", " || [ $? = 1 ]\noc apply")
    line = ["bash", "-e", "-o", "pipefail", "-c", script]
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    return subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("cloud", [name for name in CLOUDS if name != "vsphere"])
def test_a_machineset_of_gpus_is_a_copy_of_the_clusters_own(tmp_path: Path, cloud: str) -> None:
    own = machineset(cloud)
    ran = copied(tmp_path, own)
    assert ran.returncode == 0, ran.stderr
    made = json.loads((tmp_path / "applied.json").read_text())
    judge("MachineSet").validate(made)
    name = f"{CLUSTER}-gpu-training"
    assert made["metadata"].keys() == {"name", "namespace", "labels", "annotations"}
    assert (made["metadata"]["name"], made["spec"]["replicas"], "status" in made) == (name, 0, False)
    template, selected = made["spec"]["template"], made["spec"]["selector"]["matchLabels"]
    assert selected["machine.openshift.io/cluster-api-machineset"] == name
    assert selected.items() <= template["metadata"]["labels"].items()
    # The cloud's part is the same but for the kind of machine.
    (key,) = [key for key in CLOUDS[cloud] if key in ("instanceType", "machineType", "vmSize", "flavor")]
    assert template["spec"]["providerSpec"]["value"] == {**CLOUDS[cloud], key: "g5.2xlarge"}
    # And the diff says what differs, and nothing else.
    changed = {line[1:].strip().rstrip(",") for line in ran.stdout.splitlines() if line[:1] in "+-"}
    assert f'"{key}": "g5.2xlarge"' in changed
    assert not any("subnet" in line or "zone" in line or "rhcos" in line for line in changed)


def test_a_pool_says_one_word_everywhere(tmp_path: Path) -> None:
    """The nodes' label and taint, who may go there, the type of GPU that is counted and the scaled machines."""
    assert copied(tmp_path, machineset("aws")).returncode == 0
    made = json.loads((tmp_path / "applied.json").read_text())
    spec = made["spec"]["template"]["spec"]
    labels = spec["metadata"]["labels"]
    (taint,) = spec["taints"]
    assert (taint["key"], taint["value"], taint["effect"]) == (TAINT, labels[POOL], "NoSchedule")
    assert commands("kubectl label node").splitlines() == [
        f"kubectl label node NODE {POOL}={labels[POOL]}",
        f"kubectl taint node NODE {TAINT}={taint['value']}:{taint['effect']}",
    ]
    assert labels[POOL] in wants(pod_of(named("pools/training.yaml", "Job"))["spec"])
    (gpus,) = named("pools/autoscaler.yaml", "ClusterAutoscaler")["spec"]["resourceLimits"]["gpus"]
    assert labels["cluster-api/accelerator"] == gpus["type"]
    scaled = [it for it in documents(OPENSHIFT / "pools/autoscaler.yaml") if it["kind"] == "MachineAutoscaler"]
    targets = [it["spec"]["scaleTargetRef"]["name"].replace("INFRASTRUCTURE", CLUSTER) for it in scaled]
    assert targets == [f"{CLUSTER}-gpu-{pool}" for pool in ("training", "inference")]
    assert made["metadata"]["name"] == targets[0]
    assert {it["metadata"]["namespace"] for it in scaled} == {made["metadata"]["namespace"]}


TAINTED = {"spec": {"metadata": {}, "taints": [{"key": "x", "effect": "NoSchedule"}]}}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"kind": "Machine"}, "this is a Machine, not one MachineSet"),
        ({"spec": {"replicas": 2, "template": TAINTED}}, "has taints: copy a set of plain workers"),
        ({"spec": machineset("vsphere")["spec"]}, "providerSpec names no kind of machine"),
    ],
)
def test_what_cannot_be_copied_is_not_applied(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    ran = copied(tmp_path, {**machineset("aws"), **change})
    assert ran.returncode != 0 and why in ran.stderr
    assert not (tmp_path / "applied.json").exists()
