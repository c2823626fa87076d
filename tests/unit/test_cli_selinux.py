# SPDX-License-Identifier: Apache-2.0
"""``selinux status`` and ``explain``, with a stand-in for libselinux; the real one is asked in tests/selinux."""

from __future__ import annotations

import json
import re
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from oci_gpu_hook import cli
from oci_gpu_hook.cli import selinux as command
from oci_gpu_hook.host import libselinux
from tests.unit import hosts
from tests.unit.test_avc import ROWS

KNOWN = {"container_t", "spc_t", "nvidia_container_t", "oci_gpu_hook_t"}


class Decision:
    """What av_decision is: an object that is filled in."""

    allowed = 0


def library(known: set[str]) -> Any:
    """A policy in which plain containers may use nodes of their own only."""
    module: Any = types.ModuleType("selinux")

    def compute(source: str, target: str, group: int, wanted: int, decision: Decision) -> int:
        own = "container_file_t" in target
        decision.allowed = (
            wanted if own or "nvidia_container_t" in source or "spc_t" in source else 1
        )
        return 0

    module.set_selinuxmnt = lambda path: None
    module.selinux_set_policy_root = lambda path: 0
    module.security_getenforce = lambda: 1
    module.security_policyvers = lambda: 33
    module.security_check_context = lambda context: 0 if context.split(":")[2] in known else -1
    module.security_get_boolean_names = lambda: [0, ["nvidia_container_use_dri", "httpd_enable"]]
    module.security_get_boolean_active = lambda name: 1
    module.getfilecon = lambda path: [0, "u:object_r:tmpfs_t:s0"]
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
    hosts.plant(tmp_path, "dev/nvidia-nvswitch0", "")
    hosts.plant(tmp_path, "dev/nvidia-caps/nvidia-cap1", "")
    hosts.plant(tmp_path, "sys/fs/selinux/enforce", "1")
    hosts.plant(tmp_path, "etc/selinux/targeted/policy/policy.33", "")
    hosts.plant(tmp_path, "etc/selinux/config", "SELINUX=enforcing\nSELINUXTYPE=targeted\n")
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
    assert [label["path"] for label in found["labels"]] == [
        "/dev/nvidia-nvswitch0",
        "/dev/nvidia3",
        "/dev/nvidiactl",
        "/dev/nvidia-caps/nvidia-cap1",
    ]
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
    out = capsys.readouterr().out
    assert "enforcing, policy targeted" in out
    assert "installed, priority 200" in out
    monkeypatch.setitem(sys.modules, "selinux", None)
    (host / "sys/fs/selinux/enforce").unlink()
    assert cli.main(["selinux", "status", "--host-root", str(host)]) == 0
    assert capsys.readouterr().out.startswith("SELinux is disabled")


def test_who_may_not_read_the_store_is_not_told_that_it_is_empty(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, host: Path
) -> None:
    shutil.rmtree(host / "var")
    found = status(capsys, monkeypatch, host, KNOWN)
    assert found["modules"][0]["state"].startswith("in force")
    assert "not in the store" not in found["modules"][0]["state"]


def test_a_python_without_libselinux_is_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, host: Path
) -> None:
    monkeypatch.setitem(sys.modules, "selinux", None)
    assert cli.main(["selinux", "status", "--host-root", str(host)]) == 7
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
    monkeypatch.setattr(command, "_KERNEL_LOG", ("true",))
    assert cli.main(["selinux", "explain"]) == 2
    assert "explain -" in capsys.readouterr().err


@pytest.fixture()
def semodule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in that writes down its words, says what `says` holds, and then fails."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "semodule"
    program.write_text(
        f'#!/bin/sh\necho "$@" >>{folder}/words\n[ ! -e {folder}/says ] || {{ cat {folder}/says; exit 1; }}\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


@pytest.mark.parametrize(
    ("says", "sentence"),
    [
        ("Re-declaration of type nvidia_container_t\nFailed!", "another module declares"),
        ("Failed to resolve typeattributeset statement\nFailed!", "install container-selinux"),
        ("semodule:  Could not connect to policy handler", "run it as root"),
        ("the disk is \x1b[31mfull\nsemodule:  Failed!", "the disk is \\x1b[31mfull"),
    ],
)
def test_why_semodule_failed_is_one_sentence(
    capsys: pytest.CaptureFixture[str], host: Path, semodule: Path, says: str, sentence: str
) -> None:
    (semodule / "says").write_text(says)
    assert cli.main(["selinux", "install", "--host-root", str(host)]) == 7
    shown = capsys.readouterr()
    assert sentence in shown.err
    assert len(shown.err.splitlines()) == 1
    assert shown.out == ""


def test_a_host_without_a_policy_is_told_so_and_semodule_makes_no_empty_store(
    capsys: pytest.CaptureFixture[str], host: Path, semodule: Path
) -> None:
    (host / "etc/selinux/targeted/policy/policy.33").unlink()
    assert cli.main(["selinux", "install", "--host-root", str(host)]) == 7
    assert "has no SELinux policy" in capsys.readouterr().err
    assert not (semodule / "words").exists()


def test_install_is_one_transaction_in_the_store_of_that_root(host: Path, semodule: Path) -> None:
    assert cli.main(["selinux", "install", "--host-root", str(host)]) == 0
    (words,) = (semodule / "words").read_text().splitlines()
    assert words.startswith(f"-p {host} -s targeted -n -X 200 -i ")
    assert words.count(".cil") == 2


def test_remove_takes_what_is_there_and_names_what_is_not_ours(
    capsys: pytest.CaptureFixture[str], host: Path, semodule: Path
) -> None:
    modules = host / "var/lib/selinux/targeted/active/modules"
    (modules / "200/oci_gpu_hook").rmdir()
    (modules / "400/oci_gpu_hook").mkdir(parents=True)
    assert cli.main(["selinux", "remove", "--host-root", str(host)]) == 0
    assert "-r nvidia_container\n" in (semodule / "words").read_text()
    out = capsys.readouterr().out
    assert "removed nvidia_container\n" in out
    assert "'semodule -X 400 -r oci_gpu_hook'" in out
    (modules / "200/nvidia_container").rmdir()
    assert cli.main(["selinux", "remove", "--host-root", str(host)]) == 0
    assert "neither module is installed" in capsys.readouterr().out


def test_a_program_that_is_missing_is_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, host: Path
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    for words in (["install"], ["remove"]):
        assert cli.main(["selinux", *words, "--host-root", str(host)]) == 7
        assert "cannot run semodule" in capsys.readouterr().err


def test_every_path_that_the_modules_label_is_one_that_install_relabels() -> None:
    texts = [path.read_text() for path in Path(command.policy_folder()).glob("*.cil")]
    named = re.findall(r'\(filecon "([^"]+)"', "\n".join(texts))
    assert named
    for pattern in named:
        path = pattern.replace("(/.*)?", "").replace("\\", "").replace("[0-9]+", "0")
        path = path.replace("/var/run/", "/run/")
        nodes = [f"{folder}/{prefix}" for folder, prefix in libselinux.NODES]
        assert path in libselinux.PATHS or path.startswith(tuple(nodes)), pattern


def test_the_modules_of_the_checkout_are_found() -> None:
    assert (Path(command.policy_folder()) / "nvidia_container.cil").exists()
