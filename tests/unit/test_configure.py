# SPDX-License-Identifier: Apache-2.0
"""`configure`: what it writes into engines' settings, what it leaves alone, and that it takes away just that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_gpu_hook.node.engines import installed
from oci_gpu_hook.node.setup import daemonjson, enginefile
from tests.unit import hosts
from tests.unit.program import Program
from tests.unit.test_jsontext import VALUES

OURS = {"path": "/usr/bin/oci-gpu-runtime"}
DOCKER = "etc/docker/daemon.json"
CONTAINERD = "etc/containerd/config.toml"
CONTAINERDS_OURS = "/etc/containerd/conf.d/99-oci-gpu-hook.toml"
DATA = Path(__file__).parents[1] / "data/configure"
EVERYTHING = ("--name", "nvidia", "--set-as-default", "--cdi")


@pytest.fixture()
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/homes/user/.config")
    (tmp_path / "run").mkdir()
    hosts.plant(tmp_path, installed.PROGRAM, "")
    return tmp_path


@pytest.fixture()
def user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


def words(tree: Path, engine: str, *options: str) -> tuple[object, ...]:
    return ("configure", engine, "--host-root", tree, *options)


def planted(tree: Path, path: str, text: str) -> Path:
    hosts.plant(tree, path, text.encode())
    return tree / path.lstrip("/")


def state(file: Path) -> tuple[int, int, bytes]:
    status = file.stat()
    return status.st_ino, status.st_mtime_ns, file.read_bytes()


BY_HAND = 'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\nsandbox_image = "pause"\n'


@pytest.mark.parametrize("engine, text", [("docker", ""), ("containerd", "version = 3\n"), ("containerd", BY_HAND)])
def test_a_runtime_that_is_not_there_is_named_to_no_engine(
    program: Program, tree: Path, engine: str, text: str
) -> None:
    planted(tree, CONTAINERD, text)
    assert program(*words(tree, "podman")).startswith("wrote")
    (tree / installed.PROGRAM.lstrip("/")).unlink()
    assert "/usr/bin/oci-gpu-runtime is not there" in program.mistake(4, *words(tree, engine))
    assert program(*words(tree, engine, "--remove")).startswith("nothing to do in ")


# Where a file is not laid out as json.dumps has it.
@pytest.mark.parametrize("name", ["of-tabs", "of-one-line", "empty-objects"])
def test_docker_gets_what_was_asked_for_and_loses_it_again(program: Program, tree: Path, name: str) -> None:
    before, after = [(DATA / f"{name}.{when}").read_text() for when in ("before", "after")]
    file = planted(tree, DOCKER, before)
    file.chmod(0o640)
    assert program(*words(tree, "docker", *EVERYTHING)) == f"wrote /{DOCKER}\n"
    assert program.err == "so that it holds: systemctl restart docker\n"
    assert file.read_text() == after
    assert file.stat().st_mode & 0o7777 == 0o640
    written = state(file)
    assert program(*words(tree, "docker", *EVERYTHING)) == f"nothing to do in /{DOCKER}\n"
    assert program.err == "" and state(file) == written
    assert program(*words(tree, "docker", "--cdi", "--remove")) == f"wrote /{DOCKER}\n"
    assert "containers that were started by nvidia cannot be stopped" in program.err and "stays" not in program.err
    # An object that was there and empty goes only where its layout does not tell it from one of ours.
    assert file.read_text() == ('{\n    "runtimes": {}\n}\n' if name == "empty-objects" else before)
    assert os.listdir(file.parent) == ["daemon.json"]


@pytest.mark.parametrize("before", [None, " \n"])
def test_a_file_that_only_we_have_filled_goes_with_it(program: Program, tree: Path, before: str | None) -> None:
    if before is not None:
        planted(tree, DOCKER, before)
    os.umask(0o077)
    program(*words(tree, "docker"))
    file = tree / DOCKER
    text = '{\n    "runtimes": {\n        "oci-gpu-runtime": {\n            "path": "/usr/bin/oci-gpu-runtime"\n'
    assert file.read_text() == text + "        }\n    }\n}\n"
    assert file.stat().st_mode & 0o777 == 0o644
    assert program.err == "so that it holds: systemctl reload docker\n"
    assert program(*words(tree, "docker", "--remove")) == f"removed /{DOCKER}\n"
    assert os.listdir(tree / "etc/docker") == []
    assert program(*words(tree, "docker", "--remove")) == f"nothing to do in /{DOCKER}\n"


def test_one_name_is_removed_and_the_other_stays(program: Program, tree: Path) -> None:
    file = planted(tree, DOCKER, "{}")
    program(*words(tree, "docker", "--set-as-default"))
    program(*words(tree, "docker", "--name", "nvidia", "--set-as-default"))
    both = {"oci-gpu-runtime": OURS, "nvidia": OURS}
    assert json.loads(file.read_text()) == {"runtimes": both, "default-runtime": "nvidia"}
    program(*words(tree, "docker", "--name", "oci-gpu-runtime", "--remove"))
    assert json.loads(file.read_text()) == {"runtimes": {"nvidia": OURS}, "default-runtime": "nvidia"}
    program(*words(tree, "docker", "--cdi", "--name", "nvidia"))
    program(*words(tree, "docker", "--remove"))
    assert file.read_text() == '{"features": {"cdi": true}}' and "features.cdi stays on: --remove with" in program.err


def test_a_link_to_our_runtime_serves_already(program: Program, tree: Path) -> None:
    """As the manual has it for tools that look for the program's name; and is taken away as it was written."""
    (tree / "usr/bin/nvidia-container-runtime").symlink_to("oci-gpu-runtime")
    text = '{"runtimes": {"nvidia": {"path": "/usr/bin/nvidia-container-runtime"}}}'
    file = planted(tree, DOCKER, text)
    assert program(*words(tree, "docker", "--name", "nvidia")) == f"nothing to do in /{DOCKER}\n"
    assert file.read_text() == text
    for options in (("--name", "nvidia", "--remove"), ("--remove",)):
        program(*words(tree, "docker", *options))
        assert "nvidia" not in (file.read_text() if file.exists() else "")
        program(*words(tree, "docker", "--name", "nvidia"))
        assert "/usr/bin/nvidia-container-runtime" in file.read_text()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"runtimes": {"nvidia": {"path": "/usr/bin/runc"}}}', "'runtimes.nvidia'"),
        ('{"runtimes": {"nvidia": "x"}}', "'runtimes.nvidia'"),
        ('{"default-runtime": "crun"}', "'default-runtime'"),
        ('{"features": {"cdi": false}}', "'features.cdi'"),
    ],
)
def test_what_others_have_written_stays(program: Program, tree: Path, text: str, what: str) -> None:
    file = planted(tree, DOCKER, text)
    before = state(file)
    said = program.mistake(4, *words(tree, "docker", *EVERYTHING))
    assert f"{what} in /{DOCKER} is not what 'oci-gpu-hook configure' writes, and stays (remove it there" in said
    assert ("--name" in said) == ("runtimes" in what)
    if "runtimes" in text:
        assert what in program.mistake(4, *words(tree, "docker", "--name", "nvidia", "--remove"))
    program(*words(tree, "docker", "--remove", "--cdi"))
    assert state(file) == before


