# SPDX-License-Identifier: Apache-2.0
"""`configure docker --swarm`: names that the hook reads, and a daemon.json in which all else stays as it was."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_gpu_hook.driver import survey
from oci_gpu_hook.errors import ApplyError, ConfigError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.gpus import nvml
from oci_gpu_hook.node.setup import daemonjson, enginefile, swarmresources
from oci_gpu_hook.request import selectors
from oci_gpu_hook.request.settings import Settings
from tests import manual
from tests.unit import hosts
from tests.unit.program import Program
from tests.vocabulary.host import FACTS, MIG_UUID, plant

KEY = "node-generic-resources"
UUIDS = [hosts.uuid(1), hosts.uuid(0)]
# Tasks get GPUs of their own as long as there are.
SHARES = [f"GPU={uuid}-{share}" for share in (0, 1) for uuid in UUIDS]
ADMINISTRATORS = '{ "data-root": "/srv",\n\t"max": 1.0e3, "dns": ["::1"],\n "log-opts": {"a": "\\u00e9"} }'


# Ours may have any name there.
SERVED = {"default-runtime": "gpu", "runtimes": {"gpu": {"path": "/usr/bin/oci-gpu-runtime"}}}


@pytest.fixture()
def tree(tmp_path: Path) -> Path:
    hosts.host(tmp_path)
    (tmp_path / "etc/docker").mkdir(parents=True)
    return tmp_path


RUNTIME = {"runtimes": {"oci-gpu-runtime": {"path": "/usr/bin/oci-gpu-runtime"}}}


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
    assert "no shell shows a variable named DOCKER_RESOURCE_NVIDIA-GPU" in said
    hosts.plant(tree, "etc/docker/daemon.json", "{}")
    command = words(tree, "--set-as-default")
    hosts.plant(tree, "etc/oci-gpu-hook.conf", "swarm-resources = OTHER, DOCKER_RESOURCE_GPU\n")
    program(*command)
    assert program.err == "so that it holds: systemctl restart docker\n"
    assert program(*command) == "nothing to do in /etc/docker/daemon.json\n"
    assert program.err == ""
    hosts.plant(tree, "etc/docker/daemon.json", '{"live-restore": true}')
    program(*command)
    assert 'remove "live-restore"' in program.err


def test_a_divided_gpu_is_named_by_its_mig_devices(tmp_path: Path) -> None:
    root = plant(tmp_path)
    found = nvml.with_facts(survey.survey(root), FACTS)
    named = swarmresources.devices(found, 2)
    assert MIG_UUID in named and len(set(named)) == len(named)
    for name in named:
        assert selectors.canonical(name, "")
    divided = {device.gpu for device in found.mig_devices}
    assert not any(str(found.gpus[number].uuid) in name for number in divided for name in named)


def test_gpus_without_a_name_are_not_guessed(program: Program, tree: Path) -> None:
    file = tree / "proc/driver/nvidia/gpus/0000:08:00.0/information"
    file.write_text(file.read_text().replace(hosts.uuid(0), hosts.NO_UUID))
    assert "GPU 1 has no UUID" in program.mistake(6, *words(tree))


def test_writes_a_new_file(program: Program, tree: Path) -> None:
    (tree / "etc/docker").rmdir()
    old = os.umask(0o077)
    try:
        program(*words(tree, "--shares", 2))
    finally:
        os.umask(old)
    file = tree / "etc/docker/daemon.json"
    assert json.loads(file.read_text()) == {**RUNTIME, KEY: SHARES}
    assert file.stat().st_mode & 0o7777 == 0o644 and left(tree) == ["daemon.json"]


def test_all_else_stays_and_a_second_time_nothing_changes(program: Program, tree: Path) -> None:
    file = tree / "etc/docker/daemon.json"
    file.write_text(ADMINISTRATORS)
    file.chmod(0o640)
    program(*words(tree))
    text, status = file.read_text(), file.stat()
    assert text.startswith(ADMINISTRATORS[:-2]) and text.endswith("] }")
    assert status.st_mode & 0o7777 == 0o640
    program(*words(tree))
    again = file.stat()
    assert (again.st_ino, again.st_ctime_ns) == (status.st_ino, status.st_ctime_ns)
    assert left(tree) == ["daemon.json"]
    program(*words(tree, "--shares", 2))
    program(*words(tree))
    assert file.read_text() == text


def test_other_resources_stay(program: Program, tree: Path) -> None:
    others = ["FPGA=x", "GPU=old", "NVIDIA=" + UUIDS[0], "GPU=older"]
    hosts.plant(tree, "etc/docker/daemon.json", json.dumps({KEY: others}))
    program(*words(tree))
    ours = [f"GPU={uuid}" for uuid in UUIDS]
    assert resources(tree) == ["FPGA=x", *ours, f"NVIDIA={UUIDS[0]}"]
    assert "would give that GPU away twice" in program.err


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[]", "is not a JSON object"),
        ('"x"', "is not a JSON object"),
        ("{", "is not JSON: "),
        ('{"a": 1} x', "is not JSON: "),
        ('{"a": NaN}', "is not JSON: "),
        ("\ufeff{}", "is not JSON: "),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "is not JSON: "),
        ('{"a": 1, "a": 2}', "has the key 'a' twice"),
        ('{"b": [{"a": 1, "a": 2}]}', "has the key 'a' twice"),
        ('{"node-generic-resources": "GPU=1"}', "is not a list of strings"),
        ('{"node-generic-resources": [1]}', "is not a list of strings"),
    ],
)
def test_what_is_no_daemon_json_is_refused(program: Program, tree: Path, text: str, why: str) -> None:
    file = tree / "etc/docker/daemon.json"
    file.write_text(text)
    assert why in program.mistake(4, *words(tree))
    assert file.read_text() == text and left(tree) == ["daemon.json"]


def test_bytes_that_are_no_text_are_refused(program: Program, tree: Path) -> None:
    hosts.plant(tree, "etc/docker/daemon.json", b'{"a": "\xff"}')
    assert "not UTF-8 text" in program.mistake(4, *words(tree))
    os.unlink(tree / "etc/docker/daemon.json")
    os.mkfifo(tree / "etc/docker/daemon.json")
    assert "is not a regular file" in program.mistake(4, *words(tree))


def test_a_link_counts_where_root_alone_has_made_it(program: Program, tree: Path) -> None:
    """Here the tree's owner is root: a link in a folder of his own counts, one that others could make does not."""
    (tree / "srv").mkdir()
    (tree / "srv/real.json").write_text("{}")
    (tree / "etc/docker/daemon.json").symlink_to("/srv/real.json")
    program(*words(tree))
    written = (tree / "srv/real.json").read_text()
    assert KEY in written
    assert (tree / "etc/docker/daemon.json").is_symlink() and left(tree) == ["daemon.json"]
    for mode in (0o777, 0o1777):
        (tree / "etc/docker").chmod(mode)
        sentence = program.mistake(4, *words(tree, "--shares", 2))
        assert "is not root's alone" in sentence
    assert (tree / "srv/real.json").read_text() == written
    (tree / "etc/docker").chmod(0o755)
    (tree / "etc/docker/daemon.json").unlink()
    (tree / "etc/docker/daemon.json").symlink_to("nowhere")
    assert "is a dangling symbolic link" in program.mistake(4, *words(tree))


