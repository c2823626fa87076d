# SPDX-License-Identifier: Apache-2.0
"""``selinux status`` and ``explain``, with a stand-in for libselinux; the real one is asked in tests/selinux."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from oci_gpu_hook import cli
from oci_gpu_hook.cli import selinux as command
from tests.unit import hosts
from tests.unit.test_avc import ROWS

KNOWN = {"container_t", "spc_t", "nvidia_container_t", "oci_gpu_hook_t"}


class Decision:
    """What av_decision is: an object that is filled in."""

    allowed = 0


def library(known: set[str], *, enabled: int = 1) -> Any:
    """A policy in which plain containers may use nodes of their own only."""
    module: Any = types.ModuleType("selinux")

    def compute(source: str, target: str, group: int, wanted: int, decision: Decision) -> int:
        own = "container_file_t" in target
        decision.allowed = (
            wanted if own or "nvidia_container_t" in source or "spc_t" in source else 1
        )
        return 0

    module.is_selinux_enabled = lambda: enabled
    module.security_getenforce = lambda: 1
    module.selinux_getpolicytype = lambda: [0, "targeted"]
    module.security_policyvers = lambda: 33
    module.security_check_context = lambda context: 0 if context.split(":")[2] in known else -1
    module.security_get_boolean_names = lambda: [0, ["nvidia_container_use_dri", "httpd_enable"]]
    module.security_get_boolean_active = lambda name: 1
    module.lgetfilecon = lambda path: [0, "u:object_r:tmpfs_t:s0"]
    module.matchpathcon = lambda path, mode: [0, "u:object_r:device_t:s0"]
    module.av_decision = Decision
    module.string_to_security_class = lambda name: 8
    module.string_to_av_perm = lambda group, name: 1 << len(name)
    module.security_compute_av = compute
    return module


@pytest.fixture()
def host(tmp_path: Path) -> Path:
    hosts.plant(tmp_path, "dev/nvidiactl", "")
    hosts.plant(tmp_path, "dev/nvidia3", "")
    for name in ("nvidia_container", "oci_gpu_hook"):
        (tmp_path / "var/lib/selinux/targeted/active/modules/200" / name).mkdir(parents=True)
    return tmp_path


def status(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, host: Path, known: set[str]
) -> Any:
    monkeypatch.setitem(sys.modules, "selinux", library(known))
    assert cli.main(["selinux", "status", "--host-root", str(host), "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_status_tells_modules_booleans_and_who_can_use_gpus(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, host: Path
) -> None:
    found = status(capsys, monkeypatch, host, KNOWN)
    assert [item["state"] for item in found["modules"]] == ["installed", "installed"]
    assert found["booleans"] == {"nvidia_container_use_dri": True}
    assert [label["path"] for label in found["labels"]] == ["/dev/nvidia3", "/dev/nvidiactl"]
    answers = {(use["type"], use["nodes"]): use["can"] for use in found["uses"]}
    assert answers[("container_t", "made by the hook")]
    assert not answers[("container_t", "bound from the host")]
    assert answers[("nvidia_container_t", "bound from the host")]


def test_a_module_that_is_stored_and_not_loaded_is_half_installed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, host: Path
) -> None:
    found = status(capsys, monkeypatch, host, KNOWN - {"nvidia_container_t"})
    assert found["modules"][0]["state"].startswith("half installed")
    assert "selinux install" in found["uses"][2]["why"]


def test_status_for_people_and_without_selinux(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, host: Path
) -> None:
    monkeypatch.setitem(sys.modules, "selinux", library(KNOWN))
    assert cli.main(["selinux", "status", "--host-root", str(host)]) == 0
    assert "enforcing, policy targeted" in capsys.readouterr().out
    monkeypatch.setitem(sys.modules, "selinux", library(KNOWN, enabled=0))
    assert cli.main(["selinux", "status", "--host-root", str(host)]) == 0
    assert capsys.readouterr().out.startswith("SELinux is disabled")


def test_a_python_without_libselinux_is_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "selinux", None)
    assert cli.main(["selinux", "status"]) == 7
    assert "python3-libselinux" in capsys.readouterr().err


def test_explain_reads_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "log").write_text(
        "\n".join([row[0] for row in ROWS]) + "\nother \udcff lines\n", errors="surrogateescape"
    )
    assert cli.main(["selinux", "explain", str(tmp_path / "log")]) == 0
    out = capsys.readouterr().out
    assert out.count("  cause   ") == out.count("  remedy  ") == len(ROWS)
    assert cli.main(["selinux", "explain", str(tmp_path / "log"), "--format", "json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["denials"]) == len(ROWS)


def test_a_quiet_log_says_where_the_hidden_denials_are(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "log").write_text("nothing\n")
    assert cli.main(["selinux", "explain", str(tmp_path / "log")]) == 0
    assert "semodule -DB" in capsys.readouterr().out


def test_no_log_at_all_is_wrong_usage_with_a_way_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "_AUDIT_LOG", str(tmp_path / "absent"))
    monkeypatch.setattr(command, "_JOURNAL", (str(tmp_path / "journalctl"),))
    assert cli.main(["selinux", "explain"]) == 2
    assert "explain -" in capsys.readouterr().err


def test_a_program_that_is_missing_is_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    for words in (["install"], ["remove"]):
        assert cli.main(["selinux", *words]) == 7
        assert "there is no semodule here" in capsys.readouterr().err


def test_the_modules_of_the_checkout_are_found() -> None:
    assert (Path(command.policy_folder()) / "nvidia_container.cil").exists()