def test_more_than_our_path_is_somebody_elses(program: Program, tree: Path) -> None:
    text = json.dumps({"runtimes": {"nvidia": {**OURS, "runtimeArgs": ["--debug"]}}})
    file = planted(tree, DOCKER, text)
    assert program(*words(tree, "docker", "--name", "nvidia")) == f"nothing to do in /{DOCKER}\n"
    assert "'runtimes.nvidia'" in program.mistake(4, *words(tree, "docker", "--remove"))
    assert file.read_text() == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b'{ // ours\n "a": 1 }', "is not JSON: "),
        (b'{"a": "\xff"}', "is not UTF-8 text"),
        (b"[]", "is not a JSON object"),
        (b'{"runtimes": {"nvidia": {"path": "/a"}, "nvidia": {"path": "/b"}}}', "has the key 'nvidia' twice"),
        (b'{"runtimes": []}', "runtimes in /etc/docker/daemon.json is not an object"),
        (b'{"features": null}', "features in /etc/docker/daemon.json is not an object"),
        (b"{" + b'"a": {' * 100_000, "is not JSON: "),
        (b"{}" + b" " * (1 << 20), "is larger than 1 MiB"),
    ],
)
@pytest.mark.parametrize("option", ["--cdi", "--dry-run", "--remove"])
def test_what_is_no_daemon_json_is_refused(program: Program, tree: Path, text: bytes, why: str, option: str) -> None:
    hosts.plant(tree, DOCKER, text)
    assert why in program.mistake(4, *words(tree, "docker", option))
    assert (tree / DOCKER).read_bytes() == text and os.listdir(tree / "etc/docker") == ["daemon.json"]


