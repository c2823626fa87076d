# SPDX-License-Identifier: Apache-2.0
"""`flags`: what it prints is correct input for a shell and Docker, and names what was asked for."""

from __future__ import annotations

import csv
import shlex
from pathlib import Path

import pytest

from oci_gpu_hook.cli import flags
from oci_gpu_hook.host.root import HostRoot
from tests.unit import cdi_engine, hosts
from tests.unit.program import Program
from tests.vocabulary.host import FACTS, UUID, plant

UUIDS = [hosts.uuid(1), hosts.uuid(0)]


@pytest.fixture()
def tree(tmp_path: Path) -> Path:
    hosts.host(tmp_path)
    return tmp_path


def command(tree: Path, *words: object) -> list[object]:
    first, *rest = words
    config = tree / "hook.conf"
    config.touch()
    return ["flags", first, "--host-root", tree, "--config", config, *rest]


def docker_reads(value: str) -> list[str]:
    """What Docker makes of the value of --gpus: a line of CSV, whose fields are KEY=VALUE."""
    (fields,) = csv.reader([value])
    return fields


# docker and podman.


def test_docker_has_a_line_for_each_way(program: Program, tree: Path) -> None:
    lines = program(*command(tree, "docker", 0, UUIDS[1].upper())).splitlines()
    assert [line[:1] for line in lines] == ["#", "-"] * 3
    gpus, runtime, cdi = [shlex.split(line) for line in lines[1::2]]
    assert gpus[0] == "--gpus" and docker_reads(gpus[1]) == [f"device=0,{UUIDS[1]}"]
    wanted = f"NVIDIA_VISIBLE_DEVICES=0,{UUIDS[1]}"
    assert runtime == ["--runtime", "oci-gpu-runtime", "--env", wanted]
    assert cdi == ["--device", "nvidia.com/gpu=0", "--device", f"nvidia.com/gpu={UUIDS[1]}"]
    assert program.err == ""


@pytest.mark.parametrize("devices", [["1"], ["0", "1"], ["all"]])
def test_one_way_is_for_the_shells_own_substitution(program: Program, tree: Path, devices: list[str]) -> None:
    """A shell splits what $(...) gives at blanks and takes no quotes away."""
    words = program(*command(tree, "docker", "--way", "gpus", *devices)).split()
    assert len(words) == 2
    assert docker_reads(words[1]) == ["all" if devices == ["all"] else f"device={','.join(devices)}"]
    for way in ("runtime", "cdi"):
        text = program(*command(tree, "docker", "--way", way, *devices))
        assert text.split() == shlex.split(text) and text.count("\n") == 1


def test_podman_by_the_hook_and_by_cdi(program: Program, tree: Path) -> None:
    lines = program(*command(tree, "podman", 1)).splitlines()
    assert lines[1::2] == ["--env NVIDIA_VISIBLE_DEVICES=1", "--device nvidia.com/gpu=1"]
    for words in ([], ["all"]):
        assert program(*command(tree, "podman", "--way", "cdi", *words)) == "--device nvidia.com/gpu=all\n"


def test_names_that_only_the_hook_knows_become_others(program: Program, tree: Path) -> None:
    """A CDI spec has no PCI addresses, and no shares."""
    lines = program(*command(tree, "docker", "0000:08:00.0", f"{UUIDS[0]}-3")).splitlines()
    assert lines[1] == f"""--gpus '"device=1,{UUIDS[0]}"'"""


def test_a_mig_devices_older_name_becomes_that_of_a_spec(program: Program, tmp_path: Path) -> None:
    plant(tmp_path)
    cdi_engine.node(tmp_path, tmp_path, FACTS)
    assert program(*command(tmp_path, "podman", "--way", "cdi", f"MIG-{UUID}/1/0")) == "--device nvidia.com/gpu=0:0\n"


def test_any_is_for_ways_by_which_the_hook_chooses(program: Program, tree: Path) -> None:
    words = command(tree, "docker", "any")
    (tree / "hook.conf").write_text("gpu-holders = 2\n")
    options = ["--gpus device=any:1", "--runtime oci-gpu-runtime --env NVIDIA_VISIBLE_DEVICES=any:1"]
    assert program(*words).splitlines()[1::2] == options
    for engine, way in (("docker", "cdi"), ("podman", "cdi")):
        said = program.mistake(2, *command(tree, engine, "--way", way, "any"))
        assert f"--way {way} needs the names of GPUs" in said


# LXC.


def test_what_proxmox_ve_makes_at_each_start_is_written_where_it_comes_from(tmp_path: Path) -> None:
    made, source = "/var/lib/lxc/100/config", "/etc/pve/lxc/100.conf"
    host = HostRoot(str(tmp_path))
    assert flags.source_of(host, made) == made
    hosts.plant(tmp_path, source, "arch: amd64\n")
    assert flags.source_of(host, made) == source
    for other in ("/var/lib/lxc/101/config", "/var/lib/lxc/one/config", "/srv/100/config", source):
        assert flags.source_of(host, other) == other


def test_lines_of_lxc_are_exchanged_for_new_ones() -> None:
    """All else of a configuration stays, in its order."""
    hook = "lxc.hook.mount = /bin/sh -c 'exec nvidia-container-cli {}'"
    new = [hook.format("new"), "lxc.cgroup2.devices.allow = c 195:0 rw"]
    theirs = ["lxc.cgroup2.devices.allow = c 195:7 rw", "lxc.hook.mount = /usr/bin/other"]
    # LXC's lines end in a newline alone: behind any other sign a comment goes on.
    odd = "# \x0clxc.apparmor.profile = unconfined\u2028lxc.cap.drop =\r"
    fuse, end = "lxc.cgroup2.devices.allow = c 10:229 rwm", "lxc.uts.name = one"
    old = [hook.format("old"), "lxc.cgroup.devices.allow = c 1:2 rw", "lxc.cgroup2.devices.allow = c 3:4 rw"]
    for before, after in (
        ([], new),
        ([end], [end, *new]),
        ([odd, "", end], [odd, "", end, *new]),
        ([*theirs, *old, fuse, *theirs, end], [*theirs, *new, fuse, *theirs, end]),
        ([*old, end, *old], [end, *new]),
        # A snapshot of Proxmox VE's has copies.
        ([end, "[before]", *old, end], [end, *new, "[before]", *old, end]),
        ([*old, end, "", "[before]", *old], [*new, end, "", "[before]", *old]),
    ):
        text = flags.with_lxc("".join([f"{line}\n" for line in before]), new)
        assert text == "".join([f"{line}\n" for line in after])
        assert flags.with_lxc(text, new) == text, "once more changes nothing"
