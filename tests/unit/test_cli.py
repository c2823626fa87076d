# SPDX-License-Identifier: Apache-2.0
"""The command line for people: what it prints, its exit codes, and never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oci_gpu_hook import cli
from oci_gpu_hook.host import inventory
from tests.unit import hosts


@pytest.fixture()
def host(tmp_path: Path) -> Path:
    tree = tmp_path / "host"
    hosts.host(tree, gpus=8)
    (tree / "run").mkdir()
    return tree


@pytest.fixture()
def bundle(tmp_path: Path) -> Path:
    path = tmp_path / "bundle"
    (path / "rootfs/etc").mkdir(parents=True)
    (path / "rootfs/etc/debian_version").write_text("12\n")
    write_config(path, ["NVIDIA_VISIBLE_DEVICES=1,5"])
    return path


def write_config(bundle: Path, env: list[str], **more: Any) -> None:
    config = {"process": {"env": env}, "root": {"path": "rootfs"}, **more}
    (bundle / "config.json").write_text(json.dumps(config))


def plan(capsys: pytest.CaptureFixture[str], host: Path, bundle: Path, *words: str) -> Any:
    arguments = ["plan", "--bundle", str(bundle), "--host-root", str(host), *words]
    assert cli.main([*arguments, "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_plan_prints_one_json_object(
    capsys: pytest.CaptureFixture[str], host: Path, bundle: Path
) -> None:
    document = plan(capsys, host, bundle, "--id", "c1")
    assert document["container"] == {
        "id": "c1",
        "bundle": str(bundle),
        "rootfs": str(bundle / "rootfs"),
    }
    assert document["request"]["devices"] == ["1", "5"]
    assert [operation["op"] for operation in document["operations"]][-2:] == ["ldcache", "cgroup"]


def test_plan_for_people_says_why(
    capsys: pytest.CaptureFixture[str], host: Path, bundle: Path
) -> None:
    assert cli.main(["plan", "--bundle", str(bundle), "--host-root", str(host)]) == 0
    text = capsys.readouterr().out
    assert "GPU 5, NVIDIA H100 80GB HBM3: asked for as 5" in text
    assert "library: compute" in text


@pytest.mark.parametrize("form", ["text", "json"])
def test_plan_for_a_container_without_a_request(
    capsys: pytest.CaptureFixture[str], host: Path, bundle: Path, form: str
) -> None:
    write_config(bundle, [])
    arguments = ["plan", "--bundle", str(bundle), "--host-root", str(host), "--format", form]
    assert cli.main(arguments) == 0
    out = capsys.readouterr().out
    if form == "json":
        assert json.loads(out)["request"] is None
        assert json.loads(out)["operations"] == []
    else:
        assert "would leave this container alone" in out


def test_plan_says_of_a_mistake_in_the_settings_what_the_hook_does(
    capsys: pytest.CaptureFixture[str], host: Path, bundle: Path, tmp_path: Path
) -> None:
    """It stops who asks for something, and nobody else."""
    settings = tmp_path / "settings"
    settings.write_text("rubbish\n")
    arguments = ["plan", "--bundle", str(bundle), "--host-root", str(host)]
    assert cli.main([*arguments, "--config", str(settings)]) == 4
    assert f"{settings}:1: 'rubbish' is no" in capsys.readouterr().err
    write_config(bundle, [])
    assert cli.main([*arguments, "--config", str(settings)]) == 0
    told = capsys.readouterr().out
    assert "none: the hook would leave this container alone" in told
    assert f"{settings}:1: 'rubbish' is no" in told


def test_a_user_namespace_in_the_config_binds_the_nodes(
    capsys: pytest.CaptureFixture[str], host: Path, bundle: Path
) -> None:
    linux = {"namespaces": [{"type": "user"}]}
    write_config(bundle, ["NVIDIA_VISIBLE_DEVICES=1"], linux=linux)
    operations = plan(capsys, host, bundle)["operations"]
    assert {item["source"] for item in operations if item["op"] == "device"} != {""}


def test_plan_changes_nothing(capsys: pytest.CaptureFixture[str], host: Path, bundle: Path) -> None:
    before = sorted(str(path) for path in [*host.rglob("*"), *bundle.rglob("*")])
    plan(capsys, host, bundle)
    assert sorted(str(path) for path in [*host.rglob("*"), *bundle.rglob("*")]) == before


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["plan"], 2, "missing option '--bundle'"),
        (["inventory", "watch", "--cdi-spec", ""], 2, "--cdi-spec is empty"),
        (["inventory", "watch", "--cdi-spec", "/run/cdi/"], 2, "which is no file's name"),
        (["plan", "--bundle", "/nowhere"], 3, "cannot open /nowhere/config.json"),
        (["nonsense"], 2, "no such command"),
        (["info", "--format", "xml"], 2, "invalid value for '--format'"),
        (["info", "--host-root", "/nowhere"], 2, "cannot open --host-root /nowhere"),
        (["inventory", "show", "--host-root", "/var/empty"], 2, "cannot open --host-root"),
        (["inventory", "refresh", "--nvml-timeout", "nan"], 2, "nan is no number of seconds"),
        (["inventory", "watch", "--interval", "NaN"], 2, "NaN is no number of seconds"),
        (["inventory", "watch", "--interval", "inf"], 2, "inf is not in the range"),
        (["info", "--host-root", "/usr/share"], 6, "this host has no NVIDIA driver"),
    ],
)
def test_mistakes_are_one_sentence_with_the_documented_code(
    capsys: pytest.CaptureFixture[str], words: list[str], code: int, sentence: str
) -> None:
    assert cli.main(words) == code
    shown = capsys.readouterr()
    assert sentence in shown.err
    assert shown.err.startswith("oci-gpu-hook: ")
    assert len(shown.err.splitlines()) == 1
    assert shown.out == ""


def test_a_refusal_by_plan_has_the_hooks_own_code(
    capsys: pytest.CaptureFixture[str], host: Path, bundle: Path, tmp_path: Path
) -> None:
    write_config(bundle, ["NVIDIA_VISIBLE_DEVICES=9"])
    assert cli.main(["plan", "--bundle", str(bundle), "--host-root", str(host)]) == 5
    write_config(bundle, ["NVIDIA_VISIBLE_DEVICES=1"])
    (tmp_path / "conf").write_text("nonsense")
    arguments = ["plan", "--bundle", str(bundle), "--host-root", str(host)]
    assert cli.main([*arguments, "--config", str(tmp_path / "conf")]) == 4
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_info_lists_the_driver_and_the_gpus(capsys: pytest.CaptureFixture[str], host: Path) -> None:
    assert cli.main(["info", "--host-root", str(host)]) == 0
    assert f"driver {hosts.VERSION}" in capsys.readouterr().out
    assert cli.main(["info", "--host-root", str(host), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["gpus"]) == 8
    assert document["gpus"][1]["nvml_index"] == 1


def test_inventory_is_saved_shown_and_refused_once_it_is_stale(
    capsys: pytest.CaptureFixture[str], host: Path
) -> None:
    words = ["--host-root", str(host)]
    assert cli.main(["inventory", "show", *words]) == 6
    assert "inventory refresh" in capsys.readouterr().err
    assert cli.main(["inventory", "refresh", *words]) == 0
    assert f"driver {hosts.VERSION}, 8 GPUs" in capsys.readouterr().out
    assert cli.main(["inventory", "show", *words, "--format", "json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["libraries"]) == len(hosts.SONAMES)
    hosts.plant_gpu(host, 0x70, 9)
    assert cli.main(["inventory", "show", *words]) == 6


def test_a_saved_inventory_that_cannot_be_written_is_exit_7(
    capsys: pytest.CaptureFixture[str], host: Path
) -> None:
    (host / inventory.SAVED[1:]).parent.write_text("a file in the folder's place")
    assert cli.main(["inventory", "refresh", "--host-root", str(host)]) == 7
    said = capsys.readouterr().err
    assert "cannot save the inventory in /run/oci-gpu-hook: Not a directory" in said
    assert ("run it as root" in said) == bool(os.geteuid())
    assert ("move it away" in said) == (not os.geteuid())


@pytest.mark.parametrize("words", [["config", "show"], ["--help"], ["metrics", "--help"]])
def test_an_output_that_is_full_is_one_sentence(words: list[str]) -> None:
    program = "import sys; from oci_gpu_hook.__main__ import main; sys.exit(main())"
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-c", program, *words]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 7
    assert done.stderr == "oci-gpu-hook: cannot go on: No space left on device\n"


def test_a_fifo_as_the_bundles_configuration_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    program = "import sys; from oci_gpu_hook.__main__ import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "plan", "--bundle", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3
    assert "config.json is no JSON" in done.stderr


def test_help_tells_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    for code in range(8):
        assert f"\n    {code}  " in out


def started(*words: str) -> subprocess.CompletedProcess[str]:
    """The program in a process of its own: a hook stage ends its process."""
    command = [sys.executable, "-m", "oci_gpu_hook", *words]
    return subprocess.run(command, input="", text=True, capture_output=True, check=False)


@pytest.mark.parametrize(
    "words", [["createContainer"], ["startContainer"], ["createRuntime", "--nonsense"]]
)
def test_a_stage_that_cannot_be_served_is_wrong_usage(words: list[str]) -> None:
    ended = started(*words)
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("stage", ["poststart", "poststop"])
def test_stages_after_the_start_have_nothing_to_do(stage: str) -> None:
    ended = started(stage)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
