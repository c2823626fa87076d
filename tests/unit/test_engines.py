# SPDX-License-Identifier: Apache-2.0
"""The host's engines as their configuration shows them, whatever is in it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_gpu_hook.cli import doctor
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.diagnosis import FAIL, PASS, WARN, Finding
from oci_gpu_hook.node.diagnosis import dockercheck as judged
from oci_gpu_hook.node.diagnosis import enginecheck as diagnosis
from oci_gpu_hook.node.engines import enginekinds, installed
from oci_gpu_hook.node.engines.installed import VENDORS_FOLDER, Engine
from oci_gpu_hook.node.setup import configuration
from tests.unit import hosts

ROOT = Path(__file__).parents[2]
CRIO = "/etc/crio/crio.conf"
CONTAINERD = "/etc/containerd/config.toml"
K3S = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml"
DOCKER = "/etc/docker/daemon.json"
SHIM = "/usr/bin/nvidia-container-runtime"


def host(tree: Path, **files: str) -> HostRoot:
    """A host with podman, CRI-O and these files."""
    for path in ("/usr/bin/podman", "/usr/bin/crio"):
        hosts.plant(tree, path, "")
    for path, text in files.items():
        hosts.plant(tree, path, text)
    return HostRoot(str(tree))


USUAL = ("/etc/cdi", "/run/cdi")
PODMAN, ROOTFUL = "/etc/containers/containers.conf", "/etc/containers/containers.rootful.conf.d/1.conf"
CRI = '[plugins."io.containerd.grpc.v1.cri"]\n'
LATER = f"{PODMAN}.d/1.conf"
ADDING = '[engine]\ncdi_spec_dirs = ["/a", {append = true}]\n'
IMPORTING = {
    CONTAINERD: f"imports = ['conf.d/*.toml']\n{CRI}enable_cdi = false\n",
    "/etc/containerd/conf.d/1.toml": f"{CRI}enable_cdi = true\n",
    "/etc/containerd/conf.d/2.toml": "imports = ['1.toml', '/etc/containerd/config.toml', '/no']\n",
    "/etc/containerd/others/1.toml": f"{CRI}enable_cdi = false\n",
}
ODD = ["/a\0b", "/a\ud800", "x" * 5000, "/a" * 5000, "/ok"]


@pytest.mark.parametrize(
    ("engine", "given", "folders", "file"),
    [
        *[(engine, {}, USUAL, "") for engine in ("podman", "CRI-O", "containerd", "Docker")],
        ("podman", {PODMAN: "[engine"}, USUAL, ""),
        ("podman", {PODMAN: '[engine]\ncdi_spec_dirs = ["/a"]\n'}, ("/a",), PODMAN),
        # A later file adds to the default, and to an earlier file.
        ("podman", {PODMAN: ADDING, LATER: '[engine]\ncdi_spec_dirs = ["/b"]\n'}, (*USUAL, "/a", "/b"), LATER),
        ("CRI-O", {CRIO: '[crio.runtime]\ncdi_spec_dirs = ["/var/run/cdi/"]\n'}, ("/run/cdi",), CRIO),
        ("containerd", {CONTAINERD: f"{CRI}enable_cdi = false\n"}, (), CONTAINERD),
        ("containerd", {CONTAINERD: f'{CRI}enable_cdi = true\ncdi_spec_dirs = ["/d"]\n'}, ("/d",), CONTAINERD),
        ("containerd", {CONTAINERD: f"{CRI}cdi_spec_dirs = 7\n"}, USUAL, ""),
        ("containerd", IMPORTING, USUAL, ""),
        ("Docker", {"cdi-spec-dirs": ["/c"], "features": {"cdi": True}}, ("/c",), DOCKER),
        ("Docker", {"cdi-spec-dirs": "x", "features": 7}, USUAL, ""),
        ("Docker", {"cdi-spec-dirs": []}, USUAL, ""),
        ("Docker", {"cdi-spec-dirs": [""]}, (), DOCKER),
        ("Docker", {"cdi-spec-dirs": ["/c"], "features": {"cdi": False}}, (), DOCKER),
        ("Docker", {"cdi-spec-dirs": ODD}, ("/a\0b", "/a\ud800", "/ok"), DOCKER),
    ],
)
def test_where_each_engine_looks_for_cdi_specs(
    tmp_path: Path, engine: str, given: dict[str, Any], folders: tuple[str, ...], file: str
) -> None:
    files, docker = ({}, given) if engine == "Docker" else (given, None)
    root = host(tmp_path, **files)
    hosts.plant(tmp_path, "/usr/bin/containerd", "")
    (tmp_path / "run/cdi").mkdir(parents=True)
    (tmp_path / "var").mkdir()
    (tmp_path / "var/run").symlink_to("/run")
    readers = {it.name: (it.folders, it.folders_file) for it in installed.find_readers(root, docker, DOCKER)}
    assert readers[engine] == (folders, file)
    assert [*readers] == ["podman", "CRI-O", "containerd", *["Docker"] * (docker is not None)]


def test_engines_and_shims_are_found_in_their_files(tmp_path: Path) -> None:
    files = {
        PODMAN: f'[engine]\nhooks_dir = ["/etc/h"]\nruntime = "nvidia"\n[engine.runtimes]\nnvidia = ["{SHIM}"]\n',
        # Only names that end in .conf are read.
        f"{PODMAN}.d/x.old": '[engine]\nhooks_dir = ["/x"]\n',
        # A later file replaces what an earlier one says.
        CRIO: '[crio.runtime]\nhooks_dir = ["/one"]\n',
        f"{CRIO}.d/20-x": '[crio.runtime]\nhooks_dir = ["/a", "/c"]\n',
        DOCKER: f'{{"default-runtime": "nvidia", "runtimes": {{"nvidia": {{"path": "{SHIM}"}}}}}}',
        CONTAINERD: f'default_runtime_name = "nvidia"\n[plugins.x.runtimes.nvidia.options]\nBinaryName = "{SHIM}"\n',
        SHIM: "",
    }
    root = host(tmp_path, **files)
    found = installed.installed(root)
    assert tuple([item._replace(shims=()) for item in found]) == (
        Engine("podman", ("/etc/h",), PODMAN, "nvidia"),
        Engine("CRI-O", ("/a", "/c"), f"{CRIO}.d/20-x"),
    )
    assert [item[:4] for item in installed.shims(root, found)] == [
        ("podman", PODMAN, "nvidia", True),
        ("Docker", DOCKER, "nvidia", True),
        ("containerd", CONTAINERD, "nvidia", True),
    ]
    assert [item.engine for item in installed.shims(root, ())] == ["Docker", "containerd"]
    assert installed.unread(root) == []


def test_podman_adds_to_its_folders_where_a_file_says_so(tmp_path: Path) -> None:
    text = "[engine]\nhooks_dir = ['{}', {}]\n"
    files = {PODMAN: text.format("/one", "{append = true}"), f"{PODMAN}.d/1.conf": text.format("/two", 3)}
    podman, _ = installed.installed(host(tmp_path / "adds", **files))
    assert podman.folders == (VENDORS_FOLDER, "/one", "/two")
    for file, folder in ((f"{PODMAN}.d/2.conf", "/three"), (ROOTFUL, "/four")):
        files[file] = text.format(folder, "{append = false}")
        podman, _ = installed.installed(host(tmp_path / folder[1:], **files))
        assert (podman.folders, podman.folders_file) == ((folder,), file)


def test_the_containerd_that_k3s_brings_reads_specs(tmp_path: Path) -> None:
    table = "[plugins.'io.containerd.cri.v1.runtime']\ncdi_spec_dirs = ['/d']\n"
    hosts.plant(tmp_path, K3S, table)
    assert installed.find_readers(HostRoot(str(tmp_path)), None, "") == ()
    hosts.plant(tmp_path, "/usr/local/bin/k3s", "")
    assert installed.find_readers(HostRoot(str(tmp_path)), None, "") == (Engine("containerd", ("/d",), K3S),)


def test_what_k3s_writes_at_each_start_is_not_named_to_be_changed(tmp_path: Path) -> None:
    """By its own settings, or what is on the host, it writes the same again."""
    table = "[plugins.'io.containerd.cri.v1.runtime'.containerd]\ndefault_runtime_name = 'nvidia'\n"
    table += f"[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia.options]\nBinaryName = '{SHIM}'\n"
    (default,) = diagnosis.other_hooks((), (), installed.shims(host(tmp_path, **{K3S: table, SHIM: ""}), ()))
    assert default.seen.startswith(f"{K3S} has NVIDIA's runtime as nvidia, the default")
    assert default.remedy == "sed -i '/^default-runtime:/d' /etc/rancher/k3s/config.yaml && systemctl restart 'k3s*'"
    gone, none = diagnosis.containerd(host(tmp_path / "gone", **{K3S: table}), "dnf", is_alone=True)
    assert (gone.level, gone.remedy) == (FAIL, "systemctl restart 'k3s*'")
    assert (none.level, none.remedy) == (WARN, "oci-gpu-hook configure containerd --set-as-default")
    # What it imports since 2026 is the administrator's.
    ours = f"{K3S.replace('config.toml', 'config-v3.toml.d')}/config.toml"
    files = {K3S: f"imports = ['{ours.rpartition('/')[0]}/*.toml']\n", ours: table}
    (default,) = diagnosis.other_hooks((), (), installed.shims(host(tmp_path / "own", **{SHIM: ""}, **files), ()))
    assert default.remedy == f"sed -i '/^ *default_runtime_name *=/d' {ours} && systemctl restart 'k3s*'"
    gone, _ = diagnosis.containerd(host(tmp_path / "both", **files), "dnf", is_alone=False)
    assert gone.remedy == f"vi {ours} && systemctl restart 'k3s*'"


def test_k0s_has_a_containerd_too(tmp_path: Path) -> None:
    """It looks for drop-ins, and reads its other settings when it starts its containerd."""
    hosts.plant(tmp_path, "/usr/local/bin/k0s", "")
    assert installed.is_there(HostRoot(str(tmp_path)), enginekinds.CONTAINERD)
    (none,) = diagnosis.containerd(HostRoot(str(tmp_path)), "apt", is_alone=False)
    assert (none.level, none.remedy) == (WARN, "oci-gpu-hook configure containerd --set-as-default")
    table = "[plugins.x.containerd]\ndefault_runtime_name = 'nvidia'\n"
    table += f"[plugins.x.containerd.runtimes.nvidia.options]\nBinaryName = '{SHIM}'\n"
    for name, again in (("containerd.toml", " && systemctl restart 'k0s*'"), ("containerd.d/1.toml", "")):
        file = f"/etc/k0s/{name}"
        shims = installed.shims(host(tmp_path / name.replace("/", ""), **{file: table, SHIM: ""}), ())
        (found,) = diagnosis.other_hooks((), (), shims)
        assert found.remedy == f"sed -i '/^ *default_runtime_name *=/d' {file}{again}"
    # What it makes of the drop-ins itself is not named to be changed.
    imports = {"/etc/k0s/containerd.toml": f"imports = ['{enginekinds.K0S_MERGED}']\n", enginekinds.K0S_MERGED: table}
    assert installed.of_containerd(host(tmp_path / "merged", **imports)) == []


BROKEN = f"{CRIO}.d/10-broken"


@pytest.fixture()
def broken(tmp_path: Path) -> HostRoot:
    """A host whose CRI-O has one file that is no TOML, and one that is."""
    files = {BROKEN: "[crio.runtime\nhooks_dir = ['/broken']\n", CRIO: "[crio.runtime]\nhooks_dir = ['/read']\n"}
    return host(tmp_path, **files)


def test_a_file_that_is_no_toml_is_named_and_the_others_are_read(broken: HostRoot) -> None:
    assert [engine.folders for engine in installed.installed(broken)][1] == ("/read",)
    (file,) = installed.unread(broken)
    assert file[:2] == ("CRI-O", BROKEN)
    (found,) = diagnosis.unread([file], "dnf")
    assert (found.level, found.remedy) == (WARN, f"vi {BROKEN}")
    assert found.seen == f"{BROKEN} was not read: {file[2]}"


def test_of_an_engine_with_a_file_that_is_not_read_nothing_else_is_said(broken: HostRoot) -> None:
    """It may look for hooks elsewhere, and a remedy would write over what the file says."""
    findings = doctor.of_host(broken, None)
    assert not [one for one in findings if "CRI-O" in f"{one.check} {one.seen} {one.remedy}"]
    assert [one.seen[: len(BROKEN)] for one in findings if one.check == "engines"] == [BROKEN]
    assert "hook in podman" in [one.check for one in findings]


def test_without_a_toml_parser_doctor_says_what_to_install(broken: HostRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tomllib", "tomli"):
        monkeypatch.setitem(sys.modules, name, None)
    assert {engine.folders for engine in installed.installed(broken)} == {(VENDORS_FOLDER,)}
    found = diagnosis.unread(installed.unread(broken), "apt")
    assert [(one.level, one.remedy) for one in found] == 2 * [(WARN, "apt install python3-tomli")]


def test_a_registration_that_is_a_link_to_nowhere_is_passed_over_as_engines_do(tmp_path: Path) -> None:
    hosts.plant(tmp_path, f"{VENDORS_FOLDER[1:]}/there.json", "")
    (tmp_path / VENDORS_FOLDER[1:] / "gone.json").symlink_to("/nowhere")
    assert [it.path for it in installed.of_engines(HostRoot(str(tmp_path)), ())] == [f"{VENDORS_FOLDER}/there.json"]


def test_the_installation_that_is_looked_at_is_the_one_that_engines_start(tmp_path: Path) -> None:
    text = json.dumps({"hook": {"path": "/opt/oci-gpu-hook"}, "when": {"always": True}, "stages": ["prestart"]})
    root = host(tmp_path, **{f"{VENDORS_FOLDER}/{installed.REGISTRATION}": text})
    found = [one.seen for one in doctor.of_host(root, None) if one.check == "installation"]
    assert found == ["/opt/oci-gpu-hook is not there or cannot be run"]


def test_each_engine_is_known_wherever_one_must_be() -> None:
    """To the script that a removal asks, which has no Python to read the table by; and to `configure`."""
    script = (ROOT / "packaging/in-use.sh").read_text(encoding="utf-8")
    for kind in enginekinds.ENGINES:
        files = [file for file in (*kind.files, kind.ours) if file.startswith(("/etc/", "/var/"))]
        folders = {file.partition("/config.toml")[0] if "/var/" in file else file.rpartition("/")[0] for file in files}
        assert [folder for folder in folders if f" {folder}/" not in script] == []
        assert (kind in configuration.WAYS) == bool(kind.word)


# --- what `doctor` says of Docker where no planted fault of tests/integration/test_doctor.py has it

ENTRY = "/usr/libexec/oci/hooks.d/oci-gpu-hook"
LINK = "/usr/bin/nvidia-container-runtime-hook"
TARGET = "../libexec/oci/hooks.d/oci-gpu-hook"
JSON = "/etc/docker/daemon.json"


def program(tree: Path, path: str, mode: int = 0o755) -> None:
    hosts.plant(tree, path, "#!/bin/sh\n")
    (tree / path.lstrip("/")).chmod(mode)


@pytest.fixture()
def tree(tmp_path: Path) -> Path:
    """A host with Docker and our link."""
    program(tmp_path, "/usr/bin/dockerd")
    program(tmp_path, ENTRY)
    (tmp_path / LINK.lstrip("/")).symlink_to(TARGET)
    (tmp_path / "etc/docker").mkdir(parents=True)
    return tmp_path


def findings(tree: Path) -> list[Finding]:
    root = HostRoot(str(tree))
    found = judged.find_docker(root)
    return judged.docker(root, found, ENTRY, "apt") if found else []


def test_the_first_in_the_path_that_can_be_run_counts_if_docker_is_here(tree: Path) -> None:
    program(tree, "/usr/local/bin/nvidia-container-runtime-hook", 0o644)
    (found,) = findings(tree)
    assert found.level == PASS
    (tree / "usr/bin/dockerd").unlink()
    assert findings(tree) == []


def test_a_dockerd_that_runs_tells_its_path_and_its_file(tree: Path) -> None:
    hosts.plant(tree, "proc/77/stat", "77 (dockerd) S " + "0 " * 18 + "500 0 0\n")
    hosts.plant_program(tree, 77, "/usr/bin/dockerd (deleted)")
    hosts.plant(tree, "proc/77/environ", "A=1\0PATH=/opt/bin:relative:/usr/bin\0")
    hosts.plant(tree, "proc/77/cmdline", "dockerd\0--config-file=/opt/d.json\0--debug\0")
    # A process of a container's root; tests/hostile/beliefs.py has a user's, and a link to a set-user-ID program.
    hosts.plant_program(tree, 62, "/usr/bin/dockerd", namespace="other")
    hosts.plant(tree, "proc/62/stat", "62 (dockerd) S " + "0 " * 18 + "5 0 0\n")
    hosts.plant(tree, "proc/stat", "cpu 1\nbtime 1000\n")
    hosts.plant(tree, "opt/d.json", "nonsense")
    found = judged.find_docker(HostRoot(str(tree)))
    assert found is not None
    began = 1000 + 500 // os.sysconf("SC_CLK_TCK")
    assert found == (("/opt/bin", "/usr/bin"), "/opt/d.json", LINK, ENTRY, 77, began, None, found.fault)
    assert "/opt/d.json: it is not JSON" in findings(tree)[1].seen
    hosts.plant(tree, "proc/77/cmdline", "dockerd\0--config-file\0/gone\0")
    found = judged.find_docker(HostRoot(str(tree)))
    assert found is not None and found.file == "/gone" and len(findings(tree)) == 1


def test_a_docker_that_is_a_snap_cannot_start_the_hook(tree: Path) -> None:
    program(tree, "/snap/bin/docker")
    (found,) = findings(tree)
    assert found.level == PASS
    (tree / "usr/bin/dockerd").unlink()
    (found,) = findings(tree)
    assert (found.level, "such as docker.io" in found.remedy) == (WARN, True)


def test_a_daemon_json_that_is_no_object_is_a_warning(tree: Path) -> None:
    hosts.plant(tree, JSON, "[]")
    _, found = findings(tree)
    assert (found.level, found.seen, found.remedy) == (WARN, f"{JSON}: it is not a JSON object", f"vi {JSON}")


@pytest.mark.parametrize("runtimes", ["1", '{"a": 1, "b": {}, "c": {"runtimeType": "v1"}, "": {"path": ""}}'])
def test_a_daemon_json_of_any_shape_is_no_fault(tree: Path, runtimes: str) -> None:
    hosts.plant(tree, JSON, f'{{"runtimes": {runtimes}, "default-runtime": {{}}}}')
    (found,) = findings(tree)
    assert found.level == PASS


# --- TOML: a text is a document, or there is one line that says why not; and some Pythons have no parser


@pytest.mark.parametrize(
    "data",
    [b"[", b"a = 1\na = 2", b"\xff", b"a = " + b"[" * 100_000, "é".encode(), b"a = '\x1b[2J'", b"a = " + b"1" * 5000],
    ids=lambda data: str(data[:12]),
)  # fmt: skip
def test_what_is_no_toml_is_one_line(data: bytes) -> None:
    with pytest.raises(ValueError) as caught:
        installed.parse_toml(data)
    assert str(caught.value).isascii() and str(caught.value).isprintable()
    assert 0 < len(str(caught.value)) <= 200 and (data != b"\xff" or str(caught.value) == "it is not UTF-8 text")


@given(st.binary(max_size=80) | st.text(max_size=80).map(str.encode))
def test_any_bytes_are_a_document_or_malformed(data: bytes) -> None:
    try:
        assert isinstance(installed.parse_toml(data), dict)
    except ValueError as err:
        assert str(err).isascii()
