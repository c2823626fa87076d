# SPDX-License-Identifier: Apache-2.0
"""``info --topology``: the matrix says what ``any:2`` goes by."""

from __future__ import annotations

import os
from pathlib import Path

from oci_gpu_hook.driver import proc, survey
from oci_gpu_hook.host import leases
from oci_gpu_hook.planning import placement
from oci_gpu_hook.request.selectors import AnyOf
from oci_gpu_hook.request.settings import Settings
from tests.unit import hosts
from tests.unit.program import Program

NODES = (0, 0, 1, 1)
PAIRS = {0: 2, 2: 0}


def command(tree: Path) -> tuple[object, ...]:
    hosts.plant(tree, "hook.conf", "gpu-holders = 3\n")
    return ("info", "--topology", "--host-root", tree, "--config", tree / "hook.conf")


def test_near_is_what_planning_calls_near(tmp_path: Path, program: Program) -> None:
    tree = tmp_path
    hosts.host(tree)
    assert "NVLinks are not known" in program(*command(tree)).splitlines()[-1], "NVML alone knows them"
    root = hosts.host(tree, gpus=4)
    root.remember = True
    found = survey.survey(root)
    for gpu, node in zip(found.gpus, NODES):
        hosts.plant(tree, f"sys/bus/pci/devices/{gpu.proc}/numa_node", f"{node}\n")
    peers = {at: (found.gpus[other].bus_id,) for at, other in PAIRS.items()}
    gpus = [gpu._replace(brand="NVIDIA", peers=peers.get(at, ())) for at, gpu in enumerate(found.gpus)]
    survey.save(root, proc.stamp(root, "/"), found._replace(gpus=tuple(gpus)))
    lease = leases.lease_of("c1", os.getpid(), Path("/proc/self/stat").read_bytes(), "", 3)
    with leases.Leases(root, is_written=True):
        leases.write(root, [lease._replace(devices=(gpus[1].bus_id,))])
    assert [line.split() for line in program(*command(tree)).splitlines()] == [
        ["GPU", "0", "1", "2", "3", "NUMA", "HOLDERS"],
        ["0", "x", "node", "NVLink", "-", "0", "0", "of", "3"],
        ["1", "node", "x", "-", "-", "0", "1", "of", "3"],
        ["2", "NVLink", "-", "x", "node", "1", "0", "of", "3"],
        ["3", "-", "-", "node", "x", "1", "0", "of", "3"],
    ]
    first, second = [row for row in program.document(*command(tree))["gpus"] if row["nvlinks"]]
    assert (first["nvlinks"], second["nvlinks"], first["numa_node"]) == (["2"], ["0"], 0)
    # The same devices as planning chooses among.
    chosen = placement.choose(placement.gpus(root, Settings(), AnyOf(2)), 2)
    assert [it.held.name for it in chosen] == [first["gpu"], second["gpu"]]
