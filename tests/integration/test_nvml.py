# SPDX-License-Identifier: Apache-2.0
"""``inventory refresh`` and ``watch`` with real, unmodified pynvml on the simulated nodes' library, in order and not.

What the installed command finds is compared with the node's description, never with the code under test.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.integration.engines import REPOSITORY, Installed, on_node

NODES = ("v100", "h100x8", "h100mig")
FAULTS = {
    "no-nvml": "NVML cannot be asked: NVMLError_LibraryNotFound",
    "nvml-hangs": "NVML did not answer within 1 seconds",
    "nvml-errors": "NVML cannot be asked: NVMLError_Unknown",
}
# As NVIDIA's images write them in NVIDIA_REQUIRE_*.
BRANDS = {"tesla": "Tesla", "nvidia": "Nvidia"}


def described(name: str) -> dict[str, Any]:
    """A node's description, GPUs in NVML's order."""
    text = (REPOSITORY / f"tests/gpunode/descriptions/{name}.json").read_text()
    node: dict[str, Any] = json.loads(text)
    node["gpus"].sort(key=lambda gpu: str(gpu["bus_id"]))
    return node


def refresh(installed: Installed, name: str, *faults: str, words: str = "") -> dict[str, Any]:
    """What ``inventory refresh`` says, and the saved inventory says the same to the next reader."""
    script = f"oci-gpu-hook inventory refresh --format json {words}; echo ,; "
    script += "oci-gpu-hook inventory show --format json"
    done = on_node(installed, script, description=name, faults=faults)
    assert done.code == 0, done.err
    told, shown = (json.loads(text) for text in done.out.split("\n,\n", 1))
    assert told.pop("saved") == "/run/oci-gpu-hook/inventory"
    assert told == shown
    answer: dict[str, Any] = told
    return answer


@pytest.mark.parametrize("name", NODES)
def test_refresh_knows_what_only_nvml_knows(installed: Installed, name: str) -> None:
    node, found = described(name), refresh(installed, name)
    assert (found["driver_version"], found["cuda_version"]) == (node["driver"], node["cuda"])
    assert [
        (gpu["uuid"], gpu["minor"], gpu["compute_capability"], gpu["brand"])
        for gpu in found["gpus"]
    ] == [
        (gpu["uuid"], gpu["minor"], gpu["compute_capability"], BRANDS[gpu["brand"]])
        for gpu in node["gpus"]
    ]
    wanted = [
        (index, number, mig["uuid"], mig["profile"], mig["gi"], mig["ci"])
        for index, gpu in enumerate(node["gpus"])
        for number, mig in enumerate(gpu.get("mig", ()))
    ]
    keys = ("gpu", "number", "uuid", "profile", "gi", "ci")
    assert [tuple(mig[key] for key in keys) for mig in found["mig_devices"]] == wanted
    assert found["unknown"] == []


@pytest.mark.parametrize("name", NODES)
@pytest.mark.parametrize("fault", FAULTS)
def test_refresh_works_without_nvml_and_says_what_is_unknown(
    installed: Installed, name: str, fault: str
) -> None:
    """Everything that /proc tells is there, and nothing is guessed."""
    node, found = described(name), refresh(installed, name, fault, words="--nvml-timeout 1")
    assert found["driver_version"] == node["driver"]
    assert [gpu["uuid"] for gpu in found["gpus"]] == [gpu["uuid"] for gpu in node["gpus"]]
    assert {(gpu["compute_capability"], gpu["brand"]) for gpu in found["gpus"]} == {("", "")}
    asked = float(node["cuda"])
    assert asked - 1 < float(found["cuda_version"]) <= asked, "a lower bound: the branch's"
    instances = [(mig["gi"], mig["ci"]) for gpu in node["gpus"] for mig in gpu.get("mig", ())]
    assert [(mig["gi"], mig["ci"]) for mig in found["mig_devices"]] == instances
    assert {(mig["uuid"], mig["number"]) for mig in found["mig_devices"]} <= {(None, None)}
    silence, *rest = found["unknown"]
    assert silence.startswith(FAULTS[fault])
    numbers = ", ".join(str(index) for index in range(len(node["gpus"])))
    assert any("CUDA version is taken from the driver's branch" in line for line in rest)
    assert any(f"compute capability and brand of GPU {numbers}:" in line for line in rest)
    said_of_mig = [line for line in rest if "UUIDs and numbers of 4 MIG devices" in line]
    assert bool(said_of_mig) == bool(instances)


def test_a_library_that_hangs_costs_the_limit_and_leaves_nobody_behind(
    installed: Installed,
) -> None:
    """Measured against a limit that is far longer, and by the process that asked."""
    script = """
