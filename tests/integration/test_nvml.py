# SPDX-License-Identifier: Apache-2.0
"""``inventory refresh`` and ``watch`` with real, unmodified pynvml on the simulated nodes' library, in order and not.

What the installed command finds is compared with the node's description, never with the code under test.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.gpunode import description
from tests.integration.conftest import Maker
from tests.integration.engines import in_turn, on_node, start, watched
from tests.integration.test_inventory_truth import NEXT_MODULE

FAULTS = {
    "no-nvml": "NVML cannot be asked: NVMLError_LibraryNotFound",
    "nvml-hangs": "NVML did not answer within 1 seconds",
    "nvml-errors": "NVML cannot be asked: NVMLError_Unknown",
}
# As NVIDIA's images write them in NVIDIA_REQUIRE_*.
BRANDS = {"tesla": "Tesla", "nvidia": "Nvidia"}


def refresh(name: str, *faults: str, words: str = "", **node: Any) -> dict[str, Any]:
    """What ``inventory refresh`` says, and the saved inventory says the same to the next reader."""
    script = f"oci-gpu-hook inventory refresh --json {words}; echo ,; "
    script += "oci-gpu-hook info --saved --json"
    out = on_node(script, description=name, faults=faults, **node).printed()
    answer: dict[str, Any]
    answer, shown = (json.loads(text) for text in out.split("\n,\n", 1))
    assert answer.pop("saved") == "/run/oci-gpu-hook/inventory"
    assert answer == shown
    return answer


@pytest.mark.parametrize("name", ["v100", "h100x8", "h100mig"])
def test_refresh_knows_what_only_nvml_knows(name: str) -> None:
    node, found = description.load(name), refresh(name)
    assert (found["driver_version"], found["cuda_version"]) == (node.driver, node.cuda)
    keys: tuple[str, ...] = ("uuid", "minor", "compute_capability", "brand")
    assert [tuple(gpu[key] for key in keys) for gpu in found["gpus"]] == [
        (gpu.uuid, gpu.minor, gpu.compute_capability, BRANDS[gpu.brand]) for gpu in node.gpus
    ]
    wanted = [
        (index, number, mig.uuid, mig.profile, mig.gi, mig.ci)
        for index, gpu in enumerate(node.gpus)
        for number, mig in enumerate(gpu.mig)
    ]
    keys = ("gpu", "number", "uuid", "profile", "gi", "ci")
    assert [tuple(mig[key] for key in keys) for mig in found["mig_devices"]] == wanted
    assert found["unknown"] == []


@pytest.mark.parametrize("fault", FAULTS)
def test_refresh_says_what_is_unknown_without_nvml(fault: str) -> None:
    """Everything that /proc tells is there, and nothing is guessed."""
    node = description.load("h100mig")
    # What answers is waited for, however slow the machine is.
    seconds = 1 if fault == "nvml-hangs" else 600
    found = refresh("h100mig", fault, words=f"--nvml-timeout {seconds}")
    assert found["driver_version"] == node.driver
    assert [gpu["uuid"] for gpu in found["gpus"]] == [gpu.uuid for gpu in node.gpus]
    assert {(gpu["compute_capability"], gpu["brand"]) for gpu in found["gpus"]} == {("", "")}
    assert float(node.cuda) - 1 < float(found["cuda_version"]) <= float(node.cuda), "a lower bound"
    instances = [(mig.gi, mig.ci) for gpu in node.gpus for mig in gpu.mig]
    assert [(mig["gi"], mig["ci"]) for mig in found["mig_devices"]] == instances
    assert {(mig["uuid"], mig["number"]) for mig in found["mig_devices"]} == {(None, None)}
    silence, *rest = found["unknown"]
    assert silence.startswith(FAULTS[fault])
    assert any("CUDA version is taken from the driver's branch" in line for line in rest)
    assert any("compute capability and brand of GPU 0, 1:" in line for line in rest)
    assert any("UUIDs and numbers of 4 MIG devices" in line for line in rest)


def test_nvml_is_not_asked_where_nobody_wants_it() -> None:
    cuda = float(description.load("v100").cuda)
    found = refresh("v100", "nvml-hangs", words="--nvml-timeout 0")
    assert found["unknown"][0] == "NVML was not asked: --nvml-timeout 0"
    assert cuda - 1 < float(found["cuda_version"]) <= cuda, "a lower bound"
    assert not [line for line in found["unknown"] if "MIG" in line]


def test_a_lost_gpu_takes_no_other_with_it() -> None:
    node, found = description.load("h100x8"), refresh("h100x8", "gpu-lost")
    assert found["cuda_version"] == node.cuda
    first, *others = found["gpus"]
    assert first["uuid"] == node.gpus[0].uuid, "/proc knows it all the same"
    assert (first["compute_capability"], first["brand"]) == ("", "")
    known = {(gpu["compute_capability"], gpu["brand"]) for gpu in others}
    assert known == {("9.0", "Nvidia")}
    assert any("compute capability and brand of GPU 0:" in line for line in found["unknown"])


UNLISTED = """
oci-gpu-hook inventory refresh
oci-gpu-hook doctor | grep -A 1 "NVML did not list"
oci-gpu-hook cdi generate | grep -c '"name": "[0-9]*"'
"""


def test_a_gpu_that_nvml_does_not_list_has_no_index_and_is_given_to_nobody(bundle: Maker) -> None:
    """Index 1 is nvidia-smi's, the third of the kernel's; a container with all has the seven others."""
    node, found = description.load("h100x8"), refresh("h100x8", "gpu-unlisted")
    uuids = [gpu.uuid for gpu in node.gpus]
    assert [gpu["uuid"] for gpu in found["gpus"]] == [uuids[0], *uuids[2:]]
    assert [gpu["nvml_index"] for gpu in found["gpus"]] == list(range(7))
    assert len(found["unlisted"]) == 1 and not [line for line in found["unknown"] if "GPU" in line]
    one, every = bundle("debian").asks("1"), bundle("debian").asks("all")
    one.runs("/bin/sh", "-c", "nvidia-smi -L")
    every.runs("/bin/sh", "-c", "ls /dev/nvidia[0-9]* | grep -c .")
    scripts = {"told": UNLISTED, "one": start("runc", one), "all": start("runc", every)}
    look = "oci-gpu-hook metrics --gpus --write\ngrep -E '^oci_gpu_hook_gpus |healthy.* 0$' /run/gpus.prom\n"
    scripts["counted"] = f"{look}oci-gpu-hook features | grep unhealthy"
    seen = in_turn(scripts, faults=("gpu-unlisted",), settings="gpu-metrics = /run/gpus.prom\n")
    address = found["unlisted"][0]
    assert f"  not listed by NVML, and given to no container: {address}" in seen["told"], seen
    assert any(address in line and "fail" in line for line in seen["told"]), seen
    assert any("journalctl --dmesg" in line for line in seen["told"]) and seen["told"][-1] == "7", seen
    assert uuids[2] in seen["one"][0] and seen["all"] == ["7"], seen
    healthy = f'oci_gpu_hook_gpu_healthy{{device="GPU {address}"}} 0'
    assert seen["counted"][:2] == ["oci_gpu_hook_gpus 8", healthy] and "unhealthy-gpus=1" in seen["counted"][2]


def test_a_library_of_another_release_is_not_believed() -> None:
    """As after an upgrade without a reboot: libnvidia-ml and the kernel module do not fit."""
    found = refresh("h100x8", "driver-version")
    assert found["driver_version"] == "580.65.07"
    assert {gpu["compute_capability"] for gpu in found["gpus"]} == {""}
    assert found["unknown"]


def test_nvml_is_found_below_a_driver_root() -> None:
    root = "/run/nvidia/driver"
    how = {"driver_root": root, "layout": "current", "settings": f"driver-root = {root}\n"}
    found = refresh("h100x8", **how)
    assert found["unknown"] == []
    assert {gpu["compute_capability"] for gpu in found["gpus"]} == {"9.0"}


def test_watch_goes_through_an_upgrade_and_writes_the_spec_anew() -> None:
    """First the module is new and the libraries are old, which is no driver to write a spec of."""
    steps = f"""
