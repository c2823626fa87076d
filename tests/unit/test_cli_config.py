# SPDX-License-Identifier: Apache-2.0
"""``config``: the settings in force and where each comes from, and NVIDIA's in ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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


NVIDIAS_OWN = """\
#accept-nvidia-visible-devices-as-volume-mounts = false
#accept-nvidia-visible-devices-envvar-when-unprivileged = true
disable-require = false
supported-driver-capabilities = "compat32,compute,display,graphics,ngx,utility,video"
#swarm-resource = "DOCKER_RESOURCE_GPU"

[nvidia-container-cli]
environment = []
ldconfig = "@/sbin/ldconfig"
load-kmods = true
root = "/run/nvidia/driver"
no-cgroups = true

[nvidia-container-runtime]
log-level = "info"
mode = "auto"
runtimes = ["runc", "crun"]

[nvidia-container-runtime.modes]

[nvidia-container-runtime.modes.cdi]
annotation-prefixes = ["cdi.k8s.io/"]
default-kind = "nvidia.com/gpu"
spec-dirs = ["/etc/cdi", "/var/run/cdi"]

[nvidia-container-runtime.modes.csv]
mount-spec-path = "/etc/nvidia-container-runtime/host-files-for-container.d"

[nvidia-container-runtime.modes.legacy]
cuda-compat-mode = "disabled"

[nvidia-container-runtime-hook]
path = "nvidia-container-runtime-hook"
skip-mode-detection = false

