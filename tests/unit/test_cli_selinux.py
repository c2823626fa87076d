# SPDX-License-Identifier: Apache-2.0
"""``selinux status`` and ``explain``, with a stand-in for libselinux; the real one is asked in tests/selinux.

Denials are read from any log and explained in our terms, with a remedy that keeps the container confined.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oci_gpu_hook.cli import denials
from oci_gpu_hook.cli import selinux as command
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.machine import kernelconfig, libselinux
from tests.unit import hosts
from tests.unit.program import Program

# A row: a line of a log, the cause that is told for it, and the remedy.
_DENIALS = (Path(__file__).parents[1] / "data/denials.txt").read_text().strip()
*_ROWS, _LAST = re.sub("(?m)^#.*\n", "", _DENIALS).strip().split("\n\n")
ROWS = [row.split("\n") for row in _ROWS]


def library(known: set[str]) -> Any:
    """A policy that knows these types; who may use what of it is asked of real ones in tests/selinux."""
    booleans = {"nvidia_container_use_dri": 0, "container_use_dri_devices": 1, "httpd_enable": 1}
    return SimpleNamespace(
        set_selinuxmnt=lambda path: None,
        selinux_set_policy_root=lambda path: 0,
        security_getenforce=lambda: 1,
        security_policyvers=lambda: 33,
        security_check_context=lambda context: 0 if context.split(":")[2] in known else -1,
        security_get_boolean_names=lambda: [0, [*booleans]],
        security_get_boolean_active=booleans.__getitem__,
        matchpathcon=lambda path, mode: [0, "u:object_r:device_t:s0"],
        av_decision=lambda: SimpleNamespace(allowed=0),
        string_to_security_class=lambda name: 8,
        string_to_av_perm=lambda group, name: 1 << len(name),
        security_compute_av=lambda *_: 0,
    )


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


@pytest.fixture()
def known(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The types that the loaded policy knows; a test may take one away."""
    types_known = {"container_t", "spc_t", "nvidia_container_t", "oci_gpu_hook_t"}
    monkeypatch.setitem(sys.modules, "selinux", library(types_known))
    monkeypatch.setattr(libselinux, "label_of", lambda fd: "u:object_r:tmpfs_t:s0")
    return types_known


def test_status_shows_modules_booleans_and_labels(program: Program, known: set[str], host: Path) -> None:
    found = program.document("selinux", "status", "--host-root", host)
    assert [item["state"] for item in found["modules"]] == ["installed", "installed"]
    assert found["booleans"] == {"nvidia_container_use_dri": False, "container_use_dri_devices": True}
    assert [label["path"] for label in found["labels"]] == [
        "/dev/nvidia-nvswitch0",
        "/dev/nvidia3",
        "/dev/nvidiactl",
        "/dev/nvidia-caps/nvidia-cap1",
    ]
    out = program("selinux", "status", "--host-root", host)
    assert "enforcing, policy targeted" in out
    assert "installed, priority 200" in out
    # The targeted policy lets every container use /dev/dri, whatever our boolean says.
    assert re.search(r"nvidia_container_use_dri +off +forbids nothing: container_use_dri_devices is on", out)
    for state in (0, 1):
        sys.modules["selinux"].security_get_boolean_active = lambda name, state=state: state  # type: ignore[attr-defined]
        assert program.document("selinux", "status", "--host-root", host)["void"] == {}
    # So does Debian 13's, if its boolean is on.
    ours, others = "nvidia_container_use_dri", "container_use_dri"
    sys.modules["selinux"].security_get_boolean_names = lambda: [0, [ours, others]]  # type: ignore[attr-defined]
    sys.modules["selinux"].security_get_boolean_active = lambda name: int(name == others)  # type: ignore[attr-defined]
    assert program.document("selinux", "status", "--host-root", host)["void"] == {ours: others}


def test_a_module_that_is_stored_and_not_loaded_is_half_there(program: Program, known: set[str], host: Path) -> None:
    known.remove("nvidia_container_t")
    found = program.document("selinux", "status", "--host-root", host)
    assert found["modules"][0]["state"].startswith("half installed")
    assert "selinux install" in found["uses"][2]["why"]