until_said 'wrote '
{NEXT_MODULE}
until_said 'waiting for the driver'
grep -c '^wrote ' /tmp/said
folder=$(dirname $(find /usr/lib /usr/lib64 -maxdepth 2 -name libcuda.so.580.65.06 | head -n 1))
for old in $(find $folder -name '*.so.580.65.06'); do cp $old ${{old%06}}09; done
touch /etc/ld.so.cache
until_said '^wrote ' 2
"""
    said = watched(steps, "--cdi-spec /tmp/gpu.yaml")
    assert said.startswith("1\n"), said
    half = "the kernel module is 580.65.09, but libnvidia-ml is there as 580.65.06"
    assert said.count(f"waiting for the driver: {half}") == 1
    assert said.count("wrote ") == 2


def test_watch_outlives_a_full_disk_and_then_writes_what_is_due() -> None:
    """Of the inventory, and of the spec, for which NVML is not asked again."""
    steps = """
until_said 'waiting to write: cannot save the inventory'
umount /run/oci-gpu-hook
until_said 'hook/inventory: '
until_said 'waiting to write: cannot write /tmp/full/gpu.yaml'
sleep 1
umount /tmp/full
until_said 'wrote /tmp/full/gpu.yaml'
"""
    full = """mkdir -p /tmp/full /run/oci-gpu-hook
