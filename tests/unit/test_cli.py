# SPDX-License-Identifier: Apache-2.0
"""The command line for people: what it prints, its exit codes, and never a traceback."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NoReturn
from unittest.mock import Mock

import pytest

from oci_gpu_hook import cli
from oci_gpu_hook.cli import commands
from oci_gpu_hook.cli import inventory as command
from oci_gpu_hook.container import devicecgroup
from oci_gpu_hook.container.devicecgroup import DeviceCgroup
from oci_gpu_hook.driver import inventory, proc
from oci_gpu_hook.errors import ApplyError, DriverError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.gpus import missingnodes
from oci_gpu_hook.node.machine import childprocess, libselinux
from tests.unit import hosts
from tests.unit.containers import write_bundle
from tests.unit.program import Program

ROOT = Path(__file__).resolve().parents[2]
ALONE = "would leave this container alone"


@pytest.fixture()
def host(tmp_path: Path) -> Path:
    tree = tmp_path / "host"
    hosts.host(tree, gpus=8)
    return tree


@pytest.fixture()
def plan(tmp_path: Path, host: Path) -> list[object]:
    """The words that show the plan for a bundle that asks for two GPUs."""
    bundle = write_bundle(tmp_path, "NVIDIA_VISIBLE_DEVICES=1,5")
    hosts.plant(bundle, "rootfs/etc/debian_version", "12\n")
    return ["plan", "--bundle", bundle, "--host-root", host]


def test_plan_prints_one_json_object_and_changes_nothing(program: Program, plan: list[object], tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    document = program.document(*plan, "--id", "c1")
    bundle = str(tmp_path / "bundle")
    assert document["container"] == {"id": "c1", "bundle": bundle, "rootfs": f"{bundle}/rootfs"}
    assert document["request"]["devices"] == ["1", "5"]
    assert [operation["op"] for operation in document["operations"]][-2:] == ["ldcache", "cgroup"]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("end", ["--help >&-", "--help 2>&-", "--help >&- 2>&-", "--help; } | true", "; } | true"])
def test_an_output_that_is_closed_or_is_not_read_is_no_failure(end: str) -> None:
    """But a check that was not read to its end has not passed."""
    words = f"{'validate' if '--help' in end else 'doctor'} {end}{'' if '|' in end else '; }'}"
    script = f"set -o pipefail; {{ sleep 0.2; {sys.executable} -m oci_gpu_hook {words}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == ("doctor" in words, "")


@pytest.mark.parametrize(("word", "code"), [("doctor", 1), ("validate", 1), ("info", 0)])
def test_a_reader_that_goes_away_at_the_end_is_met_too(word: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Mock())
    monkeypatch.setattr(commands.program, "main", Mock(side_effect=BrokenPipeError))
    assert cli.main([word, "--json"]) == code


def test_plan_says_of_wrong_settings_what_the_hook_does(program: Program, plan: list[object], tmp_path: Path) -> None:
    """It stops a container that asks for something, and no other."""
    settings = tmp_path / "settings"
    settings.write_text("rubbish\n")
    sentence = f"{settings}:1: 'rubbish' is no"
    assert sentence in program.mistake(4, *plan, "--config", settings)
    write_bundle(tmp_path)
    out = program(*plan, "--config", settings)
    assert f"none: the hook {ALONE}" in out and sentence in out


@pytest.mark.parametrize(
    ("version", "setting", "code"), [("v2", "auto", 3), ("v2", "off", 0), ("v1", "auto", 0), ("", "auto", 0)]
)
def test_device_rules_of_the_wrong_shape_stop_nobody_who_does_not_need_them(
    program: Program,
    plan: list[object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    setting: str,
    code: int,
) -> None:
    found = DeviceCgroup(version, "", "", "" if version else "there is none")
    monkeypatch.setattr(devicecgroup, "find", lambda *_, **__: found)
    write_bundle(tmp_path, "NVIDIA_VISIBLE_DEVICES=1", linux={"resources": {"devices": [1]}})
    settings = tmp_path / "settings"
    settings.write_text(f"device-cgroup = {setting}\n")
    program(*plan, "--config", settings, code=code)
    assert ("linux.resources.devices" in program.err) == bool(code)


@pytest.mark.parametrize("is_users", [False, True])
def test_a_user_namespace_in_the_config_binds_the_nodes(
    program: Program, plan: list[object], tmp_path: Path, is_users: bool
) -> None:
    """The hook asks the container's process."""
    namespaces = [{"type": "mount"}, {"type": "user"}][: 1 + is_users]
    write_bundle(tmp_path, "NVIDIA_VISIBLE_DEVICES=1", linux={"namespaces": namespaces})
    operations = program.document(*plan)["operations"]
    assert {bool(item["source"]) for item in operations if item["op"] == "device"} == {is_users}