def test_the_difference_is_shown_by_a_dry_run_and_on_a_terminal(
    program: Program, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = planted(tree, DOCKER, '{\n\t"a": "\x7f"\n}\n')
    before = state(file)
    begin = f"--- /{DOCKER}\n+++ /{DOCKER}\n@@ -1,3 +1,8 @@\n {{\n"
    begin += '-\t"a": "\\x7f"\n+\t"a": "\\x7f",\n+\t"runtimes": {\n'
    assert program(*words(tree, "docker", "--dry-run")).startswith(begin)
    assert program.err == "" and state(file) == before
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    shown = program(*words(tree, "docker"))
    assert shown.startswith(begin) and shown.endswith(f"\nwrote /{DOCKER}\n")


@pytest.mark.parametrize(("option", "is_there"), [("--cdi", True), ("--remove", True), ("--cdi", False)])
def test_a_file_that_changes_meanwhile_is_left_alone(
    program: Program, tree: Path, monkeypatch: pytest.MonkeyPatch, option: str, is_there: bool
) -> None:
    file = planted(tree, DOCKER, "")
    program(*words(tree, "docker"))
    if not is_there:
        file.unlink()
    real = enginefile.write

    def write(*given: Any) -> None:
        file.write_text('{"b": 1}')
        real(*given)

    monkeypatch.setattr(enginefile, "write", write)
    assert "was changed by another program meanwhile" in program.mistake(7, *words(tree, "docker", option))
    assert file.read_text() == '{"b": 1}' and os.listdir(file.parent) == ["daemon.json"]


def test_many_at_once(tree: Path) -> None:
    """Each one that says that it has written is in the file, which stays whole."""
    start = [sys.executable, "-m", "oci_gpu_hook", *map(str, words(tree, "docker", "--name"))]
    names = [f"n{number}" for number in range(8)]
    running = [subprocess.Popen([*start, name], stdout=subprocess.PIPE, stderr=subprocess.PIPE) for name in names]
    done = {name: (*process.communicate(), process.returncode) for name, process in zip(names, running)}
    assert {code for *_, code in done.values()} <= {0, 7}, done
    written = {name for name, (*_, code) in done.items() if code == 0}
    assert written and set(json.loads((tree / DOCKER).read_text())["runtimes"]) == written
    assert os.listdir(tree / "etc/docker") == ["daemon.json"]


def test_a_link_counts_where_root_alone_has_made_it(program: Program, tree: Path) -> None:
    """Here the tree's owner is root: a link in a folder of his own counts, one that others could make does not."""
    real, file = planted(tree, "srv/real.json", "{}"), tree / DOCKER
    file.parent.mkdir(parents=True)
    file.symlink_to("/srv/real.json")
    program(*words(tree, "docker"))
    written = real.read_text()
    assert "runtimes" in written
    assert file.is_symlink() and os.listdir(file.parent) == ["daemon.json"]
    for mode in (0o777, 0o1777):
        file.parent.chmod(mode)
        assert "is not root's alone" in program.mistake(4, *words(tree, "docker", "--cdi"))
    assert real.read_text() == written


@pytest.mark.usefixtures("user")
def test_a_user_has_a_file_of_his_own(program: Program, tree: Path) -> None:
    """Folders that are missing are made; links lead where he likes; and his folders may be open to his group."""
    home = tree / "homes/user"
    home.mkdir(parents=True)
    home.chmod(0o775)
    assert program(*words(tree, "docker", "--user")) == "wrote /homes/user/.config/docker/daemon.json\n"
    assert program.err == "so that it holds: systemctl --user restart docker\n"
    file = home / ".config/docker/daemon.json"
    real = planted(tree, "homes/user/dotfiles/daemon.json", '{"debug": true}')
    file.unlink()
    file.symlink_to("../../dotfiles/daemon.json")
    program(*words(tree, "docker", "--user", "--name", "nvidia"))
    assert file.is_symlink() and json.loads(real.read_text()) == {"debug": True, "runtimes": {"nvidia": OURS}}
    program(*words(tree, "docker", "--user", "--remove"))
    assert file.is_symlink() and real.read_text() == '{"debug": true}'
    file.unlink()
    file.symlink_to("nowhere")
    assert "is a dangling symbolic link" in program.mistake(4, *words(tree, "docker", "--user"))
    assert not (tree / "etc").exists()


@pytest.mark.usefixtures("user")
def test_without_such_a_folder_it_is_in_the_home(program: Program, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    monkeypatch.setenv("HOME", "/h")
    assert program(*words(tree, "docker", "--user")) == "wrote /h/.config/docker/daemon.json\n"


def test_a_link_that_was_made_later_is_written(program: Program, tree: Path) -> None:
    """By its name devcontainers, Ray and SkyPilot know that Docker has GPUs."""
    assert program(*words(tree, "docker", "--name", "nvidia")).startswith("wrote")
    (tree / "usr/bin/nvidia-container-runtime").symlink_to("oci-gpu-runtime")
    for said in ("wrote", "nothing to do"):
        assert program(*words(tree, "docker", "--name", "nvidia")).startswith(said)
        named = json.loads((tree / "etc/docker/daemon.json").read_text())["runtimes"]
        assert named == {"nvidia": {"path": "/usr/bin/nvidia-container-runtime"}}


# Drop-ins.

IMPORTS = 'imports = ["/etc/containerd/conf.d/*.toml"]\n'
RUNTIME = '[plugins."io.containerd.{0}".containerd.runtimes.{1}]\n  runtime_type = "io.containerd.runc.v2"\n'
OPTIONS = '[plugins."io.containerd.{0}".containerd.runtimes.{1}.options]\n'
HEAD = "# Written by 'oci-gpu-hook configure {}', whose --remove takes this file away.\n"


def containerd(tree: Path) -> str:
    return (tree / CONTAINERDS_OURS[1:]).read_text()


def test_containerd_1_gets_a_drop_in_where_it_loses_nothing_by_it(program: Program, tree: Path) -> None:
    planted(tree, CONTAINERD, f"version = 2\n{IMPORTS}[metrics]\n  address = ':1'\n")
    assert program(*words(tree, "containerd", *EVERYTHING)) == f"wrote {CONTAINERDS_OURS}\n"
    assert program.err == "so that it holds: systemctl restart containerd\n"
    assert containerd(tree).startswith(HEAD.format("containerd"))
    parsed = installed.parse_toml(containerd(tree).encode())
    runtime = {"runtime_type": "io.containerd.runc.v2"}
    ours = {**runtime, "options": {"BinaryName": "/usr/bin/oci-gpu-runtime"}}
    assert parsed["version"] == 2
    assert parsed["plugins"]["io.containerd.grpc.v1.cri"] == {
        "enable_cdi": True,
        "cdi_spec_dirs": ["/etc/cdi", "/var/run/cdi"],
        "containerd": {"default_runtime_name": "nvidia", "runtimes": {"nvidia": ours, "runc": runtime}},
    }
    written = state(tree / CONTAINERDS_OURS[1:])
    assert program(*words(tree, "containerd", *EVERYTHING)).startswith("nothing to do")
    assert state(tree / CONTAINERDS_OURS[1:]) == written
    program(*words(tree, "containerd", "--remove"))
    assert os.listdir(tree / "etc/containerd/conf.d") == []
    assert program(*words(tree, "containerd", "--remove")).startswith("nothing to do")


def test_containerd_1_that_would_lose_settings_by_a_drop_in_gets_lines_to_add(program: Program, tree: Path) -> None:
    text = f'version = 2\n{IMPORTS}[plugins."io.containerd.grpc.v1.cri"]\n  sandbox_image = "pause"\n'
    file = planted(tree, CONTAINERD, text)
    lines = program(*words(tree, "containerd", *EVERYTHING), code=4)
    assert "add these lines to its tables" in program.err and file.read_text() == text
    file.write_text(text + lines.replace('[plugins."io.containerd.grpc.v1.cri"]\n', ""))
    assert program(*words(tree, "containerd", *EVERYTHING)) == f"nothing to do in {CONTAINERDS_OURS}\n"
    assert program.err == f"containerd has it by /{CONTAINERD}\n"


@pytest.mark.parametrize("version", [3, 4])
def test_containerd_2_gets_a_runtime_like_its_default_one(program: Program, tree: Path, version: int) -> None:
    name = "cri.v1.runtime"
    text = f"version = {version}\n{IMPORTS}{RUNTIME.format(name, 'runc')}"
    text += "  pod_annotations = ['a.*']\n  odd = [{a = 1}]\n"
    text += f"{OPTIONS.format(name, 'runc')}  SystemdCgroup = true\n  BinaryName = '/usr/bin/crun'\n"
    planted(tree, CONTAINERD, text)
    program(*words(tree, "containerd", *EVERYTHING))
    assert "pods have /usr/bin/crun by default: so that ours starts it, set in /etc/oci-gpu-hook.conf" in program.err
    expected = (DATA / "containerd.toml").read_text().replace("version = 3", f"version = {version}")
    assert containerd(tree) == HEAD.format("containerd") + expected


@pytest.mark.parametrize(
    ("imports", "line"),
    [
        ('imports = ["/etc/a/*.toml"]\n', 'imports = ["/etc/a/*.toml", "/etc/containerd/conf.d/*.toml"]'),
        ('imports = ["conf.d/99-*"]\n', ""),
        (IMPORTS, ""),
        ("imports = 3\n", 'imports = ["/etc/containerd/conf.d/*.toml"]'),
    ],
)
def test_which_line_containerd_needs_is_told(program: Program, tree: Path, imports: str, line: str) -> None:
    text = f"{imports}version = 3\n"
    file = planted(tree, CONTAINERD, text)
    program(*words(tree, "containerd"))
    # Two such lines are no TOML.
    told = f"containerd reads it once /{CONTAINERD} has this line in the place of its own: {line}\n" if line else ""
    assert program.err == f"{told}so that it holds: systemctl restart containerd\n"
    assert file.read_text() == text


def test_what_containerd_imports_counts_wherever_it_lies_and_nothing_else(program: Program, tree: Path) -> None:
    """Also what a file imports that is imported."""
    for version, name in ((2, "grpc.v1.cri"), (3, "cri.v1.runtime")):
        runc = f"{RUNTIME.format(name, 'runc')}{OPTIONS.format(name, 'runc')}SystemdCgroup = true\n"
        planted(tree, CONTAINERD, f"version = {version}\nimports = ['/srv/*.toml', '/etc/containerd/conf.d/*.toml']\n")
        planted(tree, "srv/1.toml", f"version = {version}\nimports = ['more/2.toml']\n")
        planted(tree, "srv/more/2.toml", runc)
        planted(tree, "etc/containerd/config.d/9.toml", runc.replace("SystemdCgroup", "NoPivotRoot"))
        if version == 2:
            program(*words(tree, "containerd"), code=4)
            assert "containerd 1 would lose what /srv/more/2.toml has" in program.err
            assert "'containerd config migrate' prints" in program.err
        else:
            program(*words(tree, "containerd"))
            assert "SystemdCgroup = true" in containerd(tree) and "NoPivotRoot" not in containerd(tree)


def test_a_virtual_machines_shim_is_not_what_ours_is_made_like(program: Program, tree: Path) -> None:
    name = "cri.v1.runtime"
    kata = f"{RUNTIME}{OPTIONS}ConfigPath = '/x'\n".format(name, "kata").replace("runc.v2", "kata.v2")
    default = f"[plugins.'io.containerd.{name}'.containerd]\ndefault_runtime_name = 'kata'\n"
    planted(tree, CONTAINERD, f"version = 3\n{IMPORTS}{default}{kata}")
    program(*words(tree, "containerd"))
    assert "kata" not in containerd(tree) and "ConfigPath" not in containerd(tree)


def test_a_file_that_is_read_later_and_has_our_keys_is_told(program: Program, tree: Path) -> None:
    plugin, hooks = "plugins.'io.containerd.cri.v1.runtime'.containerd", "hooks_dir = ['/usr']\n"
    planted(tree, CONTAINERD, f"version = 3\n{IMPORTS}")
    for engine, path, text in (
        ("podman", "etc/containers/containers.conf.d/99-site.conf", f"[engine]\n{hooks}runtime = 'crun'\n"),
        ("crio", "etc/crio/crio.conf.d/99-site.conf", f"[crio.runtime]\n{hooks}"),
        ("containerd", "etc/containerd/conf.d/99-site.toml", f"[{plugin}]\ndefault_runtime_name = 'runc'\n"),
    ):
        file = planted(tree, path, text)
        program(*words(tree, engine, *(["--set-as-default"] if engine != "crio" else [])))
        assert program.err.count(f"/{path} has ") == (2 if engine == "podman" else 1)
        assert ": rename one of them\n" in program.err
        file.rename(file.with_name(f"10-{file.name}"))
        program(*words(tree, engine, *(["--set-as-default"] if engine != "crio" else [])))
        assert "rename" not in program.err


def test_a_containerds_file_that_is_there_and_not_to_be_read_is_not_made_anew(program: Program, tree: Path) -> None:
    (tree / CONTAINERD).mkdir(parents=True)
    said = program.mistake(4, *words(tree, "containerd"))
    assert "cannot be read (run it as root" in said and "containerd config default" not in said


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, f"there is no /{CONTAINERD} to read drop-ins (make it: containerd config default >"),
        ("", "has version 1 (bring it up to date: containerd config migrate)"),
        ("version = 5\n", "has version 5"),
        ('version = "3"\n', "has version '3'"),
        ("version = [3]\n", "has version [3]"),
        ("version = 3\n[", f"cannot read /{CONTAINERD}: "),
        ("version = 3\nimports = ['/etc/*.d/*.toml']\n", "cannot read /etc/*.d/*.toml: a pattern of folders"),
        (f"{'.'.join('a' * 3000)} = 1\n", f"cannot read /{CONTAINERD}: it is nested too deep"),
        (f"version = 3\n{RUNTIME.format('cri.v1.runtime', 'nvidia')}", "runtimes.nvidia' in"),
    ],
)
def test_containerds_that_get_no_drop_in(program: Program, tree: Path, text: str | None, why: str) -> None:
    if text is not None:
        planted(tree, CONTAINERD, text)
    assert why in program.mistake(4, *words(tree, "containerd", "--name", "nvidia"))
    assert not (tree / "etc/containerd/conf.d").exists()