[nvidia-ctk]
path = "nvidia-ctk"
"""
MEANT = config.Config(
    driver_root="/run/nvidia/driver", device_cgroup="off", cuda_forward_compatibility=False
)


@pytest.fixture()
def nvidias(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(NVIDIAS_OWN)
    return path


def mistake(capsys: pytest.CaptureFixture[str], code: int, *words: str) -> str:
    """What a command says that must fail with this code: one sentence, on stderr alone."""
    assert cli.main(["config", *words]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    assert shown.err.startswith("oci-gpu-hook: ")
    return shown.err


def test_import_prints_settings_that_the_hook_reads(
    capsys: pytest.CaptureFixture[str], nvidias: Path, tmp_path: Path
) -> None:
    assert cli.main(["config", "import", str(nvidias)]) == 0
    text = capsys.readouterr().out
    ours = tmp_path / "hook.conf"
    ours.write_text(text)
    assert config.read(str(ours), may_be_absent=False, annotations={}) == MEANT
    assert "#   refused: the hook loads no kernel modules" in text
    assert "#   needless: no ldconfig is run" in text


def test_import_writes_a_drop_in_that_show_finds_again(
    capsys: pytest.CaptureFixture[str], nvidias: Path, file: Path
) -> None:
    place = Path(f"{file}.d/10-nvidia.conf")
    assert cli.main(["config", "import", str(nvidias), "--output", str(place)]) == 0
    first, *refused = capsys.readouterr().out.splitlines()
    assert first == f"wrote {place}: 5 served, 12 needless, 1 refused"
    assert [line.split(":")[1].strip() for line in refused] == [
        "nvidia-container-cli.load-kmods = true"
    ]
    assert place.stat().st_mode & 0o7777 == 0o644
    assert [path.name for path in place.parent.iterdir()] == [place.name]
    shown = document(capsys, "show", "--config", str(file))["settings"]
    said_there = {row["key"] for row in shown if row["from"].startswith(f"{place}:")}
    assert said_there == {
        "allowed-capabilities",
        "cuda-forward-compatibility",
        "device-cgroup",
        "disable-requirements",
        "driver-root",
    }
    read = config.read(str(file), may_be_absent=False, annotations={})
    assert read == MEANT._replace(swarm_resources=("DOCKER_RESOURCE_GPU", "OTHER"))


def test_import_for_programs_has_a_row_a_key(
    capsys: pytest.CaptureFixture[str], nvidias: Path
) -> None:
    found = document(capsys, "import", str(nvidias))
    assert (found["file"], found["output"], len(found["keys"])) == (str(nvidias), None, 18)
    assert found["keys"][0] == {
        "key": "disable-require",
        "value": "false",
        "answer": "served",
        "means": "disable-requirements = no",
    }


def test_import_reads_the_hosts_own_file_below_the_host_root(
    capsys: pytest.CaptureFixture[str], nvidias: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "host/etc/nvidia-container-runtime"
    folder.mkdir(parents=True)
    # An absolute link stays below that root.
    (folder / "config.toml").symlink_to("/etc/elsewhere.toml")
    nvidias.rename(tmp_path / "host/etc/elsewhere.toml")
    found = document(capsys, "import", "--host-root", str(tmp_path / "host"))
    assert found["file"] == "/etc/nvidia-container-runtime/config.toml"
    assert len(found["keys"]) == 18
    assert "cannot read /etc/nvidia-container-runtime/config.toml: No such file" in mistake(
        capsys, 4, "import", "--host-root", str(tmp_path)
    )


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"disable-require = yes\n", " is no TOML: "),
        (b"disable-require = true\ndisable-require = true\n", " is no TOML: "),
        (b"[nvidia-container-cli\n", " is no TOML: "),
        (b"swarm-resource = 'A\0'\n", " is no TOML: "),
        (b"swarm-resource = '\xff'\n", "it is no UTF-8 text"),
        (b"a = " + b"[" * 100_000, "nested too deep"),
        (b"a = " + b"1" * 5000, " is no TOML: "),
        (b"#" * (1 << 20) + b"\n", "it is larger than 1 MiB"),
        (b"disable-require = 1\n", "disable-require must be a boolean, not a number or a date"),
        (b"disable-require = 0x" + b"f" * 9000, "must be a boolean"),
        (b"disable-requires = true\n", "did you mean 'disable-require'?"),
        (b"".join(b"key-%d = 1\n" % number for number in range(10_000)), "unknown key 'key-0'"),
        (b"a." * 50 + b"b = 1\n", "unknown key 'a'"),
        # Some versions of the parser follow it, others find it too deep.
        (b"a." * 20_000 + b"b = 1\n", "config.toml"),
        (b"[nvidia-container-cli]\nroot = '''/x\nipc-labels = off'''\n", "no absolute path"),
    ],
    ids=lambda value: str(value[:30]),
)
def test_import_of_a_broken_file_is_one_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, data: bytes, sentence: str
) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(data)
    said = mistake(capsys, 4, "import", str(path), "--output", str(tmp_path / "out.conf"))
    assert sentence in said
    assert str(path) in said
    assert len(said) < 700
    assert not (tmp_path / "out.conf").exists()


def test_import_of_what_is_no_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    absent = mistake(capsys, 4, "import", str(tmp_path / "absent"))
    assert "absent: No such file or directory" in absent
    assert f"{tmp_path}: Is a directory" in mistake(capsys, 4, "import", str(tmp_path))


def test_import_of_a_pipe_that_nobody_writes_to_does_not_wait(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert document(capsys, "import", str(tmp_path / "pipe"))["keys"] == []


def test_import_writes_over_what_it_wrote_and_over_nothing_else(
    capsys: pytest.CaptureFixture[str], nvidias: Path, file: Path, tmp_path: Path
) -> None:
    words = ["config", "import", str(nvidias), "--output"]
    place = tmp_path / "ours.conf"
    assert cli.main([*words, str(place)]) == 0
    nvidias.write_text("disable-require = true\n")
    assert cli.main([*words, str(place)]) == 0
    assert config.read(str(place), may_be_absent=False, annotations={}) == config.Config(
        disable_requirements=True
    )
    capsys.readouterr()
    said = mistake(capsys, 2, *words[1:], str(file))
    assert f"{file} is there, and 'config import' has not written it" in said
    assert file.read_text() == MAIN
    assert "Is a directory" in mistake(capsys, 2, *words[1:], str(tmp_path))


@pytest.mark.parametrize("name", ["nvidia", "nvidia.conf.bak", ".nvidia.conf"])
def test_import_writes_no_drop_in_that_would_never_be_read(
    capsys: pytest.CaptureFixture[str], nvidias: Path, file: Path, name: str
) -> None:
    place = f"{file}.d/{name}"
    assert "would not be read" in mistake(capsys, 2, "import", str(nvidias), "--output", place)
    assert not Path(f"{file}.d").exists()


def test_import_where_nothing_can_be_written(
    capsys: pytest.CaptureFixture[str], nvidias: Path
) -> None:
    said = mistake(capsys, 7, "import", str(nvidias), "--output", "/proc/no/hook.conf")
    assert "cannot write /proc/no/hook.conf" in said
    for place in ("", "/run/", "/run/a\nb"):
        said = mistake(capsys, 2, "import", str(nvidias), "--output", place)
        assert "--output is " in said and "which is no file's name" in said


def test_import_without_a_toml_parser_says_what_to_install(
    capsys: pytest.CaptureFixture[str], nvidias: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("tomllib", "tomli"):
        monkeypatch.setitem(sys.modules, name, None)
    said = mistake(capsys, 1, "import", str(nvidias))
    assert "'config import' needs tomli, which this Python lacks (install python3-tomli)" in said


def test_the_hook_itself_reads_no_toml() -> None:
    program = "import sys, oci_gpu_hook.hook, oci_gpu_hook.config; print(*sys.modules)"
    command = [sys.executable, "-c", program]
    loaded = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.decode().split()
    assert "oci_gpu_hook.config" in loaded
    assert {"tomllib", "tomli", "oci_gpu_hook.nvidiaconfig"} & set(loaded) == set()
