# SPDX-License-Identifier: Apache-2.0
"""What a process that asks NVML prints: the driver's library may write lines of its own."""

from __future__ import annotations

from pathlib import Path

from oci_gpu_hook.node.gpus import nvml
from tests.unit import hosts

PROGRAM = """
import os
from oci_gpu_hook.node.gpus import nvml
os.write(1, b'{"error": "not ours"}\\n7\\n{"index": 0}\\n' + b"[" * 100000 + b"\\n")
nvml._say({"driver_version": "580.1", "cuda": 13000, "count": 2})
os.write(1, b'{"a": 1}\\n')
nvml._say({"index": 1, "uuid": "b"})
nvml._say({"index": 0, "uuid": "a"})
os.write(1, nvml._OURS + b'{"index": 2, "uu')
"""


def test_only_whole_lines_of_ours_are_an_answer(tmp_path: Path) -> None:
    root = hosts.host(tmp_path)
    found = nvml.ask_nvml(PROGRAM, root, hosts.surveyed(root)._replace(libraries=()), 60, whole=False)
    first = {"driver_version": "580.1", "cuda": 13000, "count": 2}
    assert found == (first, [{"index": 0, "uuid": "a"}, {"index": 1, "uuid": "b"}])