RANCHERS = "var/lib/rancher/{}/agent/etc/containerd/"
BASE = '{{ template "base" . }}\n'


def rendered(engine: str, template: str = "") -> str:
    """config.toml as k3s and RKE2 write it at a start: by their own template, "base" in one of the administrator's."""
    base = (DATA / f"{engine}.toml").read_text()
    return template.replace(BASE.rstrip(), base) if template else base


@pytest.mark.parametrize(("engine", "name"), [("k3s", "config-v3.toml.tmpl"), ("rke2", "config.toml.tmpl")])
def test_k3s_and_rke2_get_a_template(program: Program, tree: Path, engine: str, name: str) -> None:
    """config.toml is written by them at each start, also where the host has a containerd of its own."""
    folder = RANCHERS.format(engine)
    before = rendered(engine)
    made = planted(tree, f"{folder}config.toml", before)
    planted(tree, CONTAINERD, f"version = 3\n{IMPORTS}")
    told = f"for each pod: default-runtime: oci-gpu-runtime in /etc/rancher/{engine}/config.yaml\n"
    assert program(*words(tree, "containerd", "--set-as-default")) == f"wrote /{folder}{name}\n"
    assert program.err == f"{told}so that it holds: systemctl restart '{engine}*'\n"
    template = (tree / folder / name).read_text()
    assert template.startswith(HEAD.format("containerd") + BASE)
    assert (sorted(os.listdir(tree / folder)), made.read_text()) == (sorted(["config.toml", name]), before)
    made.write_text(rendered(engine, template))
    (plugin,) = installed.parse_toml(made.read_bytes())["plugins"].values()
    assert plugin["containerd"]["runtimes"]["oci-gpu-runtime"] == {
        "runtime_type": "io.containerd.runc.v2",
        "options": {"SystemdCgroup": True, "BinaryName": "/usr/bin/oci-gpu-runtime"},
    }
    # By the start that reads it, the runtime is there.
    assert program(*words(tree, "containerd")).startswith("nothing to do")
    assert program.err == f"{engine} has it by /{folder}config.toml\n"
    assert program(*words(tree, "containerd", "--remove")) == f"removed /{folder}{name}\n"
    assert os.listdir(tree / folder) == ["config.toml"]


