# SPDX-License-Identifier: Apache-2.0
"""packaging/swarm/make-worker.sh, with the real program on a host of its own."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from oci_gpu_hook.request.settings import read_settings
from tests.unit import hosts

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "packaging/swarm/make-worker.sh"
RESTART = "restart dockerd, which reads its resources at its start only: systemctl restart docker"
UUIDS = [hosts.uuid(1), hosts.uuid(0)]


@pytest.fixture()
def tree(tmp_path: Path) -> Path:
    """A host with a driver and Docker, and the administrator's file."""
    tree = tmp_path / "a host"
    hosts.host(tree)
    hosts.plant(tree, "etc/docker/daemon.json", '{"debug": true}\n')
    hosts.plant(tree, "etc/oci-gpu-hook.conf", "swarm-resources = DOCKER_RESOURCE_FPGA\n")
    program = tmp_path / "bin/oci-gpu-hook"
    hosts.plant(tmp_path, "bin/oci-gpu-hook", f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m oci_gpu_hook "$@"\n')
    # A restart of anything would be seen.
    hosts.plant(tmp_path, "bin/systemctl", "#!/bin/sh\necho restarted; exit 99\n")
    for file in program.parent.iterdir():
        file.chmod(0o755)
    return tree


def worker(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{tree.parent}/bin:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    line = ("sh", str(SCRIPT), "--root", str(tree), *words)
    return subprocess.run(line, capture_output=True, text=True, env=environment, cwd=tree)


def files(tree: Path) -> dict[str, str]:
    return {str(path.relative_to(tree)): path.read_text() for path in (tree / "etc").rglob("*") if path.is_file()}


def settings(tree: Path) -> tuple[str, ...]:
    return read_settings(str(tree / "etc/oci-gpu-hook.conf"), None).swarm_resources


def test_shows_by_default_and_writes_nothing(tree: Path) -> None:
    before = files(tree)
    done = worker(tree, "--shares", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert files(tree) == before
    assert '"default-runtime": "oci-gpu-runtime"' in done.stdout
    assert f"GPU={UUIDS[0]}-1" in done.stdout
    assert "50-swarm.conf: swarm-resources = DOCKER_RESOURCE_FPGA, DOCKER_RESOURCE_GPU" in done.stdout
    assert done.stdout.endswith("nothing was written: --write does it\n")


def test_writes_all_that_a_worker_needs_and_says_which_restart(tree: Path) -> None:
    hosts.plant(tree, "etc/docker/daemon.json", '{"dns": []}\n')
    done = worker(tree, "--write", "--name", "gpu-a", "--shares", "2")
    # What only people can do would be told, and nothing of what the script has done.
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == RESTART and "restarted" not in done.stdout
    written = json.loads((tree / "etc/docker/daemon.json").read_text())
    assert written.pop("node-generic-resources") == [f"gpu-a={it}-{share}" for share in (0, 1) for it in UUIDS]
    runtime = {"oci-gpu-runtime": {"path": "/usr/bin/oci-gpu-runtime"}}
    assert written == {"dns": [], "default-runtime": "oci-gpu-runtime", "runtimes": runtime}
    assert settings(tree) == ("DOCKER_RESOURCE_FPGA", "DOCKER_RESOURCE_GPU-A")
    assert (tree / "etc/oci-gpu-hook.conf.d/50-swarm.conf").stat().st_mode & 0o7777 == 0o644


def test_a_second_time_there_is_nothing_to_do(tree: Path) -> None:
    assert worker(tree, "--write").stderr == ""
    before = files(tree)
    done = worker(tree, "--write")
    assert (done.returncode, done.stderr, done.stdout.splitlines()[-1]) == (0, "", "nothing to do")
    assert files(tree) == before
    # More shares are another list, and another restart.
    assert worker(tree, "--write", "--shares", "3").stdout.splitlines()[-1] == RESTART


def test_a_file_that_has_the_last_word_is_told_of(tree: Path) -> None:
    hosts.plant(tree, "etc/oci-gpu-hook.conf.d/90-site.conf", "swarm-resources = DOCKER_RESOURCE_FPGA\n")
    done = worker(tree, "--write")
    assert done.returncode == 1
    assert "90-site.conf:1" in done.stderr and "another file has the last word" in done.stderr


def test_faults_end_it_before_anything_is_written(tree: Path) -> None:
    before = files(tree)
    for words, code, why in (
        (("--write", "--name", "a=b"), 2, "not a resource's name"),
        (("--shares",), 2, "--shares takes a word"),
        (("--wirte",), 2, "unknown word '--wirte'"),
    ):
        done = worker(tree, *words)
        assert (done.returncode, why in done.stderr) == (code, True), done
    (tree / "proc/driver/nvidia/version").unlink()
    done = worker(tree, "--write")
    assert done.returncode == 6 and "no NVIDIA driver" in done.stderr
    assert files(tree) == before
