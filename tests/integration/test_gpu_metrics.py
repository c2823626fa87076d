# SPDX-License-Identifier: Apache-2.0
"""``metrics --gpus`` by the installed command: what NVML says on the simulated nodes, in order and not.

Real pynvml reads the node's library, a real container holds a GPU, and the distribution's promtool checks the text.
The kernel's log is a file of the node's own.  Must not import the source tree's modules.
"""

from __future__ import annotations

import os
import re
from types import SimpleNamespace
from typing import cast

from tests.gpunode import description
from tests.gpunode.content import Content
from tests.gpunode.faults import FAULTS
from tests.integration.conftest import Maker
from tests.integration.engines import REPOSITORY, Installed, in_turn, on_node

FILE = "/run/collector/gpus.prom"
SETTINGS = f"gpu-metrics = {FILE}\n"
# Of the node: nothing is ever written to this machine's log.
LOG = "rm /dev/kmsg; : >/dev/kmsg\n"
FIRST = '{uuid="%s"}'
VALIDATION = (
    '{"time":5,"driver_version":"590.48.01","steps":[{"name":"driver","outcome":"failed","why":"it has no root"}]}'
)


def series(lines: list[str]) -> dict[str, float]:
    pairs = [line.rpartition(" ") for line in lines if line.startswith("oci_gpu_hook_")]
    return {key.replace("oci_gpu_hook_", ""): float(value) for key, _, value in pairs}


def xid(sequence: int, bus: str, number: int, level: int = 4) -> str:
    return f"echo '{level},{sequence},1,-;NVRM: Xid (PCI:{bus[:-2]}): {number}, pid=1' >>/dev/kmsg\n"