oci-gpu-hook inventory refresh --nvml-timeout 600 >/dev/null & long=$!
oci-gpu-hook inventory refresh --nvml-timeout 0.5
kill -0 $long && echo 'the longer one still waits'
asking=$(cat /proc/$long/task/$long/children)
kill -KILL $long $asking
"""
    done = on_node(installed, script, faults=("nvml-hangs",))
    assert done.code == 0, done.err
    assert "NVML did not answer within 0.5 seconds" in done.out
    assert done.out.endswith("the longer one still waits\n")


def test_nvml_is_not_asked_where_nobody_wants_it(installed: Installed) -> None:
    found = refresh(installed, "h100mig", "nvml-hangs", words="--nvml-timeout 0")
    assert found["unknown"][0] == "NVML was not asked: --nvml-timeout 0"


@pytest.mark.parametrize("name", NODES)
def test_a_lost_gpu_takes_no_other_with_it(installed: Installed, name: str) -> None:
    node, found = described(name), refresh(installed, name, "gpu-lost")
    assert found["cuda_version"] == node["cuda"]
    first, *others = found["gpus"]
    assert first["uuid"] == node["gpus"][0]["uuid"], "/proc knows it all the same"
    assert (first["compute_capability"], first["brand"]) == ("", "")
    wanted = [(gpu["compute_capability"], BRANDS[gpu["brand"]]) for gpu in node["gpus"][1:]]
    assert [(gpu["compute_capability"], gpu["brand"]) for gpu in others] == wanted
    assert any("compute capability and brand of GPU 0:" in line for line in found["unknown"])


def test_a_library_of_another_release_is_not_believed(installed: Installed) -> None:
    """As after an upgrade without a reboot: libnvidia-ml and the kernel module do not fit."""
    found = refresh(installed, "h100x8", "driver-version")
    assert found["driver_version"] == "580.65.07"
    assert {gpu["compute_capability"] for gpu in found["gpus"]} == {""}
    assert found["unknown"]


@pytest.mark.parametrize("layout", ["multiarch", "lib64", "current"])
def test_nvml_is_found_below_a_driver_root(installed: Installed, layout: str) -> None:
    done = on_node(
        installed,
        "oci-gpu-hook inventory refresh --format json",
        driver_root="/run/nvidia/driver",
        layout=layout,
        settings="driver-root = /run/nvidia/driver\n",
    )
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["unknown"] == []
    assert {gpu["compute_capability"] for gpu in found["gpus"]} == {"9.0"}


def test_refresh_without_a_driver_is_one_sentence(installed: Installed) -> None:
    done = on_node(installed, "oci-gpu-hook inventory refresh", faults=("no-proc-driver",))
    assert done.code != 0
    assert "/proc/driver/nvidia is not: the kernel module is not loaded" in done.err
    assert "Traceback" not in done.err


# Runs the watch in the background, waits until a file holds some words, and ends it as systemd does.
WATCH = """
oci-gpu-hook inventory watch --interval 0.2 {words} >/tmp/told 2>&1 & watch=$!
until_told() {{
    for i in $(seq 300); do ! grep -q "$1" "$2" 2>/dev/null || return 0; sleep 0.1; done
    cat /tmp/told; return 1
}}
{steps}
kill -TERM $watch
wait $watch && echo "ended with $?"
cat /tmp/told
"""


def watched(installed: Installed, steps: str, words: str = "", **node: Any) -> str:
    """What is printed by the steps, then the watch's end, then what it said."""
    done = on_node(installed, WATCH.format(steps=steps, words=words), **node)
    assert done.code == 0, done.out + done.err
    assert "ended with 0\n" in done.out
    assert "Traceback" not in done.out + done.err
    return done.out


def test_watch_refreshes_at_once_and_ends_when_told(installed: Installed) -> None:
    told = watched(installed, "until_told 'saved ' /tmp/told", description="h100mig")
    assert "driver 590.48.01, 2 GPUs, 4 MIG devices" in told
    assert "not known" not in told


# The kernel module's next release, as an upgrade shows it.
UPGRADE = """
sed 's/580.65.06/580.65.09/' /proc/driver/nvidia/version >/tmp/version
mount --bind /tmp/version /proc/driver/nvidia/version
"""


def test_watch_goes_through_an_upgrade_and_writes_the_spec_anew(installed: Installed) -> None:
    """First the module is new and the libraries are old, which is no driver to write a spec of."""
    steps = f"""
until_told 'wrote ' /tmp/told
grep -A1 cdi-driver /tmp/gpu.yaml | grep -o '580[.0-9]*' | sort -u
{UPGRADE}
until_told 'waiting for the driver' /tmp/told
grep -A1 cdi-driver /tmp/gpu.yaml | grep -o '580[.0-9]*' | sort -u
folder=$(dirname $(find /usr/lib /usr/lib64 -maxdepth 2 -name libcuda.so.580.65.06 | head -n 1))
for old in $(find $folder -name '*.so.580.65.06'); do cp $old ${{old%06}}09; done
touch /etc/ld.so.cache
until_told '"580.65.09"' /tmp/gpu.yaml
grep -A1 cdi-driver /tmp/gpu.yaml | grep -o '580[.0-9]*' | sort -u
"""
    told = watched(installed, steps, "--cdi-spec /tmp/gpu.yaml")
    assert told.startswith("580.65.06\n580.65.06\n580.65.09\n"), told
    half = "the kernel module is 580.65.09, but libnvidia-ml is there as 580.65.06"
    assert told.count(f"waiting for the driver: {half}") == 1
    assert told.count("wrote ") == 2