# A row: the code and the words of a command, HOST for a host's root; and what is said of a mistake in them.
MISTAKES = [row.split("\n") for row in (ROOT / "tests/data/mistakes.txt").read_text().strip().split("\n\n")]


@pytest.mark.parametrize(("line", "sentence"), MISTAKES)
def test_a_mistake_is_one_sentence_with_its_code(
    program: Program, host: Path, monkeypatch: pytest.MonkeyPatch, line: str, sentence: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    before = sorted(host.rglob("*"))
    code, *words = shlex.split(line.encode().decode("unicode_escape").replace("HOST", str(host)))
    assert sentence.replace("HOST", str(host)) in program.mistake(int(code), *words)
    assert sorted(host.rglob("*")) == before


@pytest.mark.parametrize(
    "words",
    ["info", "features", "containers", "inventory refresh", "flags podman", "cdi generate"]
    + ["plan --image-root . --env NVIDIA_VISIBLE_DEVICES=0"],
)  # fmt: skip
def test_a_host_has_its_own_settings(program: Program, host: Path, words: str) -> None:
    settings = host / "etc/oci-gpu-hook.conf"
    settings.parent.mkdir(exist_ok=True)
    settings.write_text("devcie-cgroup = on\n")
    assert f"{settings}:1: unknown key 'devcie-cgroup'" in program.mistake(4, *words.split(), "--host-root", host)


def test_a_plan_says_nothing_of_a_root_that_was_not_looked_at(program: Program, host: Path) -> None:
    said = program("plan", "--image-root", host, "--host-root", host)
    assert "leave this container alone" in said and "loader" not in said


def test_info_lists_the_driver_and_the_gpus(program: Program, host: Path) -> None:
    short, whole = [program("info", *words, "--host-root", host) for words in ((), ("--all",))]
    assert f"driver {hosts.VERSION}" in short and "libcuda.so" not in short and "device nodes" not in short
    assert "/libcuda.so." in whole and "/dev/nvidiactl" in whole and "/nvidia-smi" in whole
    gpus = program.document("info", "--host-root", host)["gpus"]
    assert [gpu["nvml_index"] for gpu in gpus] == list(range(8))


def test_inventory_is_saved_shown_and_refused_once_it_is_stale(program: Program, host: Path) -> None:
    root = ("--host-root", host)
    assert "inventory refresh" in program.mistake(6, "info", "--saved", *root)
    assert f"saved {host}{inventory.SAVED}: driver {hosts.VERSION}, 8 GPUs" in program("inventory", "refresh", *root)
    assert program.document("inventory", "refresh", *root)["saved"] == f"{host}{inventory.SAVED}"
    found = program.document("info", "--saved", *root)
    assert len(found["libraries"]) == len(hosts.SONAMES)
    hosts.plant_gpu(host, 0x70, 9)
    program.mistake(6, "info", "--saved", *root)


def test_a_saved_inventory_that_cannot_be_written_is_exit_7(program: Program, host: Path) -> None:
    (host / inventory.SAVED[1:]).parent.write_text("a file in the folder's place")
    said = program.mistake(7, "inventory", "refresh", "--host-root", host)
    assert "cannot save the inventory in /run/oci-gpu-hook: Not a directory" in said
    assert ("run it as root" in said) == bool(os.geteuid())
    assert ("move it away" in said) == (not os.geteuid())


MAIN = [sys.executable, "-m", "oci_gpu_hook"]


@pytest.mark.parametrize("words", [["info", "--settings"], ["--help"]])
def test_an_output_that_is_full_is_one_sentence(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*MAIN, *words], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 7
    assert done.stderr == "oci-gpu-hook: cannot go on: No space left on device\n"


def test_the_older_words_for_json_are_understood(program: Program, plan: list[object]) -> None:
    """Scripts have ``plan --format json``."""
    assert program(*plan, "--format", "json") == program(*plan, "--json")
    assert program(*plan, "--format", "text") == program(*plan)
    assert "'x' is not one of 'text', 'json'" in program.mistake(2, *plan, "--format", "x")


def test_help_names_the_exit_codes(program: Program) -> None:
    out = program("--help")
    assert [code for code in range(9) if f"\n    {code}  " in out] == list(range(8))


def test_the_version_is_that_of_the_package(program: Program) -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    version = setup["metadata"]["version"]
    assert program("--version") == f"oci-gpu-hook {version}\n"
    spec = (ROOT / "packaging/oci-gpu-hook.spec").read_text()
    assert re.findall(r"^Version: *(.*)$", spec, re.MULTILINE) == [version]


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", ""), ("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_terminal_has_colours_unless_somebody_wants_none(
    program: Program, host: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(name, value)
    shown = program("doctor", "--host-root", host, code=1)
    fail, passed = ("fail  ", "pass  ") if value else ("\x1b[31m\x1b[1mfail\x1b[0m", "\x1b[32mpass\x1b[0m")
    assert fail in shown and passed in shown and ("\x1b" in shown) == (value == "")


def test_an_image_and_an_environment_have_the_plan_of_their_container(
    program: Program, plan: list[object], tmp_path: Path, host: Path
) -> None:
    """The same as that of a bundle which says no more of the container."""
    root = tmp_path / "bundle/rootfs"
    words = ("--image-root", root, "--env", "NVIDIA_VISIBLE_DEVICES=1,5", "--host-root", host)
    of_bundle, of_image = program.document(*plan), program.document("plan", *words)
    assert of_image["container"]["rootfs"] == of_bundle["container"]["rootfs"] == str(root)
    for key in ("request", "driver", "operations", "left_out"):
        assert of_image[key] == of_bundle[key], key
    assert ALONE in program("plan", "--image-root", root, "--host-root", host)


# --- ``inventory refresh --nodes``: which nodes a fresh boot lacks, and what is started to have them made

# The module's parameters where it says that no program is to make its nodes.
NO_NODES = hosts.PARAMS.replace("ModifyDeviceFiles: 1", "ModifyDeviceFiles: 0")


@pytest.fixture()
def tree(tmp_path: Path) -> Path:
    hosts.host(tmp_path)
    (tmp_path / "dev").mkdir()
    return tmp_path


def test_mode_and_owner_are_those_of_the_modules_parameters(tree: Path) -> None:
    hosts.plant(tree, proc.PARAMS, hosts.PARAMS.replace("438", "432") + "DeviceFileUID: 0\nDeviceFileGID: 39\n")
    found = missingnodes.missing_nodes(HostRoot(str(tree)))
    assert {(node.mode, node.uid, node.gid) for node in found} == {(0o660, 0, 39)}


def test_what_nobody_may_make_is_not_made(tree: Path) -> None:
    hosts.plant(tree, proc.DEVICES, hosts.DEVICES.replace("505 ", "237 nvidia-caps\n505 "))
    for minor, modify in ((1, 0), (12, 1)):
        text = f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: {modify}\n"
        hosts.plant(tree, f"{proc.CAPABILITIES}/gpu0/mig/gi{minor}/access", text)
    hosts.plant(tree, proc.PARAMS, NO_NODES)
    (node,) = missingnodes.missing_nodes(HostRoot(str(tree)))
    assert node[:4] == ("/dev/nvidia-caps/nvidia-cap12", 237, 12, 0o444)


def test_something_else_in_a_nodes_place_is_named_and_stays(tree: Path) -> None:
    hosts.plant(tree, "/dev/nvidia-uvm", "a file")
    with pytest.raises(ApplyError, match="/dev/nvidia-uvm: it is there and is not a character device"):
        missingnodes.missing_nodes(HostRoot(str(tree)))
    assert (tree / "dev/nvidia-uvm").read_text() == "a file"


def test_on_this_host_modules_are_loaded_first(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then their nodes are there to be made; without a driver no module is loaded."""
    hosts.plant(tree, proc.DEVICES, "Character devices:\n195 nvidia\n")
    root, started = HostRoot(str(tree)), list[str]()
    root.path = "/"

    def load(words: list[str], seconds: float) -> NoReturn:
        started.append(" ".join(words))
        hosts.plant(tree, proc.DEVICES, hosts.DEVICES)
        raise OSError("it says that it failed")

    monkeypatch.setattr(childprocess, "program", load)
    monkeypatch.setattr(command, "_make_node", lambda root, node: None)
    monkeypatch.setattr(libselinux, "is_there", lambda root: False)
    made, _ = command._make_nodes(root)
    assert started == ["modprobe -q nvidia-uvm", "modprobe -q nvidia-modeset"]
    assert "/dev/nvidia-uvm" in made["made"]  # type: ignore[operator]
    # On another root no program is started.
    monkeypatch.setattr(libselinux, "is_there", lambda root: True)
    assert command._make_nodes(HostRoot(str(tree)))[0] == made
    (tree / proc.VERSION[1:]).unlink()
    with pytest.raises(DriverError, match="is not loaded"):
        command._make_nodes(root)
    assert len(started) == 2


def test_a_node_that_cannot_be_made_is_named_and_where_none_lacks_none_is_made(program: Program, tree: Path) -> None:
    words = ("inventory", "refresh", "--nodes", "--host-root", tree)
    (tree / "dev").rmdir()
    assert "cannot make /dev/nvidiactl: No such file or directory (" in program.mistake(7, *words)
    hosts.plant(tree, proc.PARAMS, NO_NODES)
    assert program.document(*words) == {"made": [], "unloaded": ["nvidia-modeset"]}
