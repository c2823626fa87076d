# SPDX-License-Identifier: Apache-2.0
"""``metrics --gpus`` by the installed command: who holds what and what is healthy, in order and not.

Real pynvml reads the node's library, a real container holds a GPU, and the distribution's promtool checks the text.
The kernel's log is a file of the node's own.  Must not import the source tree's modules.
"""

from __future__ import annotations

import re

import pytest

from tests.gpunode import description
from tests.integration.conftest import Maker
from tests.integration.engines import REPOSITORY, in_turn, on_node
from tests.integration.test_validate import line_of

FILE = "/run/collector/gpus.prom"
SETTINGS = f"gpu-metrics = {FILE}\n"
# Of the node: nothing is ever written to this machine's log.
LOG = "rm /dev/kmsg; : >/dev/kmsg\n"
VALIDATION = (
    '{"time":5,"driver_version":"590.48.01","steps":[{"name":"driver","outcome":"failed","why":"it has no root"}]}'
)


def series(lines: list[str]) -> dict[str, float]:
    pairs = [line.rpartition(" ") for line in lines if line.startswith("oci_gpu_hook_")]
    return {key.replace("oci_gpu_hook_", ""): float(value) for key, _, value in pairs}


def xid(sequence: int, bus: str, number: int, level: int = 4) -> str:
    return f"echo '{level},{sequence},1,-;NVRM: Xid (PCI:{bus[:-2]}): {number}, pid=1' >>/dev/kmsg\n"


def test_who_holds_what_and_what_is_healthy_are_told(bundle: Maker) -> None:
    """And promtool has nothing to say about it.  The log's second record is a user's."""
    holder = bundle("debian").asks("1").runs("/bin/sh", "-c", "echo up; sleep 1000")
    node = description.load("h100x8")
    # What the service has: without it no command knows what the cgroup lets the container open.
    unit = (REPOSITORY / "packaging/systemd/oci-gpu-hook-gpu-metrics.service").read_text()
    (names,) = re.findall("^CapabilityBoundingSet=CAP_(.*)", unit, re.MULTILINE)
    bounded = f"setpriv --bounding-set=-all,+{names.lower().replace(' cap_', ',+')}"
    script = f"""{LOG}{xid(5, node.gpus[2].bus_id, 79)}{xid(6, node.gpus[3].bus_id, 48, 12)}
oci-gpu-hook inventory refresh >&2
runc run --bundle {holder.path} holder >/run/said & container=$!
until grep -q up /run/said; do sleep 0.1; done
oci-gpu-hook metrics --gpus --write
{bounded} oci-gpu-hook metrics --gpus >/run/bounded
setpriv --bounding-set=-all,+dac_override,+sys_ptrace oci-gpu-hook metrics --gpus >/run/less
runc kill holder KILL; wait $container || :
cat {FILE}; stat -c 'mode %a' {FILE}
promtool check metrics <{FILE} >&2
for file in {FILE} /run/bounded /run/less; do echo "held $(grep -c 'container="holder"' $file)"; done
"""
    out = on_node(script, settings=SETTINGS).printed()
    assert "mode 644" in out
    found = series(out.splitlines())
    healthy = {f'gpu_healthy{{device="GPU {number}"}}': float(number != 2) for number in range(len(node.gpus))}
    assert {key: found[key] for key in found if key.startswith("gpu_healthy")} == healthy
    assert (found["nvml_up"], found["kernel_log_readable"], found["gpus"]) == (1, 1, len(node.gpus))
    (held,) = [key for key in found if 'container="holder"' in key]
    assert held.startswith("gpu_container_info{")
    assert f'uuid="{node.gpus[1].uuid}"' in held
    assert out.splitlines()[-3:] == ["held 1", "held 1", "held 0"]
    assert 0 < found["collection_duration_seconds"] < 60
    assert found["inventory_fresh"] == 1


DIVIDED = description.load("h100mig")
# What hangs: nothing else is cut off, however slow the machine is; beside a GPU that hangs the other one answers.
SECONDS = {"gpu-hangs": 5, "nvml-hangs": 1}


@pytest.fixture(scope="module")
def said() -> dict[str, list[str]]:

    def says(fault: str) -> str:
        return (
            f"echo '{line_of(fault, DIVIDED)}' >>/proc/driver/gpunode/description\n"
            f"oci-gpu-hook metrics --gpus --write --timeout {SECONDS.get(fault, 600)} 2>&1\n"
            f"cat /run/whole >/proc/driver/gpunode/description; cat {FILE}"
        )

    scripts = {
        "whole": "cp /proc/driver/gpunode/description /run/whole; oci-gpu-hook metrics --gpus --write; cat " + FILE,
        "hangs": says("gpu-hangs"),
        "falls": says("gpu-falls"),
        "lost": says("gpu-lost"),
        "leaves": says("nvml-leaves"),
        "silent": says("nvml-hangs"),
        "errors": says("nvml-errors"),
        "again": f"oci-gpu-hook metrics --gpus --write; cat {FILE}",
        "lies": says("gpu-lies"),
        "no driver root": "printf 'driver-root = /nowhere\\n' >/run/conf\n"
        f"printf '{VALIDATION}' >/run/oci-gpu-hook/validation.json\n"
        "oci-gpu-hook metrics --gpus --config /run/conf 2>&1",
        "gone": "rm /run/oci-gpu-hook/validation.json\n"
        "mkdir /tmp/none; mount --bind /tmp/none /proc/driver/nvidia; oci-gpu-hook metrics --gpus --write; cat " + FILE,
        "unset": "rm /etc/oci-gpu-hook.conf; oci-gpu-hook metrics --gpus --write",
    }
    return in_turn(scripts, LOG, description="h100mig", settings=SETTINGS)


def test_a_gpu_that_is_lost_takes_no_other_with_it(said: dict[str, list[str]]) -> None:
    """One that hangs, or is lost while it is asked; NVML that goes away."""
    found = {name: series(lines) for name, lines in said.items()}
    healthy = {name: [value for key, value in it.items() if "gpu_healthy" in key] for name, it in found.items()}
    # The first GPU is divided: its devices are as it is.
    parts = len(DIVIDED.gpus[0].mig)
    for name in ("hangs", "falls", "lost"):
        assert healthy[name] == [1.0, *[0.0] * parts], name
    assert {*healthy["leaves"]} == {0}
    assert healthy["whole"] == healthy["again"] == healthy["lies"] == [1.0] * (parts + 1)
    assert found["leaves"]["nvml_up"] == 1


@pytest.mark.parametrize(
    ("name", "sentence", "told"),
    [
        ("silent", "NVML did not answer within 1 seconds", {"nvml_up": 0, "gpus": 2}),
        ("errors", "NVMLError_Unknown", {"nvml_up": 0, "gpus": 2}),
        (
            "no driver root",
            "the driver root /nowhere is not there",
            {"driver_up": 1, "nvml_up": 0, "gpus": 2, 'validation_passed{step="driver"}': 0},
        ),
        ("unset", "no setting 'gpu-metrics': nothing written", {}),
    ],
)
def test_what_goes_wrong_is_told(said: dict[str, list[str]], name: str, sentence: str, told: dict[str, float]) -> None:
    found = series(said[name])
    assert sentence in "\n".join(said[name])
    assert {key: found[key] for key in told} == told


def test_of_a_driver_that_has_gone_its_absence_is_told(said: dict[str, list[str]]) -> None:
    found = series(said["gone"])
    assert {key.partition("_seconds")[0] for key in found} > {"driver_up", "collection_duration"}
    assert (len(found), found["driver_up"]) == (3, 0)