def test_a_runtime_in_k3s_is_like_the_default_one_of_its_drop_ins(program: Program, tree: Path) -> None:
    """Since 2026 its own template imports a folder of the administrator's."""
    folder, name = RANCHERS.format("k3s"), "cri.v1.runtime"
    made, drop_in = f"{folder}config.toml", f"{folder}config-v3.toml.d/9.toml"
    planted(tree, made, f"imports = ['/{folder}config-v3.toml.d/*.toml']\n{rendered('k3s')}")
    file = planted(tree, drop_in, f"{RUNTIME.format(name, 'runc')}cgroup_writable = true\n")
    program(*words(tree, "containerd"))
    assert "cgroup_writable = true\n" in (tree / folder / "config-v3.toml.tmpl").read_text()
    default = f"[plugins.'io.containerd.{name}'.containerd]\ndefault_runtime_name = 'oci-gpu-runtime'\n"
    file.write_text(f"{default}{OPTIONS.format(name, 'oci-gpu-runtime')}BinaryName = '/usr/bin/oci-gpu-runtime'\n")
    program(*words(tree, "containerd", "--set-as-default"))
    assert program.err == f"k3s has it by /{made}, /{drop_in}\n"


def test_a_template_of_the_administrators_stays_and_nvidia_is_k3ss_own_name(program: Program, tree: Path) -> None:
    folder = RANCHERS.format("k3s")
    made = planted(tree, f"{folder}config.toml", rendered("k3s"))
    said = program.mistake(4, *words(tree, "containerd", "--name", "nvidia"))
    assert "k3s has a runtime of this name once there is a program nvidia-container-runtime" in said
    linked = RUNTIME.format("cri.v1.runtime", "nvidia") + OPTIONS.format("cri.v1.runtime", "nvidia")
    made.write_text(f"{rendered('k3s')}{linked}  BinaryName = '/usr/bin/nvidia-container-runtime'\n")
    said = program.mistake(4, *words(tree, "containerd", "--name", "nvidia"))
    assert "is not what 'oci-gpu-hook configure' writes" in said
    (tree / "usr/bin/nvidia-container-runtime").symlink_to("oci-gpu-runtime")
    assert program(*words(tree, "containerd", "--name", "nvidia")).startswith("nothing to do")
    theirs = planted(tree, f"{folder}config-v3.toml.tmpl", BASE)
    assert "and stays" in program.mistake(4, *words(tree, "containerd"))
    assert theirs.read_text() == BASE