@pytest.mark.parametrize("there", [True, False])
def test_a_file_that_changes_meanwhile_is_left_alone(tree: Path, there: bool) -> None:
    file = tree / "etc/docker/daemon.json"
    if there:
        file.write_text("{}")
    root = HostRoot(str(tree))
    found = enginefile.read_settings_file(root, "/etc/docker/daemon.json")
    file.write_text('{"b": 1}')
    with pytest.raises(ApplyError, match="was changed by another program meanwhile"):
        enginefile.write(root, found, "{}")
    assert file.read_text() == '{"b": 1}' and left(tree) == ["daemon.json"]


@pytest.mark.parametrize(
    ("call", "there"), [*((call, there) for call in ("fsync", "fchmod") for there in (True, False)),
                        ("rename", True), ("link", False)]
)  # fmt: skip
def test_a_full_disk_leaves_nothing(
    program: Program, tree: Path, monkeypatch: pytest.MonkeyPatch, call: str, there: bool
) -> None:
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


def test_only_a_name_is_a_name(program: Program, tree: Path) -> None:
    for name in ("", "a=b", "-x", "a b", "x" * 64):
        assert "not a resource's name" in program.mistake(2, *words(tree, name=name))
    for shares in ("0", "101", "x"):
        program.mistake(2, *words(tree, "--shares", shares))
    program.mistake(2, *words(tree, "--remove"))
    program.mistake(2, "configure", "docker", "--shares", 2)


