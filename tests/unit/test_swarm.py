# SPDX-License-Identifier: Apache-2.0
"""`configure docker --swarm`: names that the hook reads, and a daemon.json in which all else stays as it was."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oci_gpu_hook.driver import survey
from oci_gpu_hook.node.engines import installed
from oci_gpu_hook.node.gpus import nvml
from oci_gpu_hook.node.setup import daemonjson
from oci_gpu_hook.request import selectors
from oci_gpu_hook.request.settings import read_settings
from tests import manual
from tests.unit import hosts, starts
from tests.unit.program import Program
from tests.vocabulary.host import FACTS, MIG_UUID, plant

KEY = "node-generic-resources"
UUIDS = [hosts.uuid(1), hosts.uuid(0)]
# Tasks get GPUs of their own as long as there are.
SHARES = [f"GPU={uuid}-{share}" for share in (0, 1) for uuid in UUIDS]


@pytest.fixture()
def tree(tmp_path: Path) -> Path:
    hosts.host(tmp_path)
    hosts.plant(tmp_path, installed.PROGRAM, "")
    (tmp_path / "etc/docker").mkdir(parents=True)
    return tmp_path


def words(tree: Path, *options: object, name: str = "GPU") -> list[object]:
    return ["configure", "docker", "--host-root", tree, f"--swarm={name}", *options]


def left(tree: Path) -> list[str]:
    return sorted(os.listdir(tree / "etc/docker"))


def resources(tree: Path) -> list[str]:
    found: list[str] = json.loads((tree / "etc/docker/daemon.json").read_text())[KEY]
    return found


def test_a_dry_run_shows_what_the_hook_reads_back(program: Program, tree: Path) -> None:
    shown = program(*words(tree, "--shares", 2, "--dry-run"))
    assert re.findall(r'^\+ +"(GPU=.*?)"', shown, re.MULTILINE) == SHARES and left(tree) == []
    values = [item.partition("=")[2] for item in SHARES]
    assert [selectors.canonical(value, "") for value in values] == [*UUIDS, *UUIDS]
    program(*words(tree, name="NVIDIA-GPU"))
    assert resources(tree) == [f"NVIDIA-GPU={uuid}" for uuid in UUIDS]


def test_says_what_else_is_needed(program: Program, tree: Path) -> None:
    program(*words(tree, name="NVIDIA-GPU"))
    said = program.err
    assert "swarm-resources = DOCKER_RESOURCE_NVIDIA-GPU\n" in said
    assert "--set-as-default makes it so" in said and said.endswith("so that it holds: systemctl restart docker\n")
    hosts.plant(tree, "etc/docker/daemon.json", "{}")
    command = words(tree, "--set-as-default")
    hosts.plant(tree, "etc/oci-gpu-hook.conf", "swarm-resources = OTHER, DOCKER_RESOURCE_GPU\n")
    program(*command)
    assert program.err == "so that it holds: systemctl restart docker\n"
    assert program(*command) == "nothing to do in /etc/docker/daemon.json\n"
    assert program.err == ""
    # By its program: ours may have any name there.
    for path, is_told in (("/usr/bin/oci-gpu-runtime", False), ("/usr/bin/runc", True)):
        served = {"default-runtime": "gpu", "runtimes": {"gpu": {"path": path}}}
        hosts.plant(tree, "etc/docker/daemon.json", json.dumps(served))
        program(*words(tree))
        assert ("--set-as-default makes it so" in program.err) == is_told


def test_a_divided_gpu_is_named_by_its_mig_devices(tmp_path: Path) -> None:
    root = plant(tmp_path)
    found = nvml.with_facts(survey.survey(root), FACTS)
    named = daemonjson.devices(found, 2)
    assert MIG_UUID in named and len(set(named)) == len(named)
    for name in named:
        assert selectors.canonical(name, "")
    divided = {device.gpu for device in found.mig_devices}
    assert not any(str(found.gpus[number].uuid) in name for number in divided for name in named)


def test_gpus_without_a_name_are_not_guessed(program: Program, tree: Path) -> None:
    file = tree / "proc/driver/nvidia/gpus/0000:08:00.0/information"
    file.write_text(file.read_text().replace(hosts.uuid(0), hosts.NO_UUID))
    assert "GPU 1 has no UUID" in program.mistake(6, *words(tree))


def test_other_resources_stay(program: Program, tree: Path) -> None:
    others = ["FPGA=x", "GPU=old", "NVIDIA=" + UUIDS[0], "GPU=older"]
    hosts.plant(tree, "etc/docker/daemon.json", json.dumps({KEY: others}))
    program(*words(tree))
    ours = [f"GPU={uuid}" for uuid in UUIDS]
    assert resources(tree) == ["FPGA=x", *ours, f"NVIDIA={UUIDS[0]}"]
    assert "would give that GPU away twice" in program.err


@pytest.mark.parametrize("text", [f'{{"{KEY}": "GPU=1"}}', f'{{"{KEY}": [1]}}'])
def test_resources_that_dockerd_would_not_read_are_refused(program: Program, tree: Path, text: str) -> None:
    file = tree / "etc/docker/daemon.json"
    file.write_text(text)
    assert "is not a list" in program.mistake(4, *words(tree))
    assert file.read_text() == text and left(tree) == ["daemon.json"]


@pytest.mark.parametrize(("call", "there"), [("fsync", False), ("fchmod", True), ("rename", True), ("link", False)])
def test_on_a_full_disk(program: Program, tree: Path, monkeypatch: pytest.MonkeyPatch, call: str, there: bool) -> None:
    folder = tree / "etc/docker"
    if there:
        (folder / "daemon.json").write_text("{}")
    else:
        folder.rmdir()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    sentence = program.mistake(7, *words(tree))
    assert "No space left on device (make room on" in sentence
    assert left(tree) == ["daemon.json"] if there else not folder.exists()


# What a task makes of its share.


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize(
    ("given", "shares", "gpus", "share", "fraction"),
    [
        (f"{UUIDS[0]}-11", "12", UUIDS[0], "11", "0.07"),
        # The last group of a whole GPU's UUID is no share.
        (UUIDS[0], None, UUIDS[0], "", "0.90"),
        # CUDA shows no GPU at all where one is named twice.
        (f"{UUIDS[1]}-1,{UUIDS[1]}-0,{UUIDS[0]}-0", "4", f"{UUIDS[1]},{UUIDS[0]}", "0", "0.22"),
        ("MIG-00000000-1111-2222-3333-444444444444", None, "MIG-00000000-1111-2222-3333-444444444444", "", "0.90"),
    ],
)
def test_a_start_script_knows_its_share(
    tmp_path: Path, shell: str, given: str, shares: str | None, gpus: str, share: str, fraction: str
) -> None:
    script = tmp_path / "start"
    script.write_text(manual.start_script())
    environment = {"PATH": os.environ["PATH"], "DOCKER_RESOURCE_GPU": given}
    environment.update({"SHARES": shares} if shares else {})
    names = ("CUDA_VISIBLE_DEVICES", "GPU_SHARE", "XLA_PYTHON_CLIENT_MEM_FRACTION")
    show = [f"${{{name}-unset}}" for name in names]
    # Its words reach the command as they are, and its IFS is the shell's own again.
    line = [shell, "-eu", str(script), "sh", "-c", f'echo "{" ".join(show)}" "$1"', "x", "a b,c"]
    done = subprocess.run(line, env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{gpus} {share} {fraction} a b,c\n", "")


# --- packaging/swarm/make-worker.sh, with the real program on a host of its own

SCRIPT = starts.ROOT / "packaging/swarm/make-worker.sh"
RESTART = "restart dockerd, which reads its resources at its start only: systemctl restart docker"


@pytest.fixture()
def host(tmp_path: Path) -> Path:
    """A host with a driver and Docker, and the administrator's file."""
    host = tmp_path / "a host"
    hosts.host(host)
    hosts.plant(host, installed.PROGRAM, "")
    hosts.plant(host, "etc/docker/daemon.json", '{"debug": true}\n')
    hosts.plant(host, "etc/oci-gpu-hook.conf", "swarm-resources = DOCKER_RESOURCE_FPGA\n")
    hosts.plant(tmp_path, "bin/oci-gpu-hook", f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m oci_gpu_hook "$@"\n')
    # A restart of anything would be seen.
    hosts.plant(tmp_path, "bin/systemctl", "#!/bin/sh\necho restarted; exit 99\n")
    return host


def worker(host: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{host.parent}/bin:{os.environ['PATH']}", "PYTHONPATH": str(starts.ROOT)}
    line = ("sh", str(SCRIPT), "--root", str(host), *words)
    return subprocess.run(line, capture_output=True, text=True, env=environment, cwd=host)


def files(host: Path) -> dict[str, str]:
    return {str(path.relative_to(host)): path.read_text() for path in (host / "etc").rglob("*") if path.is_file()}


def settings(host: Path) -> tuple[str, ...]:
    return read_settings(str(host / "etc/oci-gpu-hook.conf"), None).swarm_resources


def test_shows_by_default_and_writes_nothing(host: Path) -> None:
    before = files(host)
    done = worker(host, "--shares", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert files(host) == before
    assert '"default-runtime": "oci-gpu-runtime"' in done.stdout
    assert f"GPU={UUIDS[0]}-1" in done.stdout
    assert "50-swarm.conf: swarm-resources = DOCKER_RESOURCE_FPGA, DOCKER_RESOURCE_GPU" in done.stdout
    assert done.stdout.endswith("nothing was written: --write does it\n")


def test_writes_all_that_a_worker_needs_and_says_which_restart(host: Path) -> None:
    hosts.plant(host, "etc/docker/daemon.json", '{"dns": []}\n')
    done = worker(host, "--write", "--name", "gpu-a", "--shares", "2")
    # What only people can do would be told, and nothing of what the script has done.
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == RESTART and "restarted" not in done.stdout
    written = json.loads((host / "etc/docker/daemon.json").read_text())
    assert written.pop("node-generic-resources") == [f"gpu-a={it}-{share}" for share in (0, 1) for it in UUIDS]
    runtime = {"oci-gpu-runtime": {"path": "/usr/bin/oci-gpu-runtime"}}
    assert written == {"dns": [], "default-runtime": "oci-gpu-runtime", "runtimes": runtime}
    assert settings(host) == ("DOCKER_RESOURCE_FPGA", "DOCKER_RESOURCE_GPU-A")
    assert (host / "etc/oci-gpu-hook.conf.d/50-swarm.conf").stat().st_mode & 0o7777 == 0o644


def test_a_second_time_there_is_nothing_to_do(host: Path) -> None:
    assert worker(host, "--write").stderr == ""
    before = files(host)
    done = worker(host, "--write")
    assert (done.returncode, done.stderr, done.stdout.splitlines()[-1]) == (0, "", "nothing to do")
    assert files(host) == before
    # More shares are another list, and another restart.
    assert worker(host, "--write", "--shares", "3").stdout.splitlines()[-1] == RESTART


def test_a_file_that_has_the_last_word_is_told_of(host: Path) -> None:
    hosts.plant(host, "etc/oci-gpu-hook.conf.d/90-site.conf", "swarm-resources = DOCKER_RESOURCE_FPGA\n")
    done = worker(host, "--write")
    assert done.returncode == 1
    assert "90-site.conf:1" in done.stderr and "another file has the last word" in done.stderr


def test_faults_end_it_before_anything_is_written(host: Path) -> None:
    before = files(host)
    for words, code, why in (
        (("--write", "--name", "a=b"), 2, "not a resource's name"),
        (("--shares",), 2, "--shares takes a word"),
        (("--wirte",), 2, "unknown word '--wirte'"),
    ):
        done = worker(host, *words)
        assert (done.returncode, why in done.stderr) == (code, True), done
    (host / "proc/driver/nvidia/version").unlink()
    done = worker(host, "--write")
    assert done.returncode == 6 and "no NVIDIA driver" in done.stderr
    assert files(host) == before
