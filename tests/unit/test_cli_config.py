# SPDX-License-Identifier: Apache-2.0
"""``config``: the settings in force and where each comes from, and NVIDIA's in ours."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from oci_gpu_hook.request.settings import Settings, read_settings
from tests.unit import hosts
from tests.unit.program import Program

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


def test_show_says_where_each_setting_comes_from(program: Program, file: Path) -> None:
    hosts.plant(Path(f"{file}.d"), "10-cgroup.conf", "\ndevice-cgroup = on\n")
    found = program.document("config", "show", "--config", file)
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


def test_show_for_people_has_a_line_a_setting_and_rules_below_their_headings(program: Program, file: Path) -> None:
    lines = [line.split() for line in program("config", "show", "--config", file).splitlines()]
    assert ["device-cgroup", "off", f"{file}:3"] in lines
    assert ["allowed-capabilities", "all", "default"] in lines
    assert ["swarm-resources", "DOCKER_RESOURCE_GPU,", "OTHER", f"{file}:4"] in lines
    rule = ["allowed-capabilities", "utility", f"{file}:7"]
    assert lines[-2:] == [["[namespace", "team-*]"], rule]


def test_show_sends_no_control_characters_to_a_terminal(program: Program, file: Path) -> None:
    file.write_text("driver-root = /a\x1b[1m\n[image \x1b*]\ndevice-cgroup = off\n")
    out = program("config", "show", "--config", file)
    assert "\x1b" not in out
    assert r"'/a\x1b[1m'" in out


def test_show_names_a_mistake_with_its_line(program: Program, file: Path) -> None:
    file.write_text("\n[host x]\n")
    said = program.mistake(4, "config", "show", "--config", file)
    assert f"{file}:2: '[host x]' is not a heading" in said


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
MEANT = Settings(driver_root="/run/nvidia/driver", device_cgroup="off", cuda_forward_compatibility=False)


@pytest.fixture()
def nvidias(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(NVIDIAS_OWN)
    return path


def test_import_prints_settings_that_the_hook_reads(program: Program, nvidias: Path, tmp_path: Path) -> None:
    text = program("config", "import", nvidias)
    ours = tmp_path / "hook.conf"
    ours.write_text(text)
    assert read_settings(str(ours), None) == MEANT
    assert "#   refused: the hook loads no kernel modules" in text
    assert "#   needless: no ldconfig is run" in text


def test_import_writes_a_drop_in_that_show_finds_again(program: Program, nvidias: Path, file: Path) -> None:
    place = f"{file}.d/10-nvidia.conf"
    first, refused = program("config", "import", nvidias, "--output", place).splitlines()
    assert first == f"wrote {place}: 5 served, 12 needless, 1 refused"
    assert refused.strip().startswith("refused: nvidia-container-cli.load-kmods = true: ")
    shown = program.document("config", "show", "--config", file)["settings"]
    assert {row["key"] for row in shown if row["from"].startswith(f"{place}:")} == {
        "allowed-capabilities",
        "cuda-forward-compatibility",
        "device-cgroup",
        "disable-requirements",
        "driver-root",
    }
    swarm = ("DOCKER_RESOURCE_GPU", "OTHER")
    assert read_settings(str(file), None) == MEANT._replace(swarm_resources=swarm)


def test_import_for_programs_has_a_row_a_key(program: Program, nvidias: Path) -> None:
    found = program.document("config", "import", nvidias)
    assert (found["file"], found["output"], len(found["keys"])) == (str(nvidias), None, 18)
    assert found["keys"][0] == {
        "key": "disable-require",
        "value": "false",
        "answer": "served",
        "means": "disable-requirements = no",
    }


def test_import_reads_the_hosts_own_file_below_the_host_root(program: Program, nvidias: Path, tmp_path: Path) -> None:
    own = "/etc/nvidia-container-runtime/config.toml"
    (tmp_path / f"host{own}").parent.mkdir(parents=True)
    # An absolute link stays below that root.
    (tmp_path / f"host{own}").symlink_to("/etc/elsewhere.toml")
    nvidias.rename(tmp_path / "host/etc/elsewhere.toml")
    found = program.document("config", "import", "--host-root", tmp_path / "host")
    assert (found["file"], len(found["keys"])) == (own, 18)
    said = program.mistake(4, "config", "import", "--host-root", tmp_path)
    assert f"cannot read {own}: No such file" in said


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"disable-require = yes\n", " is not TOML: "),
        (b"#" * (1 << 20) + b"\n", "it is larger than 1 MiB"),
        (b"disable-require = 1\n", "disable-require must be a boolean, not a number or a date"),
        (b"".join(b"key-%d = 1\n" % number for number in range(10_000)), "unknown key 'key-0'"),
        # Some versions of the parser follow it, others find it too deep.
        (b"a." * 4_000 + b"b = 1\n", "config.toml"),
    ],
    ids=lambda value: str(value[:30]),
)
def test_import_of_a_broken_file_is_one_sentence(
    program: Program, nvidias: Path, tmp_path: Path, data: bytes, sentence: str
) -> None:
    nvidias.write_bytes(data)
    output = tmp_path / "out.conf"
    said = program.mistake(4, "config", "import", nvidias, "--output", output)
    assert sentence in said and str(nvidias) in said and len(said) < 700
    assert not output.exists()


def test_import_of_what_is_no_file(program: Program, tmp_path: Path) -> None:
    said = program.mistake(4, "config", "import", tmp_path / "absent")
    assert "absent: No such file or directory" in said
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", "/dev/zero", "/proc/self/environ"):
        assert "it is not a regular file" in program.mistake(4, "config", "import", path)


def test_import_writes_over_what_it_wrote_and_over_nothing_else(
    program: Program, nvidias: Path, file: Path, tmp_path: Path
) -> None:
    words = ["config", "import", nvidias, "--output"]
    place = tmp_path / "ours.conf"
    program(*words, place)
    nvidias.write_text("disable-require = true\n")
    program(*words, place)
    assert read_settings(str(place), None) == Settings(disable_requirements=True)
    said = program.mistake(2, *words, file)
    assert f"{file} is there, and 'config import' has not written it" in said
    assert file.read_text() == MAIN
    assert "it is not a regular file" in program.mistake(2, *words, tmp_path)


@pytest.mark.parametrize(
    ("place", "code", "sentence"),
    [
        # A drop-in that would never be read.
        ("FILE.d/nvidia.conf.bak", 2, "would not be read"),
        ("FILE.d/.nvidia.conf", 2, "would not be read"),
        ("/run/a\nb", 2, "which is not a file name"),
        ("/proc/no/hook.conf", 7, "cannot write /proc/no/hook.conf"),
    ],
)
def test_import_to_a_place_that_cannot_serve(
    program: Program, nvidias: Path, file: Path, place: str, code: int, sentence: str
) -> None:
    words = ["config", "import", nvidias, "--output", place.replace("FILE", str(file))]
    assert sentence in program.mistake(code, *words)
    assert not Path(f"{file}.d").exists()


def test_import_without_a_toml_parser_says_what_to_install(
    program: Program, nvidias: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("tomllib", "tomli"):
        monkeypatch.setitem(sys.modules, name, None)
    said = program.mistake(1, "config", "import", nvidias)
    assert "'config import' cannot read TOML: this Python has no tomllib, and no tomli" in said
    assert "(install python3-tomli)" in said