K0S = "etc/k0s/"
CRI = {2: "grpc.v1.cri", 3: "cri.v1.runtime"}


@pytest.mark.parametrize("version", [2, 3])
def test_k0s_gets_a_drop_in_in_its_own_folder(program: Program, tree: Path, version: int) -> None:
    """Before 1.36, with containerd 1, it merges drop-ins into a file that its containerd.toml imports: none is lost."""
    merged = "/run/k0s/containerd-cri.toml"
    (tree / "run/k0s").mkdir()
    imports = merged if version == 2 else "/etc/k0s/containerd.d/*.toml"
    planted(tree, CONTAINERD, "version = 3\n")
    planted(tree, f"{K0S}containerd.toml", f"# k0s_managed=true\nversion = {version}\nimports = ['{imports}']\n")
    planted(tree, f"{K0S}containerd.d/1.toml", f"{OPTIONS.format(CRI[version], 'runc')}SystemdCgroup = true\n")
    ours = f"{K0S}containerd.d/99-oci-gpu-hook.toml"
    assert program(*words(tree, "containerd", "--set-as-default")) == f"wrote /{ours}\n"
    assert program.err == ""
    text = (tree / ours).read_text()
    planted(tree, merged, text if version == 2 else "")
    found = installed.parse_toml(text.encode())
    runtimes = found["plugins"][f"io.containerd.{CRI[version]}"]["containerd"]["runtimes"]
    assert found["version"] == version
    assert runtimes["oci-gpu-runtime"]["options"] == {"SystemdCgroup": True, "BinaryName": "/usr/bin/oci-gpu-runtime"}
    # What k0s has made of it counts for nothing, or a later call would leave out what an earlier one has written.
    assert program(*words(tree, "containerd", "--set-as-default")) == f"nothing to do in /{ours}\n"
    assert program(*words(tree, "containerd", "--remove")) == f"removed /{ours}\n"


def test_settings_of_k0s_that_k0s_no_longer_writes_are_any_containerds(program: Program, tree: Path) -> None:
    (tree / "run/k0s").mkdir()
    held = "[plugins.'io.containerd.grpc.v1.cri']\nsandbox_image = 'pause'\n"
    planted(tree, f"{K0S}containerd.toml", f"version = 2\n{held}")
    program(*words(tree, "containerd"), code=4)
    assert f"containerd 1 would lose what /{K0S}containerd.toml has of this plugin" in program.err
    planted(tree, f"{K0S}containerd.toml", "version = 3\n")
    program(*words(tree, "containerd"))
    line = 'imports = ["/etc/k0s/containerd.d/*.toml"]'
    assert f"containerd reads it once /{K0S}containerd.toml has this line ahead of its tables: {line}" in program.err


def test_a_k0s_that_is_gone_has_left_its_settings(program: Program, tree: Path) -> None:
    planted(tree, f"{K0S}containerd.toml", "version = 3\nimports = ['/etc/k0s/containerd.d/*.toml']\n")
    planted(tree, CONTAINERD, f"version = 3\n{IMPORTS}")
    assert program(*words(tree, "containerd")) == f"wrote {CONTAINERDS_OURS}\n"
    assert program.err == "so that it holds: systemctl restart containerd\n"


def test_microk8s_needs_another_way(program: Program, tree: Path) -> None:
    hosts.plant(tree, "snap/bin/microk8s", "")
    assert "MicroK8s needs a link: oci-gpu-hook-kubernetes(7)" in program.mistake(4, *words(tree, "containerd"))