def test_watch_sees_mig_devices_come_and_go(installed: Installed) -> None:
    """No event tells of them: only looking does. The spec follows."""
    steps = """
until_told 'wrote ' /tmp/told
grep -c 'name: "0:' /tmp/gpu.yaml
mkdir -p /tmp/none && mount --bind /tmp/none /proc/driver/nvidia/capabilities/gpu1/mig/gi13
until_told '3 MIG devices' /tmp/told
until_told 'wrote .*' /tmp/told
sleep 1
grep -c 'name: "0:' /tmp/gpu.yaml
umount /proc/driver/nvidia/capabilities/gpu1/mig/gi13
for i in $(seq 300); do [ $(grep -c '4 MIG devices' /tmp/told) = 2 ] && break; sleep 0.1; done
"""
    told = watched(installed, steps, "--cdi-spec /tmp/gpu.yaml", description="h100mig")
    assert told.startswith("4\n3\n"), told
    assert [line.split(", ")[-1] for line in told.splitlines() if line.startswith("saved ")] == [
        "4 MIG devices",
        "3 MIG devices",
        "4 MIG devices",
    ]


def test_watch_puts_back_a_saved_inventory_that_is_lost(installed: Installed) -> None:
    steps = """
until_told 'saved ' /tmp/told
rm /run/oci-gpu-hook/inventory
until_told . /run/oci-gpu-hook/inventory
sleep 1
"""
    assert watched(installed, steps).count("saved ") == 2


def test_watch_outlives_a_full_disk_and_then_writes_what_is_due(installed: Installed) -> None:
    """Of the inventory, and of the spec, for which NVML is not asked again."""
    steps = """
until_told 'waiting to write: cannot save the inventory' /tmp/told
umount /run/oci-gpu-hook
until_told 'saved ' /tmp/told
until_told 'waiting to write: cannot write /tmp/full/gpu.yaml' /tmp/told
sleep 1
umount /tmp/full
until_told 'wrote /tmp/full/gpu.yaml' /tmp/told
"""
    full = """mkdir -p /tmp/full /run/oci-gpu-hook
for folder in /tmp/full /run/oci-gpu-hook; do
    mount -t tmpfs -o size=8k,mode=755 none $folder
    head -c 9000 /dev/zero >$folder/rest 2>/dev/null || true
done
"""
    words = "--cdi-spec /tmp/full/gpu.yaml"
    told = on_node(installed, full + WATCH.format(steps=steps, words=words))
    assert told.code == 0, told.out + told.err
    assert "ended with 0\n" in told.out
    assert told.out.count("saved ") == 1, told.out
    assert told.out.count("waiting to write") == 2, told.out
    assert told.out.count("No space left on device (make room in") == 1, told.out
    assert told.out.count("No space left on device (make room on the file system of /tmp/full)") == 1


def test_watch_waits_for_a_driver_that_is_not_there_yet(installed: Installed) -> None:
    steps = """
until_told 'waiting for the driver' /tmp/told
sleep 1
test ! -e /run/oci-gpu-hook/inventory
umount /proc/driver/nvidia
until_told 'saved ' /tmp/told
"""
    hidden = "mkdir /tmp/empty && mount --bind /tmp/empty /proc/driver/nvidia"
    told = on_node(installed, hidden + WATCH.format(steps=steps, words=""))
    assert told.code == 0, told.out + told.err
    assert "ended with 0\n" in told.out
    assert told.out.count("waiting for the driver") == 1, told.out


def test_watch_ends_at_once_while_nvml_hangs(installed: Installed) -> None:
    """Ended in the middle of asking, it leaves nobody behind that holds a GPU open."""
    steps = """
for i in $(seq 300); do asking=$(cat /proc/$watch/task/$watch/children); [ -z "$asking" ] || break; sleep 0.1; done
test -n "$asking"
"""
    after = '\n! kill -0 $asking 2>/dev/null && echo "nobody asks any more"'
    script = WATCH.format(steps=steps, words="--nvml-timeout 600") + after
    done = on_node(installed, script, faults=("nvml-hangs",))
    assert done.code == 0, done.out + done.err
    assert "ended with 0\n" in done.out
    assert done.out.endswith("nobody asks any more\n")