for folder in /tmp/full /run/oci-gpu-hook; do
    mount -t tmpfs -o size=8k,mode=755 none $folder
    head -c 9000 /dev/zero >$folder/rest 2>/dev/null || true
done
"""
    words = "--cdi-spec /tmp/full/gpu.yaml"
    said = watched(steps, words, full)
    counts = [said.count(it) for it in ("hook/inventory: ", "waiting to write", "device (make room in")]
    assert counts == [1, 2, 1], said
    assert said.count("No space left on device (make room on the file system of /tmp/full)") == 1


def test_watch_outlives_what_others_put_in_the_specs_place() -> None:
    """A folder, a FIFO and another program's spec: the inventory is kept true, and the spec comes after."""
    steps = """
until_said 'waiting to write: /run/cdi/gpu.yaml is there and is not a regular file'
rm /run/oci-gpu-hook/inventory
until_said 'saved /run/oci-gpu-hook/inventory: ' 2
rmdir /run/cdi/gpu.yaml && mkfifo /run/cdi/gpu.yaml
sleep 1
rm /run/cdi/gpu.yaml && echo '{"kind": "nvidia.com/gpu"}' >/run/cdi/gpu.yaml
until_said 'is not a CDI spec of ours'
rm /run/cdi/gpu.yaml
until_said 'wrote /run/cdi/gpu.yaml'
"""
    said = watched(steps, "--cdi-spec /run/cdi/gpu.yaml", "mkdir -p /run/cdi/gpu.yaml")
    assert said.count("is not a regular file") == 1, said


def test_watch_ends_at_once_while_nvml_hangs() -> None:
    """Ended in the middle of asking, it leaves no process behind that holds a GPU open."""
    steps = """
asking=
until [ "$asking" ]; do
    sleep 0.1
    for child in $(cat /proc/$watch/task/$watch/children); do asking=$(cat /proc/$child/task/$child/children); done
done
"""
    after = '\n! kill -0 $asking 2>/dev/null && echo "nobody asks any more"'
    said = watched(steps, "--nvml-timeout 600", after=after, faults=("nvml-hangs",))
    assert said.endswith("nobody asks any more\n")