def test_without_a_toml_parser_one_is_named(program: Program, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted(tree, CONTAINERD, "version = 3\n")
    for name in ("tomllib", "tomli"):
        monkeypatch.setitem(sys.modules, name, None)
    assert "(install python3-tomli)" in program.mistake(4, *words(tree, "containerd"))


CRIO = "etc/crio/crio.conf.d/99-oci-gpu-hook.conf"


def test_crio_gets_our_folder_beside_its_own_and_a_runtime(program: Program, tree: Path) -> None:
    assert program(*words(tree, "crio")) == f"nothing to do in /{CRIO}\n"
    assert program.err == "CRI-O looks for hooks in /usr/share/containers/oci/hooks.d\n"
    planted(tree, "etc/crio/crio.conf.d/10-x", '[crio.runtime]\nhooks_dir = ["/x"]\n')
    program(*words(tree, "crio", "--name", "nvidia"))
    assert program.err == "so that it holds: systemctl restart crio\n"
    assert (tree / CRIO).read_text() == HEAD.format("crio") + (DATA / "crio.conf").read_text()
    assert program(*words(tree, "crio", "--name", "nvidia")).startswith("nothing to do")
    for more in (["--name", "other"], ["--remove"]):
        program(*words(tree, "crio", *more))
        assert "delete the pods of this runtime first" in program.err
    assert os.listdir(tree / "etc/crio/crio.conf.d") == ["10-x"]
    hosts.plant(tree, "usr/bin/crun", "")
    program(*words(tree, "crio", "--name", "nvidia"))
    assert "since CRI-O 1.31 pods have /usr/bin/crun by default: so that ours starts it" in program.err
    planted(tree, "etc/crio/crio.conf", '[crio.runtime.runtimes.nvidia]\nruntime_path = "/usr/bin/nvidia-x"\n')
    assert "'crio.runtime.runtimes.nvidia' in" in program.mistake(4, *words(tree, "crio", "--name", "nvidia"))


@pytest.mark.parametrize("said", ["default_runtime = 'crun'\n", ""])
def test_crios_runtime_is_like_the_default_one(program: Program, tree: Path, said: str) -> None:
    """Its packages have conmon and the runtimes in a folder that is not in PATH."""
    crun = '[crio.runtime.runtimes.crun]\nruntime_path = "/usr/libexec/crio/crun"\nruntime_root = "/run/crun"\n'
    crun += 'monitor_path = "/usr/libexec/crio/conmon"\nmonitor_env = ["PATH=/x"]\nallowed_annotations = ["a"]\n'
    runc = '[crio.runtime.runtimes.runc]\nruntime_path = "/usr/libexec/crio/runc"\n'
    planted(tree, "etc/crio/crio.conf.d/10-crio.conf", f"[crio.runtime]\n{said}{runc}{crun}")
    program(*words(tree, "crio", "--name", "nvidia"))
    assert "runtime = /usr/libexec/crio/crun" in program.err
    ours = installed.parse_toml((tree / CRIO).read_bytes())["crio"]["runtime"]["runtimes"]["nvidia"]
    wanted = installed.parse_toml(crun.encode())["crio"]["runtime"]["runtimes"]["crun"]
    assert ours == {**wanted, "runtime_path": "/usr/bin/oci-gpu-runtime"}
    kata = '[crio.runtime]\ndefault_runtime = "kata"\n[crio.runtime.runtimes.kata]\nruntime_type = "vm"\n'
    planted(tree, "etc/crio/crio.conf.d/20-kata.conf", f"{kata}runtime_path = '/usr/bin/containerd-shim-kata-v2'\n")
    program(*words(tree, "crio", "--name", "nvidia"))
    assert "kata" not in (tree / CRIO).read_text() + program.err and "conmon" in (tree / CRIO).read_text()


PODMAN = "etc/containers/containers.conf.d/99-oci-gpu-hook.conf"
HOOKS = "/usr/share/containers/oci/hooks.d"


def test_podman_for_every_user(program: Program, tree: Path) -> None:
    """Of root's default folders only those that are there: podman would start no hook at all."""
    program(*words(tree, "podman"))
    assert (tree / PODMAN).read_text() == HEAD.format("podman") + f'[engine]\n  hooks_dir = ["{HOOKS}"]\n'
    assert program.err == ""
    (tree / "etc/containers/oci/hooks.d").mkdir(parents=True)
    program(*words(tree, "podman"))
    folders = ["/etc/containers/oci/hooks.d", HOOKS]
    assert installed.parse_toml((tree / PODMAN).read_bytes())["engine"] == {"hooks_dir": folders}
    assert program(*words(tree, "podman")).startswith("nothing to do")
    program(*words(tree, "podman", "--remove"))
    assert os.listdir(tree / "etc/containers/containers.conf.d") == []


def test_podman_gets_our_runtime_in_front_of_its_own(program: Program, tree: Path) -> None:
    """tests/integration/test_podman.py has it in front of crun, and a user's drop-in."""
    configure = words(tree, "podman", "--set-as-default")
    planted(tree, "etc/containers/containers.conf", f'[engine]\nhooks_dir = ["{HOOKS}"]\nruntime = "/opt/runc"\n')
    program(*configure)
    assert "so that ours starts it, set in /etc/oci-gpu-hook.conf, while" in program.err
    assert "no container of ours runs: runtime = /opt/runc\n" in program.err
    assert installed.parse_toml((tree / PODMAN).read_bytes())["engine"] == {
        "runtime": "oci-gpu-runtime",
        "runtimes": {"oci-gpu-runtime": ["/usr/bin/oci-gpu-runtime"]},
    }
    assert program(*configure).startswith("nothing to do")
    program(*words(tree, "podman", "--remove"))
    assert "made with oci-gpu-runtime cannot be started once podman knows no such runtime" in program.err
    planted(tree, "etc/containers/containers.conf", '[engine]\nruntime = "/usr/bin/nvidia-container-runtime"\n')
    program(*configure)
    assert "NVIDIA's: ours does its work" in program.err and "so that ours starts it" not in program.err
    planted(tree, "etc/containers/containers.conf", '[engine]\nruntime = "/usr/bin/oci-gpu-runtime"\n')
    program(*configure)
    assert "runtime" not in installed.parse_toml((tree / PODMAN).read_bytes())["engine"]


@pytest.mark.usefixtures("user")
def test_podman_for_one_user(program: Program, tree: Path) -> None:
    # Of drop-ins of one name podman 6 reads one alone: another than root's, and behind it.
    place = "/homes/user/.config/containers/containers.conf.d/99-oci-gpu-hook.user.conf"
    (tree / "etc/containers/oci/hooks.d").mkdir(parents=True)
    # podman 6 reads it for root alone.
    planted(tree, "etc/containers/containers.rootful.conf.d/1.conf", f'[engine]\nhooks_dir = ["{HOOKS}"]\n')
    program(*words(tree, "podman", "--user"))
    assert installed.parse_toml((tree / place[1:]).read_bytes())["engine"] == {"hooks_dir": [HOOKS]}
    (tree / "srv").mkdir()
    planted(tree, "homes/user/.config/containers/containers.conf", '[engine]\nhooks_dir = ["/srv", "/gone"]\n')
    program(*words(tree, "podman", "--user"))
    assert installed.parse_toml((tree / place[1:]).read_bytes())["engine"] == {"hooks_dir": ["/srv", HOOKS]}
    program(*words(tree, "podman", "--user", "--remove"))
    assert program.err == ""
    planted(tree, "homes/user/.config/containers/containers.conf", "")
    own = "homes/user/.config/containers/containers.conf.d/1.conf"
    users = "etc/containers/containers.rootless.conf.d"
    for file in (PODMAN, f"{users}/1.conf", f"{users}/{os.geteuid()}/1.conf", own):
        planted(tree, file, f'[engine]\nhooks_dir = ["{HOOKS}"]\n')
        assert program(*words(tree, "podman", "--user")) == f"nothing to do in {place}\n"
        assert program.err == f"podman looks for hooks in {HOOKS}, by /{file}\n"


@pytest.mark.usefixtures("user")
def test_what_is_in_a_path_is_not_in_the_way(program: Program, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home called as ours, with .d, and a folder whose name has letters that TOML does not write as JSON does."""
    monkeypatch.setenv("XDG_CONFIG_HOME", "/homes/u-hook.conf.d/.config")
    (tree / "srv\x7f\U0001f600").mkdir()
    text = '[engine]\nhooks_dir = ["/srv\\u007f\U0001f600"]\n'
    planted(tree, "homes/u-hook.conf.d/.config/containers/containers.conf", text)
    program(*words(tree, "podman", "--user"))
    ours = (tree / "homes/u-hook.conf.d/.config/containers/containers.conf.d/99-oci-gpu-hook.user.conf").read_bytes()
    assert installed.parse_toml(ours)["engine"] == {"hooks_dir": ["/srv\x7f\U0001f600", HOOKS]}


@pytest.mark.parametrize(("engine", "file"), [("podman", PODMAN), ("crio", CRIO), ("containerd", CONTAINERDS_OURS)])
def test_a_drop_in_of_somebody_elses_stays(program: Program, tree: Path, engine: str, file: str) -> None:
    there = planted(tree, file, "[x]\n")
    for option in ("--dry-run", "--remove"):
        said = program.mistake(4, *words(tree, engine, option))
        assert "was not written by 'oci-gpu-hook configure', and stays" in said
    assert there.read_text() == "[x]\n"


# daemon.json's text.


@given(
    st.dictionaries(st.text(), VALUES, max_size=3),
    st.none() | st.dictionaries(st.text(), VALUES, max_size=2),
    st.sampled_from([None, 0, 1, 2, 4, "\t"]),
    st.sampled_from(["", "\n", "  \n"]),
)
def test_any_object_is_as_it_was(values: dict[str, Any], old: dict[str, Any] | None, indent: Any, end: str) -> None:
    values = {key: value for key, value in values.items() if key not in ("runtimes", "default-runtime")}
    if old is not None:
        old.pop("nvidia", None)
        values["runtimes"] = old
    text = json.dumps(values, indent=indent) + end
    once = daemonjson.with_value(text, ("runtimes", "nvidia"), OURS)
    twice = daemonjson.with_value(once, ("default-runtime",), "nvidia")
    expected = {**values, "runtimes": {**(old or {}), "nvidia": OURS}, "default-runtime": "nvidia"}
    assert json.loads(twice) == expected and list(json.loads(twice)) == list(expected)
    assert daemonjson.with_value(twice, ("default-runtime",), "nvidia") == twice
    other = daemonjson.with_value(twice, ("default-runtime",), old)
    assert list(json.loads(other).items()) == list({**expected, "default-runtime": old}.items())
    if indent and values and old != {}:
        # It is laid out as the rest of the file is.
        assert twice == json.dumps(expected, indent=indent) + end
    assert daemonjson.without_value(twice, ("default-runtime",), "nvidia") == once
    # In one line, an empty object of somebody else's looks like one of ours.
    if indent is not None or old != {}:
        assert daemonjson.without_value(once, ("runtimes", "nvidia"), OURS) == text