def test_readings_are_those_of_the_node(installed: Installed, bundle: Maker) -> None:
    """And promtool has nothing to say about them, while a container holds a GPU."""
    holder = bundle("debian").asks("1").runs("/bin/sh", "-c", "echo up; sleep 1000")
    node = description.load("h100x8")
    # What the service has: without it nobody knows what the cgroup lets the container open.
    unit = (REPOSITORY / "packaging/systemd/oci-gpu-hook-gpu-metrics.service").read_text()
    (names,) = re.findall("^CapabilityBoundingSet=CAP_(.*)", unit, re.MULTILINE)
    bounded = f"setpriv --bounding-set=-all,+{names.lower().replace(' cap_', ',+')}"
    script = f"""{LOG}{xid(5, node.gpus[2].bus_id, 79)}{xid(6, node.gpus[2].bus_id, 48, 12)}
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
    done = on_node(installed, script, settings=SETTINGS)
    assert done.code == 0, done.err
    assert "mode 644" in done.out
    found = series(done.out.splitlines())
    for gpu in node.gpus:
        one = f'{{uuid="{gpu.uuid}"}}'
        assert found[f"gpu_up{one}"] == 1
        assert found[f"gpu_temperature_celsius{one}"] == gpu.readings["temperature"]
        assert found[f"gpu_power_limit_watts{one}"] == gpu.readings["power_limit"] / 1000
        assert found[f"gpu_memory_bytes{one}"] == gpu.memory_mib << 20
        assert found[f"gpu_memory_used_bytes{one}"] == gpu.readings["memory_used"]
        assert found[f"gpu_utilization_ratio{one}"] == gpu.readings["utilization"] / 100
        for error in ("corrected", "uncorrected"):
            key = f'{{uuid="{gpu.uuid}",error="{error}"}}'
            assert found[f"gpu_ecc_errors_total{key}"] == gpu.readings[f"ecc_{error}"]
    assert [key for key in found if key.startswith("gpu_xid")] == [
        f'gpu_xid_errors_total{{uuid="{node.gpus[2].uuid}",xid="79"}}'
    ]
    (held,) = [key for key in found if 'container="holder"' in key]
    assert held.startswith("gpu_container_info{")
    assert f'uuid="{node.gpus[1].uuid}"' in held
    assert done.out.splitlines()[-3:] == ["held 1", "held 1", "held 0"]
    assert 0 < found["collection_duration_seconds"] < 60
    assert found["inventory_fresh"] == 1


# What hangs: nothing else is cut off, however slow the machine is; beside a GPU that hangs the other one answers.
SECONDS = {"gpu-hangs": 5, "nvml-hangs": 1}


def test_what_goes_wrong_is_told_and_takes_nothing_with_it(installed: Installed) -> None:
    """A GPU that hangs, is lost while it is asked, or lies; NVML that goes away; a driver that goes."""
    node = description.load("h100mig")
    first, second = [gpu.uuid for gpu in node.gpus]

    def says(fault: str) -> str:
        content = SimpleNamespace(proc={"gpunode/description": ""}, node=node)
        if fault:
            FAULTS[fault].plant(cast(Content, content))
        return (
            f"printf '{content.proc['gpunode/description']}' >>/proc/driver/gpunode/description\n"
            f"oci-gpu-hook metrics --gpus --timeout {SECONDS.get(fault, 600)} 2>&1\n"
            "cat /run/whole >/proc/driver/gpunode/description"
        )

    scripts = {
        "whole": "cp /proc/driver/gpunode/description /run/whole; oci-gpu-hook metrics --gpus --write; cat " + FILE,
        "hangs": says("gpu-hangs"),
        "falls": says("gpu-falls"),
        "lost": says("gpu-lost"),
        "leaves": says("nvml-leaves"),
        "lies": says("gpu-lies"),
        "twins": says("gpu-twins"),
        "silent": says("nvml-hangs"),
        "errors": says("nvml-errors"),
        "off the bus": "mkdir /tmp/none; mount --bind /tmp/none /proc/driver/nvidia/gpus/0000:18:00.0\n"
        "mv /dev/nvidia1 /tmp/\n" + says("") + "\noci-gpu-hook metrics --gpus --write; grep gpu_up " + FILE,
        "taken": "device=/sys/bus/pci/devices/0000:18:00.0\n"
        "[ ! -e $device ] || ln -sfn ../../../../bus/pci/drivers/vfio-pci $device/driver\n"
        f"oci-gpu-hook metrics --gpus --write; grep '^oci_gpu_hook_gpu_up' {FILE}",
        "no driver root": "printf 'driver-root = /nowhere\\n' >/run/conf\n"
        f"printf '{VALIDATION}' >/run/oci-gpu-hook/validation.json\n"
        "oci-gpu-hook metrics --gpus --config /run/conf 2>&1",
        "gone": "rm /run/oci-gpu-hook/validation.json\n"
        "mount --bind /tmp/none /proc/driver/nvidia; oci-gpu-hook metrics --gpus --write; cat " + FILE,
        "unset": "rm /etc/oci-gpu-hook.conf; oci-gpu-hook metrics --gpus --write",
    }
    done = in_turn(installed, scripts, LOG, description="h100mig", settings=SETTINGS)
    found = {name: series(lines) for name, lines in done.items()}
    for name in ("hangs", "falls", "lost"):
        up = [found[name][f'gpu_up{{uuid="{uuid}"}}'] for uuid in (first, second)]
        assert up == [0, 1], name
        assert not [key for key in found[name] if first in key and "celsius" in key]
        assert found[name][f'gpu_temperature_celsius{{uuid="{second}"}}'] == 42
    assert {value for key, value in found["leaves"].items() if key.startswith("gpu_up")} == {0}
    assert found["leaves"]["nvml_up"] == 1
    lies = [key for key in found["lies"] if first in key]
    assert f'gpu_memory_bytes{{uuid="{first}"}}' in lies
    assert not [key for key in lies if "celsius" in key or "used" in key]
    for name in ("lies", "twins"):
        assert [found[name][f'gpu_up{{uuid="{uuid}"}}'] for uuid in (first, second)] == [1, 1]
    for name, sentence in (("silent", "NVML did not answer within 1 seconds"), ("errors", "NVMLError_Unknown")):
        assert sentence in "\n".join(done[name])
        assert (found[name]["nvml_up"], found[name]["gpus"]) == (0, 2)
        assert not [key for key in found[name] if key.startswith("gpu_up")]
    assert {*done["off the bus"][-2:]} == {
        f'oci_gpu_hook_gpu_up{{uuid="{second}"}} 1',
        f'oci_gpu_hook_gpu_up{{uuid="{first}"}} 0',
    }
    assert "the driver root /nowhere is not there" in "\n".join(done["no driver root"])
    told = {"driver_up": 1, "nvml_up": 0, "gpus": 1, 'validation_passed{step="driver"}': 0}
    assert {key: found["no driver root"][key] for key in told} == told
    # For a virtual machine, by an administrator.
    assert len(done["taken"]) == (1 if os.path.isdir("/sys/bus/pci/devices") else 2)
    assert {re.sub("_(seconds|timestamp).*", "", key): value for key, value in found["gone"].items() if value < 1} == {
        "driver_up": 0,
        "collection_duration": found["gone"]["collection_duration_seconds"],
    }
    assert len(found["gone"]) == 3
    assert done["unset"] == ["no setting 'gpu-metrics': nothing written"]