def test_settings_are_added_to_those_that_are_there() -> None:
    settings = Settings(swarm_resources=("OTHER",))
    told = swarmresources.advice(HostRoot(), SERVED, settings, "gpu", "/d")
    assert told == ["set in /etc/oci-gpu-hook.conf: swarm-resources = OTHER, DOCKER_RESOURCE_GPU"]


# What a task makes of its share.


def start_script() -> str:
    """The manual's example."""
    return next(it for it in manual.blocks("oci-gpu-hook-docker.7", "SWARM") if it.startswith("#!/bin/sh"))


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize(
    ("given", "shares", "gpus", "share", "fraction"),
    [
        (f"{UUIDS[0]}-0", "2", UUIDS[0], "0", "0.45"),
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
    script.write_text(start_script())
    environment = {"PATH": os.environ["PATH"], "DOCKER_RESOURCE_GPU": given}
    environment.update({"SHARES": shares} if shares else {})
    names = ("CUDA_VISIBLE_DEVICES", "GPU_SHARE", "XLA_PYTHON_CLIENT_MEM_FRACTION")
    show = [f"${{{name}-unset}}" for name in names]
    # Its words reach the command as they are, and its IFS is the shell's own again.
    line = [shell, "-eu", str(script), "sh", "-c", f'echo "{" ".join(show)}" "$1"', "x", "a b,c"]
    done = subprocess.run(line, env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{gpus} {share} {fraction} a b,c\n", "")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(
    st.dictionaries(st.text() | st.just(KEY), VALUES, max_size=5),
    st.lists(st.text()),
    st.sampled_from([None, 0, 1, 2, "\t"]),
)
def test_any_object_keeps_its_order_and_its_other_values(values: dict[str, Any], ours: list[str], indent: Any) -> None:
    text = json.dumps(values, indent=indent)
    written = daemonjson.with_value(text, (KEY,), ours)
    expected = {**values, KEY: ours}
    assert list(json.loads(written).items()) == list(expected.items())
    assert daemonjson.with_value(written, (KEY,), ours) == written
    if indent and values and KEY not in values:
        # It is laid out as the rest of the file is.
        assert written == json.dumps(expected, indent=indent)


def test_a_large_file_is_not_read(tree: Path) -> None:
    (tree / "etc/docker/daemon.json").write_text("{}" + " " * (1 << 20))
    with pytest.raises(ConfigError, match="larger than 1 MiB"):
        enginefile.read_settings_file(HostRoot(str(tree)), "/etc/docker/daemon.json")


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"default-runtime": "oci-gpu-runtime"},
        {"default-runtime": "runc", "runtimes": SERVED["runtimes"]},
        {"default-runtime": "gpu", "runtimes": {"gpu": {"path": "/usr/bin/runc"}}},
        {"default-runtime": "gpu", "runtimes": ["gpu"]},
    ],
)
def test_a_default_runtime_that_is_not_ours_is_told_of(values: dict[str, Any]) -> None:
    """By its program: dockerd refuses a name that stands for none."""
    settings = Settings(swarm_resources=("DOCKER_RESOURCE_GPU",))
    assert swarmresources.advice(HostRoot(), SERVED, settings, "GPU", "/d") == []
    (told,) = swarmresources.advice(HostRoot(), values, settings, "GPU", "/d")
    assert "--set-as-default" in told
