# SPDX-License-Identifier: Apache-2.0
"""The hook in a container that has some of the host's GPUs: the others have no number there, and none gets them."""

from __future__ import annotations

import json

import pytest

from tests.gpunode import description
from tests.integration.conftest import Maker
from tests.integration.engines import Installed, in_turn, on_node, start

# What such a container has: two of eight nodes, and one of the ways in which engines show that it is one.
KEPT = (3, 5)
NODES = "for node in 0 1 2 4 6 7; do rm /dev/nvidia$node; done\n"
MASKED = (
    "sed 's/^ModifyDeviceFiles: 1/ModifyDeviceFiles: 0/' /proc/driver/nvidia/params >/run/params\n"
    "mount --bind /run/params /proc/driver/nvidia/params\n"
)
MARKED = "mkdir -p /run/systemd; echo docker >/run/systemd/container\n"
MADE = "ls /dev | grep -c '^nvidia[0-9]'; nvidia-smi -L"


def uuids(*minors: int) -> list[str]:
    node = description.load("h100x8")
    return [gpu.uuid for minor in minors for gpu in node.gpus if gpu.minor == minor]


@pytest.mark.parametrize("shown", [MASKED, MARKED], ids=["masked", "marked"])
def test_only_its_own_gpus_are_numbered(installed: Installed, bundle: Maker, shown: str) -> None:
    every, second, users = bundle("debian").asks("all"), bundle("debian").asks("1"), bundle("debian").asks("all")
    other = bundle("debian").asks(uuids(0)[0])
    for made in (every, second, users.in_user_namespace(100_000), other):
        made.runs("/bin/sh", "-c", MADE)
    scripts = {
        "all": start("runc", every),
        "1": start("runc", second),
        "user namespace": start("crun", users),
        "another": f"{start('runc', other)} 2>&1 || :",
        "plan": f"oci-gpu-hook plan --bundle {every.path}",
        "info": "oci-gpu-hook info --json | tr -d '\\n'",
        "doctor": "oci-gpu-hook inventory refresh >&2; oci-gpu-hook doctor --json | tr -d '\\n'",
        "spec": "oci-gpu-hook cdi generate",
    }
    found = in_turn(installed, scripts, NODES + shown)
    first, last = uuids(*KEPT)
    for name, gpus in (("all", (first, last)), ("1", (last,)), ("user namespace", (first, last))):
        count, *listed = found[name]
        assert count == str(len(gpus)), (name, found)
        assert [uuid in line for uuid, line in zip(gpus, listed)] == [True] * len(gpus), found
    assert any("unknown device" in line and "has 2 GPUs, and none" in line for line in found["another"]), found
    assert len([line for line in found["plan"] if "is not numbered: this host is a container" in line]) == 6, found
    (info,) = found["info"]
    assert [gpu["uuid"] for gpu in json.loads(info)["gpus"]] == [first, last]
    assert len(json.loads(info)["elsewhere"]) == 6
    (said,) = found["doctor"]
    findings = {item["check"]: item for item in json.loads(said)["findings"]}
    assert "without a node here" in findings["GPUs"]["seen"]
    assert [findings[check]["level"] for check in ("GPUs", "nodes", "inventory")] == ["pass"] * 3, findings
    spec = json.loads("\n".join(found["spec"]))
    assert [it["name"] for it in spec["devices"]] == ["0", first, "1", last, "all", "none"]


def test_on_a_host_a_missing_node_is_made(installed: Installed, bundle: Maker) -> None:
    """After a boot nodes may not be there yet: the GPUs have their numbers all the same."""
    every = bundle("debian").asks("all")
    every.runs("/bin/sh", "-c", MADE)
    done = on_node(installed, NODES + start("runc", every))
    assert done.out.splitlines()[0] == "8", done.out


def test_a_node_by_another_gpus_name_counts_for_none(installed: Installed, bundle: Maker) -> None:
    """As ``--device /dev/nvidia3:/dev/nvidia0`` makes one: its number, not its name, says which GPU it is."""
    every = bundle("debian").asks("all")
    every.runs("/bin/sh", "-c", MADE)
    renamed = f"{NODES}rm /dev/nvidia3 /dev/nvidia5; mknod /dev/nvidia0 c 195 3\n{MARKED}"
    done = on_node(installed, f"{renamed}{start('runc', every)} 2>&1 || :")
    assert "drives no GPU" in done.out and "NVIDIA H100" not in done.out, done.out
