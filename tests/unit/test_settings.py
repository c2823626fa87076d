# SPDX-License-Identifier: Apache-2.0
"""The administrator's settings: the file and its drop-ins, what each line means, and for which containers it holds."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_gpu_hook.cli import info
from oci_gpu_hook.errors import ConfigError, RequestError
from oci_gpu_hook.request import settings, settingsfile
from oci_gpu_hook.request.settings import SETTINGS, Settings, read_settings
from oci_gpu_hook.request.state import State
from oci_gpu_hook.request.words import CAPABILITIES
from tests import manual
from tests.unit import hosts
from tests.unit.asking import of_crio
from tests.unit.bounded import is_linear
from tests.unit.program import Program
from tests.unit.test_sections import of

INSTALLED = manual.made("build_settings.py") / "oci-gpu-hook.conf"
# Each key with a value that is not the default.
ALL_KEYS = {
    "device-cgroup": ("on", "on"),
    "device-group": ("host", "host"),
    "ipc-labels": ("all", "all"),
    "ipc-context-mismatch": ("warn", "warn"),
    "accept-environment": ("privileged", "privileged"),
    "unaccepted-requests": ("refuse", "refuse"),
    "unmatched-sections": ("refuse", "refuse"),
    "accept-volume-mounts": ("yes", True),
    "allowed-capabilities": ("utility, compute", ("utility", "compute")),
    "allowed-vendors": ("OCI_A,OCI_B", ("OCI_A", "OCI_B")),
    "swarm-resources": ("A , B, OCI_A=C", ("A", "B", "OCI_A=C")),
    "disable-requirements": ("yes", True),
    "driver-root": ("/run/nvidia/driver/", "/run/nvidia/driver"),
    "mps-pipe-folder": ("/run/mps/", "/run/mps"),
    "mps-pipe-owner": ("1000", 1000),
    "runtime": ("/usr/bin/crun", "/usr/bin/crun"),
    "ignore-imex-channels": ("yes", True),
    "mig-monitor": ("always", "always"),
    "cuda-forward-compatibility": ("no", False),
    "records": ("no", False),
    "metrics": ("/var/lib/a.prom", "/var/lib/a.prom"),
    "gpu-metrics": ("/var/lib/b.prom", "/var/lib/b.prom"),
    "features": ("/etc/f", "/etc/f"),
    "validation-folder": ("/run/v", "/run/v"),
    "gpu-holders": ("4", 4),
    "count-watchers": ("no", False),
    "unhealthy": ("leave-out", "leave-out"),
    "docker-count": ("any", "any"),
    "gpu-memory": ("4096M", "4096M"),
    "gpu-memory-by": ("nvml", "nvml"),
}
# Its last field is no setting.
*FIELDS, UNMATCHED = Settings._fields


def effective(text: str, namespace: str = "-", image: str = "-") -> Settings:
    """What a text means for a container of a namespace and an image."""
    return of(text, of_crio(image, namespace))


@pytest.mark.parametrize("name", [SETTINGS, f"{SETTINGS}.d/10-a.conf"])
def test_the_default_files_may_be_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    file = tmp_path / name[1:]
    assert read_settings(None, State(), str(tmp_path)) == Settings()
    monkeypatch.setattr(settings, "SETTINGS", f"{tmp_path}{SETTINGS}")
    assert not settings.files(None)
    file.parent.mkdir(parents=True)
    file.write_text("# a comment\n\n  device-cgroup =  on \n")
    assert settings.files(None)
    assert read_settings(None, State()) == Settings(device_cgroup="on")
    monkeypatch.undo()
    assert read_settings(None, State(), str(tmp_path)) == Settings(device_cgroup="on")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("device-cgroup", "is not a 'key = value' line"),
        ("device-cgroup = maybe", "allowed is one of auto, on, off"),
        ("device_cgroup = on", "unknown key 'device_cgroup', did you mean 'device-cgroup'?"),
        ("foo = bar", "unknown key 'foo' (known are"),
        (f"{'x' * 99} = 1", "x' (known are"),
        ("device-cgroup = on # yes", "device-cgroup is 'on # yes'"),
        ("driver-root = driver", "'driver', which is not an absolute path"),
        ("mps-pipe-owner = root", "'root', which is not a user's number"),
        ("driver-root = /a\0b", r"'/a\x00b', which is not an absolute path"),
        ("metrics = a.prom", "'a.prom', which is not an absolute path that ends in .prom"),
        ("swarm-resources = A B", "has 'A B', which is not a variable's name"),
        ("swarm-resources = A, B=C", "has 'B=C', which is not a variable's name"),
        ("swarm-resources = OCI_A=", "has 'OCI_A=', which is not a variable's name"),
        ("allowed-vendors = AMD", "has 'AMD', which is not a vendor's flag, such as OCI_AMD"),
        ("allowed-capabilities =", "has '', allowed are all, utility"),
        ("allowed-capabilities = compute, Video", "has 'Video', allowed are all, utility"),
        ("\n\n[pod x]\n", ":3: '[pod x]' is not a heading"),
        ("[namespace]", "'[namespace]' is not a heading"),
        ("[image x", "'[image x' is not a heading"),
        ("[caller nvidia-container-cl]", "'[caller nvidia-container-cl]' is not a heading"),
        ("device-cgroup = " + "\x1b[1m" * 100_000, r"device-cgroup is '\x1b[1m"),
    ],
    ids=lambda value: ascii(value[:40]),
)
def test_a_mistake_is_named_with_its_line(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settingsfile.parse_text(text, "/etc/oci-gpu-hook.conf")
    assert words in str(caught.value)
    assert str(caught.value).startswith("/etc/oci-gpu-hook.conf:")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 800
    assert not ("did you mean" in words and caught.value.hint), "one key is named, or all"


def test_every_key_sets_its_field() -> None:
    assert [key.replace("-", "_") for key in ALL_KEYS] == FIELDS
    assert UNMATCHED == "unmatched"
    with pytest.raises(ConfigError) as caught:
        settingsfile.parse_text("unknown = 1", "file")
    known = caught.value.hint.partition("known are ")[2].split(", ")
    assert sorted(known) == sorted(ALL_KEYS)
    text = "\n".join([f"{key} = {value}" for key, (value, _) in ALL_KEYS.items()])
    found = effective(text)
    assert tuple(found) == (*[value for _, value in ALL_KEYS.values()], ())
    assert all(mine != default for mine, default in zip(found[:-1], Settings()))


@pytest.mark.parametrize("scope", ["namespace", "image"])
def test_every_key_that_may_differ_by_container_may_stand_below_a_heading(scope: str) -> None:
    for key, (value, meant) in ALL_KEYS.items():
        text = f"[{scope} a/*]\n{key} = {value}"
        if settingsfile.KINDS[key].strictest is None:
            with pytest.raises(ConfigError, match=f":2: {key} is for the whole host, not for one {scope}"):
                settingsfile.parse_text(text, "file")
        else:
            assert getattr(effective(text, **{scope: "a/b"}), key.replace("-", "_")) == meant
            assert effective(text, **{scope: "b/a"}) == effective(text) == Settings()


def test_the_namespace_is_said_after_the_image_and_both_after_everybody() -> None:
    text = """
    [namespace team]
    device-cgroup = off
    [image cuda*]
    device-cgroup = on
    accept-environment = privileged
    """
    assert effective(text, image="cuda:12").device_cgroup == "on"
    assert effective(text, namespace="team").device_cgroup == "off"
    both = effective(text, image="cuda:12", namespace="team")
    assert (both.device_cgroup, both.accept_environment) == ("off", "privileged")
    assert effective("[image x]\nrecords = no\n# [end]\n\n") == Settings(), "nothing ends a heading"


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [("a", "ab", False), ("*", "", True), ("a*c", "ac", True), ("a*c", "ab", False), ("ab*bc", "abc", False)]
    + [("a*b*c", "a-b-c", True), ("a*b*c", "a-c-b", False), ("[ab]", "a", False), ("?", "a", False)]
    + [("a*" * 2000, "a" * 10_000, True)],
    ids=str,
)
def test_patterns_know_stars_only(pattern: str, text: str, expected: bool) -> None:
    assert settingsfile.matches(pattern, text) is expected


@pytest.fixture()
def with_drop_ins(tmp_path: Path) -> Path:
    path = tmp_path / SETTINGS[1:]
    Path(f"{path}.d").mkdir(parents=True)
    path.write_text("device-cgroup = on\ndriver-root = /main\n")
    return path


def drop_in(path: Path, name: str, text: str) -> None:
    Path(f"{path}.d", name).write_text(text)


# What is done to the file, or to what has its name with an end; and what is said of that.
UNREAD: list[tuple[str, list[Callable[[Path], object]], str]] = [
    # One that is named must be there, whatever drop-ins are.
    ("", [Path.unlink], "cannot open FILE: No such file"),
    ("", [lambda it: it.write_bytes(b"\n" * ((1 << 20) + 1))], "cannot read FILE: .*are larger than 1 MiB"),
    ("", [lambda it: it.write_bytes(b"\xff\xfe")], "cannot read FILE: it is not UTF-8"),
    ("", [Path.unlink, os.mkfifo], "cannot read FILE: it is a FIFO"),
    ("", [Path.unlink, Path.mkdir], "cannot read FILE: Is a directory"),
    (".d", [shutil.rmtree, Path.touch], "cannot open FILE: Not a directory"),
    (".d/1.conf", [lambda it: it.symlink_to("/nowhere")], "cannot read FILE: "),
    (".d/1.conf", [lambda it: it.write_text("#")], "all settings together are larger than 1 MiB"),
    (".d", [lambda it: [(it / f"{number}.conf").write_text("") for number in range(256)]], "more than 256 drop-ins"),
]


@pytest.mark.parametrize(("end", "steps", "said"), UNREAD)
def test_what_cannot_be_read_is_a_config_error(
    with_drop_ins: Path, end: str, steps: list[Callable[[Path], object]], said: str
) -> None:
    drop_in(with_drop_ins, "a.conf", "#" * ((1 << 20) - with_drop_ins.stat().st_size))
    read_settings(str(with_drop_ins), State())
    file = Path(f"{with_drop_ins}{end}")
    for step in steps:
        step(file)
    with pytest.raises(ConfigError, match=said.replace("FILE", str(file))):
        read_settings(str(with_drop_ins), State())


def test_drop_ins_are_read_in_the_order_of_their_names_after_the_file(with_drop_ins: Path) -> None:
    drop_in(with_drop_ins, "9.conf", "driver-root = /nine")
    drop_in(with_drop_ins, "10.conf", "driver-root = /ten\ndevice-cgroup = off")
    for ignored in ("99.conf~", ".99.conf"):
        drop_in(with_drop_ins, ignored, "no settings at all")
    found = settingsfile.read_files(settings.files(str(with_drop_ins)))
    assert [line.where.removeprefix(str(with_drop_ins)) for line in found] == [
        ":1", ":2", ".d/10.conf:1", ".d/10.conf:2", ".d/9.conf:1",
    ]  # fmt: skip
    read = read_settings(str(with_drop_ins), State())
    assert (read.driver_root, read.device_cgroup) == ("/nine", "off")


def test_a_heading_ends_with_its_file_and_a_mistake_names_its_own(with_drop_ins: Path) -> None:
    drop_in(with_drop_ins, "1.conf", "[image x]")
    drop_in(with_drop_ins, "2.conf", "device-cgroup = off")
    assert read_settings(str(with_drop_ins), State()).device_cgroup == "off"
    drop_in(with_drop_ins, "3.conf", "\nnonsense")
    with pytest.raises(ConfigError, match=r"hook\.conf\.d/3\.conf:2: 'nonsense'"):
        read_settings(str(with_drop_ins), State())


def test_a_link_that_leads_nowhere_does_not_stand_for_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    Path(f"{tmp_path}{SETTINGS}").symlink_to("/nowhere")
    with pytest.raises(ConfigError, match=r"cannot open .*hook\.conf: No such file"):
        read_settings(None, State(), str(tmp_path))


def test_up_to_256_drop_ins_are_read_in_order(with_drop_ins: Path) -> None:
    """No file system's own order is that of the names for so many."""
    names = [f"{number * 37 % 256:03}.conf" for number in range(256)]
    for name in names:
        drop_in(with_drop_ins, name, "")
    _, *found = settings.files(str(with_drop_ins))
    assert found == [f"{with_drop_ins}.d/{name}" for name in sorted(names)]


