# SPDX-License-Identifier: Apache-2.0
"""``config show``: the settings in force, and where each comes from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from oci_gpu_hook import cli, config

MAIN = """# of everybody
driver-root = /run/nvidia/driver
device-cgroup = off
swarm-resources = DOCKER_RESOURCE_GPU, OTHER

[namespace team-*]
allowed-capabilities = utility
"""


@pytest.fixture()
def file(tmp_path: Path) -> Path:
    path = tmp_path / "hook.conf"
    path.write_text(MAIN)
    return path


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert cli.main(["config", *words, "--format", "json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_show_names_every_setting_once(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    shown = document(capsys, "show", "--config", str(file))["settings"]
    assert [row["key"].replace("-", "_") for row in shown] == list(config.Config()._asdict())


def test_show_says_where_a_setting_comes_from(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    drop_ins = Path(f"{file}.d")
    drop_ins.mkdir()
    (drop_ins / "10-cgroup.conf").write_text("\ndevice-cgroup = on\n")
    shown = {row["key"]: row for row in document(capsys, "show", "--config", str(file))["settings"]}
    assert shown["driver-root"] == {
        "key": "driver-root",
        "value": "/run/nvidia/driver",
        "from": f"{file}:2",
    }
    assert shown["device-cgroup"]["value"] == "on"
    assert shown["device-cgroup"]["from"] == f"{file}.d/10-cgroup.conf:2"
    assert shown["swarm-resources"]["value"] == ["DOCKER_RESOURCE_GPU", "OTHER"]
    assert shown["ipc-labels"] == {"key": "ipc-labels", "value": "gpu", "from": "default"}


def test_show_keeps_rules_apart_from_what_holds_for_everybody(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    shown = document(capsys, "show", "--config", str(file))
    everybody = next(row for row in shown["settings"] if row["key"] == "allowed-capabilities")
    assert everybody["from"] == "default"
    assert shown["rules"] == [
        {
            "namespace": "team-*",
            "key": "allowed-capabilities",
            "value": ["utility"],
            "from": f"{file}:7",
        }
    ]


def test_show_for_people_has_a_line_a_setting_and_rules_below_their_headings(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    assert cli.main(["config", "show", "--config", str(file)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["device-cgroup", "off", f"{file}:3"] in lines
    assert ["allowed-capabilities", "all", "default"] in lines
    assert ["swarm-resources", "DOCKER_RESOURCE_GPU,", "OTHER", f"{file}:4"] in lines
    assert lines[-2:] == [
        ["[namespace", "team-*]"],
        ["allowed-capabilities", "utility", f"{file}:7"],
    ]


def test_show_sends_no_control_characters_to_a_terminal(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "hook.conf"
    path.write_text("driver-root = /a\x1b[1m\n[image \x1b*]\ndevice-cgroup = off\n")
    assert cli.main(["config", "show", "--config", str(path)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert r"'/a\x1b[1m'" in out


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("device-cgroups = on", "unknown key 'device-cgroups', did you mean 'device-cgroup'?"),
        ("device-cgroup = 1", "device-cgroup is '1', allowed is one of auto, on, off"),
        ("[host x]", "'[host x]' is no heading"),
    ],
)
def test_show_tells_a_mistake_with_its_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, sentence: str
) -> None:
    path = tmp_path / "hook.conf"
    path.write_text(f"\n{text}\n")
    assert cli.main(["config", "show", "--config", str(path)]) == 4
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"oci-gpu-hook: {path}:2: {sentence}")
    assert len(shown.err.splitlines()) == 1


def test_show_of_a_file_that_is_not_there(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main(["config", "show", "--config", str(tmp_path / "absent")]) == 4
    assert "absent: No such file or directory" in capsys.readouterr().err
