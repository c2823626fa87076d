# SPDX-License-Identifier: Apache-2.0
"""``info --settings``: the settings in force and where each comes from."""

from __future__ import annotations

from pathlib import Path

from oci_gpu_hook.request.settings import Settings
from tests.unit import hosts
from tests.unit.program import Program

MAIN = """# of everybody
driver-root = /run/nvidia/driver
device-cgroup = off
swarm-resources = DOCKER_RESOURCE_GPU, OTHER

[namespace team-*]
allowed-capabilities = utility
"""


def test_show_says_where_each_setting_comes_from(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "hook.conf"
    file.write_text(MAIN)
    hosts.plant(Path(f"{file}.d"), "10-cgroup.conf", "\ndevice-cgroup = on\n")
    found = program.document("info", "--settings", "--config", file)
    rows = found["settings"]
    assert [row["key"].replace("-", "_") for row in rows] == list(Settings._fields[:-1])
    shown = {row["key"]: (row["value"], row["from"]) for row in rows}
    assert shown["driver-root"] == ("/run/nvidia/driver", f"{file}:2")
    assert shown["device-cgroup"] == ("on", f"{file}.d/10-cgroup.conf:2")
    assert shown["swarm-resources"] == (["DOCKER_RESOURCE_GPU", "OTHER"], f"{file}:4")
    assert shown["ipc-labels"] == ("gpu", "default")
    # What holds for some containers only stands apart.
    assert shown["allowed-capabilities"][1] == "default"
    key = {"key": "allowed-capabilities", "value": ["utility"], "from": f"{file}:7"}
    assert found["rules"] == [{"namespace": "team-*", **key}]
    # For people it is a line a setting, and rules below their headings.
    lines = [line.split() for line in program("info", "--settings", "--config", file).splitlines()]
    assert ["allowed-capabilities", "all", "default"] in lines
    assert ["swarm-resources", "DOCKER_RESOURCE_GPU,", "OTHER", f"{file}:4"] in lines
    assert lines[-2:] == [["[namespace", "team-*]"], ["allowed-capabilities", "utility", f"{file}:7"]]
    file.write_text("\n[host x]\n")
    said = program.mistake(4, "info", "--settings", "--config", file)
    assert f"{file}:2: '[host x]' is not a heading" in said