def test_written_is_what_parse_reads() -> None:
    for key, (_, value) in ALL_KEYS.items():
        for meant in (value, getattr(Settings(), key.replace("-", "_"))):
            (line,) = settingsfile.parse_text(f"{key} = {info.text_of(meant)}", "file")
            assert line.value == meant
    assert info.text_of(CAPABILITIES) == "all"


def test_the_installed_file_has_every_key_once_commented_out_with_its_default() -> None:
    assert settingsfile.read_files([str(INSTALLED)]) == []
    # In a comment "#" is followed by a blank.
    rows = [row[1:] for row in INSTALLED.read_text().splitlines() if row[1:2] not in ("", " ")]
    lines = settingsfile.parse_text("\n".join(rows), str(INSTALLED))
    assert sorted(line.field for line in lines) == sorted(FIELDS)
    assert Settings(**settingsfile.fields(lines, State(), {})) == Settings()


@given(st.text(), st.text())
def test_matching_is_total_and_a_text_matches_itself(pattern: str, text: str) -> None:
    assert settingsfile.matches(pattern, text) in (True, False)
    assert settingsfile.matches(text, text)
    assert settingsfile.matches(f"{text}*", text + pattern)


def test_a_long_pattern_is_compared_once_and_not_with_a_name_of_any_length() -> None:
    def act(entries: int) -> None:
        lines = "records = no\n" * entries
        rows = settingsfile.parse_text(f"[image {'a*' * entries}]\n{lines}", "file")
        assert settingsfile.fields(rows, of_crio("a" * 4096), {}) == {"records": False}

    assert is_linear(act)
    rows = settingsfile.parse_text("[image a*]\nrecords = no\n", "file")
    for name in ("a" * 4097, "a" * 10**6):
        with pytest.raises(RequestError, match="which is too long"):
            settingsfile.fields(rows, of_crio(name), {})
        # Where no line asks for the image, it does not matter.
        assert settingsfile.fields([], of_crio(name), {}) == {}


# --- `info --settings`: the settings in force and where each comes from

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
