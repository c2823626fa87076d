# SPDX-License-Identifier: Apache-2.0
"""What ``doctor`` says of Docker where no planted fault of tests/integration/test_doctor.py has it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.diagnosis import PASS, WARN, Finding
from oci_gpu_hook.node.diagnosis import dockercheck as judged
from tests.unit import hosts

ENTRY = "/usr/libexec/oci/hooks.d/oci-gpu-hook"
LINK = "/usr/bin/nvidia-container-runtime-hook"
TARGET = "../libexec/oci/hooks.d/oci-gpu-hook"
JSON = "/etc/docker/daemon.json"


def program(tree: Path, path: str, mode: int = 0o755) -> None:
    hosts.plant(tree, path, "#!/bin/sh\n")
    (tree / path.lstrip("/")).chmod(mode)


@pytest.fixture()
def tree(tmp_path: Path) -> Path:
    """A host with Docker and our link."""
    program(tmp_path, "/usr/bin/dockerd")
    program(tmp_path, ENTRY)
    (tmp_path / LINK.lstrip("/")).symlink_to(TARGET)
    (tmp_path / "etc/docker").mkdir(parents=True)
    return tmp_path


def findings(tree: Path) -> list[Finding]:
    root = HostRoot(str(tree))
    found = judged.find_docker(root)
    return judged.docker(root, found, ENTRY, "apt") if found else []


def test_the_first_in_the_path_that_can_be_run_counts_if_docker_is_here(tree: Path) -> None:
    program(tree, "/usr/local/bin/nvidia-container-runtime-hook", 0o644)
    (found,) = findings(tree)
    assert found.level == PASS
    (tree / "usr/bin/dockerd").unlink()
    assert findings(tree) == []


def test_a_dockerd_that_runs_tells_its_path_and_its_file(tree: Path) -> None:
    hosts.plant(tree, "proc/77/stat", "77 (dockerd) S " + "0 " * 18 + "500 0 0\n")
    hosts.plant_program(tree, 77, "/usr/bin/dockerd (deleted)")
    hosts.plant(tree, "proc/77/environ", "A=1\0PATH=/opt/bin:relative:/usr/bin\0")
    hosts.plant(tree, "proc/77/cmdline", "dockerd\0--config-file=/opt/d.json\0--debug\0")
    # A process of a container's root; tests/hostile/beliefs.py has a user's, and a link to a set-user-ID program.
    hosts.plant_program(tree, 62, "/usr/bin/dockerd", namespace="other")
    hosts.plant(tree, "proc/62/stat", "62 (dockerd) S " + "0 " * 18 + "5 0 0\n")
    hosts.plant(tree, "proc/stat", "cpu 1\nbtime 1000\n")
    hosts.plant(tree, "opt/d.json", "nonsense")
    found = judged.find_docker(HostRoot(str(tree)))
    assert found is not None
    began = 1000 + 500 // os.sysconf("SC_CLK_TCK")
    assert found == (("/opt/bin", "/usr/bin"), "/opt/d.json", LINK, ENTRY, 77, began, None, found.fault)
    assert "/opt/d.json: it is not JSON" in findings(tree)[1].seen
    hosts.plant(tree, "proc/77/cmdline", "dockerd\0--config-file\0/gone\0")
    found = judged.find_docker(HostRoot(str(tree)))
    assert found is not None and found.file == "/gone" and len(findings(tree)) == 1


def test_a_daemon_json_that_is_no_object_is_a_warning(tree: Path) -> None:
    hosts.plant(tree, JSON, "[]")
    _, found = findings(tree)
    assert (found.level, found.seen, found.remedy) == (WARN, f"{JSON}: it is not a JSON object", f"vi {JSON}")


@pytest.mark.parametrize("runtimes", ["1", '{"a": 1, "b": {}, "c": {"path": 5}, "": {"path": ""}}'])
def test_a_daemon_json_of_any_shape_is_no_fault(tree: Path, runtimes: str) -> None:
    hosts.plant(tree, JSON, f'{{"runtimes": {runtimes}, "default-runtime": {{}}}}')
    (found,) = findings(tree)
    assert found.level == PASS
