# SPDX-License-Identifier: Apache-2.0
"""What an administrator gives to a cluster: real schemas accept it, and it grants little."""

from __future__ import annotations

import base64
import fcntl
import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from oci_gpu_hook.errors import RequestError
from oci_gpu_hook.request.parse import parse_request
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.request.sources import Inputs
from tests import pods
from tests.unit import manifests
from tests.unit.manifests import AGENTS, OPENSHIFT, admitted, containers, documents, judge, named, pod_of

MADE = ("machineconfig.yaml", "machineconfig-selinux.yaml")
PODS = sorted(path.name for path in (OPENSHIFT / "pods").glob("*.yaml"))
ARCHIVE = "/usr/local/libexec/oci-gpu-hook/payload.tar.xz"
IGNITION = shutil.which("ignition-validate")
GPU_NODE = {"feature.node.kubernetes.io/pci-10de.present": "true"}


@pytest.fixture(scope="session")
def machineconfigs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `make openshift` fills: once for all of pytest-xdist's processes, as it takes seconds."""
    folder = tmp_path_factory.getbasetemp().parent / "machineconfigs"
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            ran = subprocess.run((sys.executable, manifests.GENERATE, folder), capture_output=True, text=True)
            assert ran.returncode == 0, ran.stderr
    return folder


def config_of(path: Path) -> dict[str, Any]:
    (document,) = documents(path)
    config: dict[str, Any] = document["spec"]["config"]
    return config


def node_files(config: dict[str, Any]) -> dict[str, bytes]:
    """What Ignition puts on the node, by path."""
    found = {}
    for file in config["storage"]["files"]:
        head, _, packed = file["contents"]["source"].partition(",")
        assert (head, file["contents"]["compression"]) == ("data:;base64", "gzip")
        found[file["path"]] = gzip.decompress(base64.b64decode(packed))
    return found


def unpacked(machineconfigs: Path) -> dict[str, bytes]:
    """What install-node.sh installs, by path."""
    found = {}
    with tarfile.open(fileobj=io.BytesIO(node_files(config_of(machineconfigs / MADE[0]))[ARCHIVE])) as archive:
        for entry in archive:
            file = archive.extractfile(entry)
            assert file is not None and (entry.uid, entry.mtime) == (0, 0)
            found[f"/{entry.name}"] = file.read()
    return found


# --- schemas ------------------------------------------------------------------------------------


def test_every_document_is_what_its_schema_says(machineconfigs: Path) -> None:
    kinds = []
    for path in (*OPENSHIFT.rglob("*.yaml"), *(machineconfigs / name for name in MADE)):
        for document in documents(path):
            kinds.append(document["kind"])
            if document["metadata"]["name"] == "oci-gpu-hook" and document["kind"] == "DaemonSet":
                # A field since Kubernetes 1.30.
                document["spec"]["template"]["spec"]["containers"][0]["securityContext"].pop("appArmorProfile")
            if document["kind"] != "MachineConfigPool":
                judge(document["kind"]).validate(document)
    assert sorted(set(kinds)) == [
        "ClusterAutoscaler", "DaemonSet", "Deployment", "Job", "LimitRange", "MachineAutoscaler",
        "MachineConfig", "MachineConfigPool", "Namespace", "Pod", "PriorityClass", "ResourceQuota",
        "Role", "RoleBinding", "SecurityContextConstraints", "ServiceAccount",
    ]  # fmt: skip