def test_a_store_that_cannot_be_read_is_not_called_empty(program: Program, known: set[str], host: Path) -> None:
    shutil.rmtree(host / "var")
    found = program.document("selinux", "status", "--host-root", host)
    assert found["modules"][0]["state"].startswith("in force")
    assert "not in the store" not in found["modules"][0]["state"]


def test_status_without_libselinux_or_selinux(program: Program, monkeypatch: pytest.MonkeyPatch, host: Path) -> None:
    words = ("selinux", "status", "--host-root", host)
    monkeypatch.setitem(sys.modules, "selinux", None)
    assert "python3-libselinux" in program.mistake(4, *words)
    (host / "sys/fs/selinux/enforce").unlink()
    assert program(*words).startswith("SELinux is disabled")


def test_explain_reads_a_file_or_the_end_of_the_log(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.setattr(command, "_AUDIT_LOG", str(log))
    lines = "\n".join([*[row[0] for row in ROWS], "other \udcff lines", ""])
    log.write_text("x\n" * (5 << 20) + lines, errors="surrogateescape")
    assert len(program.document("selinux", "explain")["denials"]) == len(ROWS)
    log.write_text(lines, errors="surrogateescape")
    out = program("selinux", "explain", log)
    assert out.count("  cause   ") == out.count("  remedy  ") == len(ROWS)
    assert len(program.document("selinux", "explain", log)["denials"]) == len(ROWS)
    log.write_text("nothing\n")
    assert "semodule -DB" in program("selinux", "explain", log)
    # It may be a new one, or none that anything writes to.
    (tmp_path / "denied").write_text(ROWS[0][0])
    for logs, count in (((f"cat {tmp_path}/denied",), 1), (("false",), 0)):
        monkeypatch.setattr(command, "_LOGS", logs)
        assert len(program.document("selinux", "explain")["denials"]) == count


def test_no_log_is_wrong_usage_and_a_way_out(program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(command, "_AUDIT_LOG", str(tmp_path / "absent"))
    monkeypatch.setattr(command, "_LOGS", (str(tmp_path / "journalctl"), "true"))
    assert "explain -" in program.mistake(2, "selinux", "explain")


class Semodule:
    """A stand-in that writes down its words, says what `says` holds, and then fails."""

    def __init__(self, folder: Path) -> None:
        self.says, self._words, self.program = folder / "says", folder / "words", folder / "semodule"
        fails = f"[ ! -e {self.says} ] || {{ cat {self.says}; exit 1; }}"
        hosts.plant(folder, "semodule", f'#!/bin/sh\necho "$@" >>{self._words}\n{fails}\n')

    def words(self) -> list[str]:
        """Those of each run."""
        return self._words.read_text().splitlines() if self._words.exists() else []


@pytest.fixture()
def semodule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Semodule:
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    return Semodule(tmp_path / "bin")


@pytest.mark.parametrize(
    ("says", "sentence"),
    [
        ("Re-declaration of type nvidia_container_t\nFailed!", "another module declares"),
        ("Failed to resolve typeattributeset statement\nFailed!", "install container-selinux"),
        ("semodule:  Could not connect to policy handler", "run it as root"),
        ("the disk is \x1b[31mfull\nsemodule:  Failed!", "the disk is \\x1b[31mfull"),
    ],
)
def test_semodules_failure_is_said(program: Program, host: Path, semodule: Semodule, says: str, sentence: str) -> None:
    semodule.says.write_text(says)
    assert sentence in program.mistake(7, "selinux", "install", "--host-root", host)


def test_what_install_needs_is_the_administrators(
    program: Program, host: Path, semodule: Semodule, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """7 would say that a step was undone: none was begun, and a host without a policy gets no empty store."""
    words = ("selinux", "install", "--host-root", host)
    with monkeypatch.context() as patch:
        patch.setattr(command, "policy_folder", lambda: str(tmp_path))
        assert "oci-gpu-hook-selinux" in program.mistake(4, *words)
    (host / "etc/selinux/targeted/policy/policy.33").unlink()
    assert "has no SELinux policy" in program.mistake(4, *words)
    assert semodule.words() == []


@pytest.mark.parametrize(
    ("version", "is_on", "turned"),
    [("v1", False, "on"), ("v1", True, ""), ("v2", True, "off"), ("v2", False, ""), ("", True, "")],
)
def test_install_lets_the_hook_write_to_cgroups_where_they_are_v1s(
    program: Program,
    host: Path,
    semodule: Semodule,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    is_on: bool,
    turned: str,
) -> None:
    """Of this host alone: its kernel has another root's policy not loaded."""
    shutil.copy(semodule.program, semodule.program.with_name("setsebool"))
    monkeypatch.setattr(libselinux, "has_store", lambda root: True)
    monkeypatch.setattr(libselinux, "boolean", lambda root, name: is_on)
    monkeypatch.setattr(kernelconfig, "cgroup_version", lambda root: version)
    out = program("selinux", "install")
    boolean = "oci_gpu_hook_use_cgroup_v1"
    assert semodule.words()[1:] == ([f"-P {boolean} {turned}"] if turned else [])
    assert (f"turned {boolean} {turned}: this host has cgroup {version}" in out) == bool(turned)
    program("selinux", "install", "--host-root", host)
    # One transaction for both, in the store of that root.
    last = semodule.words()[-1]
    assert last.startswith(f"-p {host} -s targeted -n -X 200 -i ") and last.count(".cil") == 2


def test_remove_names_others(program: Program, host: Path, semodule: Semodule, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is ours it takes: tests/policy/test_store.py."""
    modules = host / "var/lib/selinux/targeted/active/modules"
    assert "in force" not in program("selinux", "remove", "--host-root", host)
    # The second is where 'semodule -d' keeps its list.
    for name in ("400", "disabled"):
        (modules / name / "oci_gpu_hook").mkdir(parents=True)
    assert libselinux.priorities(HostRoot(str(host)), "oci_gpu_hook") == ("400", "200")
    assert "'semodule -X 400 -r oci_gpu_hook'" in program("selinux", "remove", "--host-root", host)
    shutil.rmtree(modules / "200")
    assert "neither module is installed" in program("selinux", "remove", "--host-root", host)
    monkeypatch.setenv("PATH", "/nowhere")
    assert "cannot run semodule" in program.mistake(4, "selinux", "install", "--host-root", host)


def test_every_path_that_the_modules_label_is_one_that_install_relabels() -> None:
    texts = [path.read_text() for path in Path(command.policy_folder()).glob("*.cil")]
    named = re.findall(r'\(filecon "([^"]+)"', "\n".join(texts))
    assert named
    for pattern in named:
        path = pattern.replace("(/.*)?", "").replace("\\", "").replace("[0-9]+", "0")
        path = path.replace("/var/run/", "/run/")
        nodes = [f"{folder}/{prefix}" for folder, prefix in libselinux.NODES]
        assert path in libselinux.PATHS or path.startswith(tuple(nodes)), pattern


@pytest.mark.parametrize(("text", "cause", "remedy"), ROWS)
def test_each_cause_is_named_with_a_remedy_that_keeps_confinement(text: str, cause: str, remedy: str) -> None:
    (found,) = denials.explain(denials.parse_denials(text))
    assert cause in found.cause
    assert remedy in found.remedy
    for word in ("disable", "permissive", "spc_t", "privileged", "setenforce"):
        assert word not in found.remedy


@pytest.mark.parametrize("text", ["", *_LAST.split("\n")])
def test_what_does_not_concern_us_is_left_out(text: str) -> None:
    assert denials.explain(denials.parse_denials(text)) == ()


def test_alike_denials_are_counted_together() -> None:
    text = "\n".join([ROWS[0][0].replace("pid=7", f"pid={number}") for number in range(9)])
    (found,) = denials.parse_denials(text)
    assert found.times == 9


def test_names_that_the_kernel_writes_in_hexadecimal_are_read_and_cannot_reach_a_terminal() -> None:
    name = "\x1b[2Jnvidia0"
    text = ROWS[3][0].replace('"nvidia0"', name.encode().hex().upper())
    (found,) = denials.explain(denials.parse_denials(text))
    assert found.name == name
    assert found.cause.isprintable()