@pytest.mark.skipif(not IGNITION, reason="this machine has no ignition-validate")
@pytest.mark.parametrize("name", MADE)
def test_what_the_nodes_get_is_what_ignition_takes(machineconfigs: Path, name: str) -> None:
    """A key that it does not know is a warning."""
    config = json.dumps(config_of(machineconfigs / name))
    ran = subprocess.run((str(IGNITION), "-"), input=config, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


# --- the MachineConfigs -------------------------------------------------------------------------


def test_two_runs_make_the_same_bytes(machineconfigs: Path) -> None:
    assert not subprocess.run((sys.executable, manifests.GENERATE, machineconfigs, "--check")).returncode


def test_check_says_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert manifests.generate_without_package(tmp_path) == manifests.generate_without_package(tmp_path, "--check") == 0
    with open(tmp_path / MADE[0], "a") as file:
        file.write("# edited\n")
    capsys.readouterr()
    assert manifests.generate_without_package(tmp_path, "--check") == 1
    assert capsys.readouterr().err == f"generate.py: {tmp_path / MADE[0]} is not this tree's: make it again\n"
    assert manifests.generate_without_package(tmp_path / "none", "--check") == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_the_node_gets_the_udev_rule_and_nothing_of_this_machine(machineconfigs: Path) -> None:
    """That it has all else that it needs is shown where it runs, by tests/packaging."""
    files = unpacked(machineconfigs) | node_files(config_of(machineconfigs / MADE[0]))
    rule = "60-oci-gpu-hook.rules"
    assert files[f"/etc/udev/rules.d/{rule}"] == (manifests.ROOT / "packaging/systemd" / rule).read_bytes()
    for path, content in files.items():
        # Image-based systems can be written nowhere else.
        assert path.startswith(("/usr/local/", "/etc/")), path
        assert str(manifests.ROOT).encode() not in content, path
        assert sys.executable.encode() not in content, path


def test_the_size_is_what_the_cluster_takes(machineconfigs: Path) -> None:
    """etcd refuses more than 1.5 MiB, and the rendered one holds all of the pool's.

    kubectl's annotation takes 262,144 bytes, and the package alone, as one archive, is more: so the server applies it.
    """
    sizes = [(machineconfigs / name).stat().st_size for name in MADE]
    assert sizes[0] < 640 * 1024
    assert len(config_of(machineconfigs / MADE[0])["storage"]["files"]) < 8
    readme = (OPENSHIFT / "README.md").read_text()
    for name, size in zip(MADE, sizes):
        (line,) = [line for line in readme.splitlines() if "apply" in line and f".build/openshift/{name}" in line]
        assert ("--server-side" in line) or size < 1 << 18, line


def test_the_registration_is_none_that_outlives_the_machineconfig(machineconfigs: Path) -> None:
    """In a folder of hooks it would stop every container once the program is gone."""
    files = node_files(config_of(machineconfigs / MADE[0]))
    assert [path for path in files if "containers/oci" in path] == []
    payload = unpacked(machineconfigs)
    registration = json.loads(payload["/usr/local/share/containers/oci/hooks.d/oci-gpu-hook.json"])
    assert registration["hook"]["path"] in payload
    unit, *_ = config_of(machineconfigs / MADE[0])["systemd"]["units"]
    drop_in = files["/etc/crio/crio.conf.d/90-oci-gpu-hook.conf"].decode()
    (folder,) = [word.partition("=")[2] for word in unit["contents"].split() if "HOOKS_DIR=" in word]
    assert folder.startswith("/run/")
    assert f'"{folder}"' in drop_in


@pytest.mark.parametrize("name", MADE)
def test_a_unit_starts_what_is_delivered_and_before_the_engine(machineconfigs: Path, name: str) -> None:
    config = config_of(machineconfigs / name)
    unit, *_ = config["systemd"]["units"]
    lines = unit["contents"].splitlines()
    (start,) = [line for line in lines if line.startswith("ExecStart=")]
    assert start.split()[1] in node_files(config)
    # The program is there before the units that keep nodes and inventory.
    ours = " oci-gpu-hook-devices.service oci-gpu-hook-inventory.service" if name == MADE[0] else ""
    assert f"Before=crio.service kubelet.service{ours}" in lines
    assert unit["enabled"] is True


def test_role_and_settings_are_taken(tmp_path: Path) -> None:
    settings = tmp_path / "settings"
    settings.write_text("driver-root = /run/nvidia/driver\n")
    assert manifests.generate_without_package(tmp_path, "--role", "master", "--settings", str(settings)) == 0
    (document,) = documents(tmp_path / MADE[0])
    assert document["metadata"]["labels"] == {"machineconfiguration.openshift.io/role": "master"}
    files = node_files(document["spec"]["config"])
    assert files["/etc/oci-gpu-hook.conf"] == settings.read_bytes()


def test_the_pool_takes_the_role_that_is_made_by_default(machineconfigs: Path) -> None:
    pool = named("machineconfigpool.yaml", "MachineConfigPool")
    (expression,) = pool["spec"]["machineConfigSelector"]["matchExpressions"]
    (document,) = documents(machineconfigs / MADE[0])
    assert document["metadata"]["labels"][expression["key"]] in expression["values"]
    assert GPU_NODE.items() <= pool["spec"]["nodeSelector"]["matchLabels"].items()


# --- what is granted ----------------------------------------------------------------------------


def test_the_constraints_allow_what_the_pods_ask_for_and_no_more() -> None:
    scc = named("scc.yaml", "SecurityContextConstraints")
    spec = named("daemonset.yaml", "DaemonSet")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    asked = container["securityContext"]
    assert admitted(spec, scc)
    assert asked["capabilities"] == {"add": scc["allowedCapabilities"], "drop": ["ALL"]}
    assert scc["allowedCapabilities"] == ["SYS_CHROOT"]
    assert asked["seLinuxOptions"] == scc["seLinuxContext"]["seLinuxOptions"]
    assert asked["runAsUser"] == scc["runAsUser"]["uid"]
    assert asked["readOnlyRootFilesystem"] is True
    assert asked["appArmorProfile"] == {"type": "Unconfined"}
    assert sorted({key for volume in spec["volumes"] for key in volume if key != "name"}) == scc["volumes"]
    assert manifests.allowed(scc) == ["allowHostDirVolumePlugin", "readOnlyRootFilesystem"]
    assert GPU_NODE.items() <= spec["nodeSelector"].items()


@pytest.mark.parametrize(
    ("constraints", "whose"), [("scc.yaml", "daemonset.yaml"), ("scc-nvidia-agent.yaml", "agents/namespace.yaml")]
)
def test_the_role_grants_the_use_of_that_one_and_nothing_else(constraints: str, whose: str) -> None:
    scc = named(constraints, "SecurityContextConstraints")
    assert scc["users"] == scc["groups"] == []
    (rule,) = named(constraints, "Role")["rules"]
    assert (rule["verbs"], rule["resourceNames"]) == (["use"], [scc["metadata"]["name"]])
    binding = named(constraints, "RoleBinding")
    account = named(whose, "ServiceAccount")["metadata"]
    assert [(one["name"], one["namespace"]) for one in binding["subjects"]] == [(account["name"], account["namespace"])]


@pytest.mark.parametrize("name", [*(f"pods/{name}" for name in PODS), *manifests.POOLS])
def test_a_pod_needs_no_privilege(name: str) -> None:
    """Kubernetes' level "restricted": nothing but a type of SELinux's is beyond it."""
    (document,) = documents(OPENSHIFT / name)
    spec = pod_of(document)["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    least = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    more = {"readOnlyRootFilesystem": True} if name.startswith("pods/nvidia-smi") else {}
    assert [it["securityContext"] for it in containers(spec)] == [{**least, **more}] * len(containers(spec))
    assert "volumes" not in spec
    assert "namespace" not in document["metadata"]


FOLDERS = {
    "device-plugin": "/var/lib/kubelet/device-plugins",
    "dcgm-exporter": "/var/lib/kubelet/pod-resources",
    "gpu-feature-discovery": "/etc/kubernetes/node-feature-discovery/features.d",
}


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_has_no_privilege_and_its_own_folder_alone(name: str) -> None:
    scc = named("scc-nvidia-agent.yaml", "SecurityContextConstraints")
    assert manifests.allowed(scc) == ["allowHostDirVolumePlugin", "readOnlyRootFilesystem"]
    daemons = named(f"agents/{name}.yaml", "DaemonSet")
    spec = daemons["spec"]["template"]["spec"]
    assert spec["automountServiceAccountToken"] is False
    account = named("agents/namespace.yaml", "ServiceAccount")["metadata"]
    assert (spec["serviceAccountName"], daemons["metadata"]["namespace"]) == (account["name"], account["namespace"])
    (container,) = spec["containers"]
    assert container["securityContext"] == {
        "runAsUser": scc["runAsUser"]["uid"],
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": scc["requiredDropCapabilities"]},
    }
    assert [volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume] == [FOLDERS[name]]


@pytest.mark.parametrize(
    ("file", "constraints", "type_"),
    [
        *((f"agents/{name}.yaml", "scc-nvidia-agent.yaml", "nvidia_agent_t") for name in AGENTS),
        ("pods/selinux.yaml", "scc-nvidia-container.yaml", "nvidia_container_t"),
    ],
)
def test_openshift_admits_a_pod_and_sets_its_type_and_level(file: str, constraints: str, type_: str) -> None:
    (document,) = documents(OPENSHIFT / file)
    pod = pod_of(document)
    scc = named(constraints, "SecurityContextConstraints")
    assert pod["metadata"]["annotations"]["openshift.io/required-scc"] == scc["metadata"]["name"]
    assert admitted(pod["spec"], scc) == {"type": type_, "level": "s0:c27,c9"}
    # The line that other clusters take is there, and is not for this one.
    pasted = (OPENSHIFT / file).read_text().replace("# seLinuxOptions:", "seLinuxOptions:")
    (document,) = yaml.safe_load_all(pasted)
    pod = pod_of(document)
    assert pod["spec"]["securityContext"]["seLinuxOptions"] == {"type": type_}
    assert admitted(pod["spec"], scc) is None


@pytest.mark.parametrize(
    "file", [*(f"pods/{it}" for it in PODS if "selinux" not in it and "smi" not in it), *manifests.POOLS]
)
def test_openshift_admits_a_pod_by_restricted_v2(file: str) -> None:
    (document,) = documents(OPENSHIFT / file)
    assert admitted(pod_of(document)["spec"], manifests.restricted()) == {"level": "s0:c27,c9"}


@pytest.mark.parametrize("name", AGENTS)
def test_on_nodes_with_mig_an_agent_may_monitor(name: str) -> None:
    """By the lines that are there to be uncommented, where the settings let it; and without a capability."""
    text = (OPENSHIFT / f"agents/{name}.yaml").read_text()
    assert "# - {name:" in text
    (daemons,) = yaml.safe_load_all(text.replace("# - {name:", "- {name:"))
    judge("DaemonSet").validate(daemons)
    environment = manifests.environment_of(pod_of(daemons)["spec"])
    asked, notes = parse_request(Inputs(environment), Settings(mig_monitor="always"))
    assert asked is not None
    assert (asked.devices, asked.mig_monitor, asked.mig_config, notes) == (("all",), True, False, ())
    with pytest.raises(RequestError, match="CAP_SYS_ADMIN"):
        parse_request(Inputs(environment), Settings())
    assert ("MIG_STRATEGY" in environment) is (name != "dcgm-exporter")
    scc = named("scc-nvidia-agent.yaml", "SecurityContextConstraints")
    assert admitted(pod_of(daemons)["spec"], scc) is not None


def test_the_two_that_are_most_confined_differ_in_selinuxs_type_alone() -> None:
    """They are what is played by podman, and on an enforcing kernel."""
    (plain,), (typed,) = (documents(OPENSHIFT / "pods" / name) for name in pods.FILES.values())
    assert typed["spec"]["securityContext"].pop("seLinuxOptions") == {"type": "nvidia_container_t"}
    typed["metadata"]["name"] = plain["metadata"]["name"]
    assert typed == plain


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        ("pods/cdi.yaml", "0"),
        ("pods/environment.yaml", "all"),
        ("pods/nvidia-smi.yaml", pods.UNKNOWN),
        ("pods/selinux.yaml", "all"),
        *((f"agents/{name}.yaml", "all") for name in AGENTS),
    ],
)
def test_the_hook_understands_what_a_pod_asks_for(name: str, devices: str) -> None:
    (pod,) = documents(OPENSHIFT / name)
    asked, notes = parse_request(Inputs(manifests.environment_of(pod_of(pod)["spec"])), Settings())
    assert asked is not None and (asked.devices, notes) == ((devices,), ())


def test_scripts_are_executable() -> None:
    for name in ("install-node.sh", "load-policy.sh", "generate.py"):
        assert os.access(OPENSHIFT / name, os.X_OK), name
